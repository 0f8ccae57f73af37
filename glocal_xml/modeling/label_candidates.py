"""From scores of clusters to the labels worth scoring: a tree over the labels, and the ways down through it."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import nn

from .input_checks import PADDING_LABEL


@dataclass
class Candidates:
    """
    Nodes of one level of the tree, or labels, chosen for each text: text after text, without padding or duplicates.
    """

    ids: torch.Tensor  # (chosen,), those of all texts
    counts: torch.Tensor  # (texts,), how many each text has
    paths: torch.Tensor | None = None  # (chosen,), logit of the way down to the parent of each; no gradient

    @cached_property
    def lengths(self) -> list[int]:
        return self.counts.tolist()

    @cached_property
    def texts(self) -> torch.Tensor:
        """The text that each belongs to, of shape (chosen,)."""
        return torch.arange(len(self.counts), device=self.ids.device).repeat_interleave(self.counts)

    @cached_property
    def places(self) -> torch.Tensor:
        """Where each stands once padded: true in the first places of each row, (texts, most of a text)."""
        longest = max(self.lengths)
        return torch.arange(longest, device=self.ids.device) < self.counts.unsqueeze(1)

    def padded(self, values: torch.Tensor, padding: float) -> torch.Tensor:
        """From one value each, of shape (chosen,), to (texts, most of a text)."""
        result = values.new_full(self.places.shape, padding)
        result[self.places] = values
        return result

    def are_among(self, wanted: torch.Tensor) -> torch.Tensor:
        """Whether each is one of its text's `wanted`, of shape (texts, wanted) padded with -100; (chosen,)."""
        if len(self.ids) == 0 or wanted.numel() == 0:
            return torch.zeros_like(self.ids, dtype=torch.bool)
        size = max(self.ids.max().item(), wanted.max().item()) + 1
        rows = torch.arange(len(wanted), device=wanted.device).unsqueeze(1)
        return torch.isin(self.texts * size + self.ids, (rows * size + wanted)[wanted >= 0])


class CandidateTree(nn.Module):
    """
    A tree whose leaves are clusters of labels, as `glocal_xml.data.build_label_tree` makes it. Saved with the weights.

    Args:
        num_labels: Number of labels.
        level_sizes: Number of nodes of each level from the top, the root left out; those of the last are the clusters.
    """

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

    def child_starts(self, level: int) -> torch.Tensor:
        return getattr(self, f"child_starts_{level}")  # (nodes of the level + 1,)

    @property
    def is_set(self) -> bool:
        return self.child_starts(len(self.level_sizes) - 1)[-1].item() == self.num_labels

    @property
    def smallest_cluster(self) -> int:
        return self.child_starts(len(self.level_sizes) - 1).diff().min().item()

    @torch.no_grad()
    def set_tree(self, child_starts: Sequence[torch.Tensor], label_order: torch.Tensor) -> None:
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
                    "The children of a level must be shared out in runs of at least one, from 0 to "
                    f"{children}; `build_label_tree` makes such a tree."
                )
        if not torch.equal(label_order.sort().values, torch.arange(self.num_labels)):
            raise ValueError("`label_order` must hold every label once; `build_label_tree` makes such a tree.")
        for level, starts in enumerate(child_starts):
            self.child_starts(level).copy_(starts)
        self.label_order.copy_(label_order)
        clusters = torch.arange(sizes[-1]).repeat_interleave(child_starts[-1].diff())
        self.label_clusters[label_order] = clusters.to(self.label_clusters.device)

    def ancestors(self, label_ids: torch.Tensor | slice) -> list[torch.Tensor]:
        """The node of each level, from the top, that labels lie under; each of the shape of `label_ids`."""
        nodes = [self.label_clusters[label_ids]]
        for level in range(len(self.level_sizes) - 2, -1, -1):
            starts = self.child_starts(level)
            nodes.append(torch.searchsorted(starts, nodes[-1], right=True) - 1)
        return nodes[::-1]

    def true_nodes(self, labels: torch.Tensor) -> list[torch.Tensor]:
        """The nodes of each level that lead to `labels`, each once, (texts, positives) padded with -100."""
        padding = labels < 0
        result = []
        for nodes in self.ancestors(labels.clamp(min=0)):
            nodes = nodes.masked_fill(padding, PADDING_LABEL).sort(dim=1).values
            repeated = torch.zeros_like(nodes, dtype=torch.bool)
            repeated[:, 1:] = nodes[:, 1:] == nodes[:, :-1]
            result.append(nodes.masked_fill(repeated, PADDING_LABEL))
        return result

    def below(self, level: int, nodes: Candidates) -> Candidates:
        """The nodes of the next level below chosen ones, or the labels of chosen clusters."""
        starts = self.child_starts(level)
        numbers = starts[nodes.ids + 1] - starts[nodes.ids]  # (chosen,)
        parents = torch.arange(len(nodes.ids), device=starts.device).repeat_interleave(numbers)  # (children,)
        first = (numbers.cumsum(0) - numbers)[parents]
        ids = starts[nodes.ids][parents] + torch.arange(len(parents), device=starts.device) - first
        if level == len(self.level_sizes) - 1:
            ids = self.label_order[ids]
        counts = torch.zeros_like(nodes.counts).index_add_(0, nodes.texts, numbers)
        return Candidates(ids, counts, nodes.paths[parents])


def best_nodes(paths: torch.Tensor, number: int, forced: torch.Tensor | None = None) -> Candidates:
    """
    The best columns of each text; those that are forced come first and are never left out.

    Args:
        paths: Logits of nodes, of shape (texts, nodes); minus infinity stands for padding.
        number: How many to take for each text; more only where more are forced.
        forced: Columns to take in any case, (texts, nodes).

    Returns:
        [`Candidates`] whose ids are columns and whose paths are the logits of these.
    """
    limits = (paths != -torch.inf).sum(dim=1).clamp(max=number)  # (texts,)
    ranked = paths
    if forced is not None:
        limits = limits.maximum(forced.sum(dim=1))
        ranked = paths.masked_fill(forced, torch.inf)
    columns = ranked.topk(max(limits.tolist()), dim=1).indices  # (texts, most of a text)
    kept = torch.arange(columns.shape[1], device=columns.device) < limits.unsqueeze(1)
    return Candidates(columns[kept], limits, paths.gather(1, columns)[kept])


def padded_columns(ids: torch.Tensor, size: int) -> torch.Tensor:
    """Whether each column is among the ids of its text, which are padded with -100: (texts, size)."""
    # One more column takes the padding.
    columns = ids.masked_fill(ids < 0, size)
    return torch.zeros(len(ids), size + 1, dtype=torch.bool, device=ids.device).scatter_(1, columns, True)[:, :size]
