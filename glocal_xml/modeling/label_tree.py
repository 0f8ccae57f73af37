"""From scores of clusters to the labels worth scoring: a tree over the labels, and the search down through it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, nn

from .encoder import PADDING_LABEL, each_once
from .label_scores import LabelScores, MeanProbability, Ranking, log_odds_of, product_logits
from .linear_head import LabelRows, check_loaded


class SparseLabelTable(nn.Embedding):
    """
    As [`LabelTable`], but with a gradient that holds the rows of candidates alone; a step then costs what these cost.

    The bias is a table of its own, since it starts elsewhere.
    """

    def __init__(self, size: int, num_labels: int, bias: bool = False):
        super().__init__(num_labels, size, sparse=True)
        self.bias_table = SparseLabelTable(1, num_labels) if bias else None

    def forward(self) -> Tensor:
        return self.weight

    def read(self) -> "SparseRows":
        """The rows of all labels, called for as those of [`LabelTable`]."""
        return SparseRows(self(), None if self.bias_table is None else self.bias_table(), self.sparse)

    @torch.no_grad()
    def start_biases(self, log_odds: Tensor) -> None:
        self.bias_table.weight.copy_(log_odds.unsqueeze(-1))


@dataclass
class SparseRows(LabelRows):
    """As [`LabelRows`], of a table with sparse gradients; biases are a table too, of shape (labels, 1)."""

    sparse: bool = True

    def rows(self, label_ids: slice | Tensor) -> Tensor:
        is_run = isinstance(label_ids, slice)
        return (
            self.weight[label_ids] if is_run else nn.functional.embedding(label_ids, self.weight, sparse=self.sparse)
        )

    def biases(self, label_ids: slice | Tensor) -> Tensor | None:
        if self.bias is None:
            return None
        # The gradient of a sum is the same memory for all of its terms, and that of a lookup keeps it as it is: data
        # parallelism, which divides gradients in place as soon as they are there, would divide those of all terms. A
        # product has a gradient of its own.
        return SparseRows(self.bias, None, self.sparse).rows(label_ids).squeeze(-1) * 1.0


@dataclass
class Candidates:
    """
    Nodes of one level of the tree, or labels, chosen for each text. Padding repeats the first of a text, so that no
    other row of a label table is touched.
    """

    ids: Tensor  # (texts, chosen)
    mask: Tensor  # (texts, chosen), false for padding; the first of a text is never padding
    paths: Tensor  # (texts, chosen), logit of the way down to the parent of each; no gradient

    def are_among(self, wanted: Tensor) -> Tensor:
        """Whether each is one of its text's `wanted`, of shape (texts, wanted) padded with -100; (texts, chosen)."""
        found = torch.zeros_like(self.mask)
        for column in wanted.unbind(dim=1):
            found |= self.ids == column.unsqueeze(1)
        return found & self.mask

    def cross_entropy(self, logits: Tensor, is_true: Tensor) -> Tensor:
        """Binary cross-entropy of the mean over the candidates of a text, then over texts."""
        losses = (nn.functional.softplus(logits) - logits * is_true).masked_fill(~self.mask, 0)
        return (losses.sum(dim=1) / self.mask.sum(dim=1)).mean()


class CandidateTree(nn.Module):
    """
    A tree whose leaves are clusters of labels, as `glocal_xml.data.build_label_tree` makes it. Saved with the weights.

    Args:
        num_labels: Number of labels.
        level_sizes: Number of nodes of each level from the top, the root left out; those of the last are the clusters.
    """

    starts_unknown = True

    def __init__(self, num_labels: int, level_sizes: Sequence[int]):
        super().__init__()
        self.num_labels = num_labels
        self.level_sizes = list(level_sizes)
        # Nodes are numbered so that the children of one are a run: where the runs start, and where the last ends.
        for level, size in enumerate(self.level_sizes):
            self.register_buffer(f"child_starts_{level}", torch.zeros(size + 1, dtype=torch.long))
        # Labels in the order of the clusters, and the cluster of each label.
        self.register_buffer("label_order", torch.zeros(num_labels, dtype=torch.long))
        self.register_buffer("label_clusters", torch.zeros(num_labels, dtype=torch.long))
        # Fewest and most children of the nodes of each level, once they are known: asking a device takes time.
        self.family_sizes: list[tuple[int, int]] = []
        self.register_load_state_dict_post_hook(_ask_again)

    def child_starts(self, level: int) -> Tensor:
        return getattr(self, f"child_starts_{level}")  # (nodes of the level + 1,)

    def check(self) -> None:
        """Refuses a tree that is not there yet."""
        check_loaded(self)
        if self.family_sizes:
            return
        numbers = [self.child_starts(level).diff() for level in range(len(self.level_sizes))]
        if numbers[-1].sum() != self.num_labels:
            raise ValueError(
                "This model has no label tree yet: call `model.set_label_tree(tree.child_starts, tree.label_order)` "
                "with a tree of `glocal_xml.data.build_label_tree`."
            )
        self.family_sizes = [(number.min().item(), number.max().item()) for number in numbers]

    @torch.no_grad()
    def set_tree(self, child_starts: Sequence[Tensor], label_order: Tensor) -> None:
        """Takes over a tree; one of another shape than the model was built for is an error."""
        child_starts = [torch.as_tensor(starts).long() for starts in child_starts]
        label_order = torch.as_tensor(label_order).long()
        sizes = [len(starts) - 1 for starts in child_starts]
        if sizes != self.level_sizes or label_order.shape != (self.num_labels,):
            raise ValueError(
                f"The tree has levels of {sizes} nodes over {len(label_order)} labels, the model was built for "
                f"{self.level_sizes} over {self.num_labels}: build it with `tree_levels={sizes}`."
            )
        for starts, children in zip(child_starts, [*sizes[1:], self.num_labels], strict=True):
            if starts[0] != 0 or starts[-1] != children or (starts.diff() < 1).any():
                raise ValueError(
                    f"Children must be in runs of at least one, from 0 to {children}, as by `build_label_tree`."
                )
        if not torch.equal(label_order.sort().values, torch.arange(self.num_labels)):
            raise ValueError("`label_order` must hold every label once, as by `build_label_tree`.")
        for level, starts in enumerate(child_starts):
            self.child_starts(level).copy_(starts)
        self.label_order.copy_(label_order)
        clusters = torch.arange(sizes[-1]).repeat_interleave(child_starts[-1].diff())
        self.label_clusters[label_order] = clusters.to(self.label_clusters.device)
        self.family_sizes = []
        self.check()

    def ancestors(self, label_ids: Tensor) -> list[Tensor]:
        """The node of each level, from the top, that labels lie under; each of the shape of `label_ids`."""
        nodes = [self.label_clusters[label_ids]]
        for level in range(len(self.level_sizes) - 2, -1, -1):
            nodes.append(self.parents(level)[nodes[-1]])
        return nodes[::-1]

    def parents(self, level: int) -> Tensor:
        """The node of a level that each node of the next lies under, (nodes of the next level,)."""
        # The children of a node are a run, and each run starts a new number.
        starts, number = self.child_starts(level), self.level_sizes[level + 1]
        return torch.zeros(number, dtype=torch.long, device=starts.device).scatter(0, starts[1:-1], 1).cumsum(0)

    def true_nodes(self, labels: Tensor) -> list[Tensor]:
        """The nodes of each level that lead to `labels`, each once, (texts, positives) padded with -100."""
        levels = self.ancestors(labels.clamp(min=0))
        return [each_once(nodes.masked_fill(labels < 0, PADDING_LABEL)) for nodes in levels]

    def below(self, level: int, nodes: Candidates) -> Candidates:
        """The nodes of the next level below chosen ones, or the labels of chosen clusters."""
        starts, (_, widest) = self.child_starts(level), self.family_sizes[level]
        offsets = torch.arange(widest, device=starts.device)
        first = starts[nodes.ids].unsqueeze(-1)  # (texts, chosen, 1)
        numbers = (starts[nodes.ids + 1] - starts[nodes.ids]).unsqueeze(-1)
        mask = ((offsets < numbers) & nodes.mask.unsqueeze(-1)).flatten(1)  # (texts, children)
        ids = torch.where(mask, (first + offsets).flatten(1), first[:, :1, 0])
        if level == len(self.level_sizes) - 1:
            ids = self.label_order[ids]
        return Candidates(ids, mask, nodes.paths.repeat_interleave(widest, dim=1))

    @torch.no_grad()
    def bias_log_odds(self, log_odds: Tensor) -> list[Tensor]:
        """
        Log-odds of the nodes of each level from the top, given their parents, and last of the labels, so that their
        product is the probability of each label, as if labels occurred independently of each other.
        """
        odds = torch.as_tensor(log_odds, device=self.label_order.device).double()
        log_any, log_none = nn.functional.logsigmoid(odds), nn.functional.logsigmoid(-odds)  # (labels,)
        parents, result = self.label_clusters, []
        for level in range(len(self.level_sizes) - 1, -1, -1):
            log_none = log_none.new_zeros(self.level_sizes[level]).index_add_(0, parents, log_none)
            any_below = torch.log(-torch.expm1(log_none))
            result.append(log_odds_of(log_any - any_below[parents]))
            log_any = any_below
            if level > 0:
                parents = self.parents(level - 1)
        return [log_odds_of(log_any), *result[::-1]]


def _ask_again(tree: CandidateTree, _: Any) -> None:
    """Another tree may have been loaded. Not a lambda, which cannot be pickled."""
    tree.family_sizes = []


# Candidates depend on scores; compiled models call it as it is.
@torch.compiler.disable
def search(
    tree: CandidateTree,
    levels: dict[str, LabelScores],
    beam: int,
    labels: Tensor | None = None,
    trained: range | None = None,
) -> tuple[dict[str, Tensor], Candidates]:
    """
    From the top of the tree to candidate labels: at each level the children of the best nodes of the one above, of
    which `beam` are expanded, by the scores of the `levels` from the top. Gives the candidates below the last level.

    With the `labels` of the texts, in training, the nodes that lead to them are expanded in any case, and each level
    that is `trained`, the labels being one more level, has a loss by its name. All are by default; the search ends
    before the first that is not trained yet.
    """
    tree.check()
    terms, nodes = {}, None
    trained = range(len(levels) + 1) if trained is None else trained
    wanted = None if labels is None else tree.true_nodes(labels)
    for level, (name, scores) in enumerate(levels.items()):
        if level == trained.stop:
            return terms, nodes
        has_loss = labels is not None and level in trained
        if level == 0:
            # Every node of the first level is scored: the loss makes its gradients in label chunks, and what is
            # expanded needs none.
            if has_loss:
                terms[name] = scores.loss(wanted[0])
            with torch.no_grad():
                paths = scores.all()
            ids = torch.arange(paths.shape[1], device=paths.device).expand_as(paths)
            below = Candidates(ids, torch.ones_like(ids, dtype=torch.bool), paths)
        else:
            below = tree.below(level - 1, nodes)
            with torch.set_grad_enabled(torch.is_grad_enabled() and has_loss):
                logits = scores.chosen(below.ids)  # (texts, chosen)
            paths = product_logits(below.paths, logits.detach())
        is_true = None if labels is None else below.are_among(wanted[level])
        if has_loss and level > 0:
            terms[name] = below.cross_entropy(logits, is_true)
        most = beam if labels is None else max(beam, labels.shape[1])
        nodes = best_nodes(below, paths, beam, most, is_true)
    return terms, tree.below(len(levels) - 1, nodes)


def best_nodes(nodes: Candidates, paths: Tensor, number: int, most: int, forced: Tensor | None = None) -> Candidates:
    """
    The best nodes of each text, in `most` columns, by the logits of the ways down to them, (texts, nodes).

    Those that are forced, (texts, nodes), come first and are never left out; more than `number` are taken only where
    more are forced.
    """
    limits = nodes.mask.sum(dim=1).clamp(max=number)  # (texts,)
    ranked = paths.masked_fill(~nodes.mask, -torch.inf)
    if forced is not None:
        limits = limits.maximum(forced.sum(dim=1))
        ranked = ranked.masked_fill(forced, torch.inf)
    columns = ranked.topk(min(most, ranked.shape[1]), dim=1).indices  # (texts, chosen)
    mask = torch.arange(columns.shape[1], device=columns.device) < limits.unsqueeze(1)
    columns = torch.where(mask, columns, columns[:, :1])
    return Candidates(nodes.ids.gather(1, columns), mask, paths.gather(1, columns))


class TreeScores(MeanProbability):
    """
    Scores of labels below a tree: the probability of a label is the product of those of the nodes above it, each given
    its parent, and of its own, which is the mean of the branches'.
    """

    ranks_candidates = True

    def __init__(
        self, tree: CandidateTree, levels: dict[str, LabelScores], branches: dict[str, LabelScores], beam: int
    ):
        tree.check()
        self.tree, self.levels, self.own, self.beam = tree, levels, branches, beam
        super().__init__({name: _BelowTree(scores, self) for name, scores in branches.items()})

    @cached_property
    def all_paths(self) -> Tensor:
        """Logits of the ways down to all clusters, (texts, clusters)."""
        first, *others = self.levels.values()
        paths = first.all()
        for level, scores in enumerate(others):
            paths = product_logits(paths[:, self.tree.parents(level)], scores.all())
        return paths

    def paths(self, labels: slice | Tensor) -> Tensor:
        """Logits of the ways down to labels, (texts, labels); for labels per text the nodes on them alone."""
        if isinstance(labels, slice) or labels.dim() == 1:
            return self.all_paths[:, self.tree.label_clusters[labels]]
        nodes_of_levels = zip(self.levels.values(), self.tree.ancestors(labels), strict=True)
        return reduce(product_logits, (scores.chosen(nodes) for scores, nodes in nodes_of_levels))

    @torch.no_grad()
    def top_k(self, k: int) -> Ranking:
        """The best labels among those of the clusters that a beam through the tree ends at."""
        fewest, _ = self.tree.family_sizes[-1]
        _, candidates = search(self.tree, self.levels, max(self.beam, -(-k // fewest)))
        logits = [product_logits(candidates.paths, scores.chosen(candidates.ids)) for scores in self.own.values()]
        return self.ranked(logits, candidates.ids, k, left_out=~candidates.mask)


class _BelowTree(LabelScores):
    """The scores of one branch times those of the way down to each label."""

    def __init__(self, scores: LabelScores, below: TreeScores):
        self.scores, self.below = scores, below
        self.num_texts, self.num_labels, self.run_size = scores.num_texts, scores.num_labels, scores.run_size

    def __getattr__(self, name: str) -> Any:
        # What words a label reads does not depend on the tree.
        return getattr(self.scores, name)

    def of(self, labels: slice | Tensor) -> Tensor:
        return product_logits(self.below.paths(labels), self.scores.of(labels))
