"""Families with a label tree: clusters are scored first, then the labels of the best clusters alone."""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import initialization as init

from .configuration_clustered import ClusteredConfig
from .label_candidates import Candidates, CandidateTree, best_nodes, padded_columns
from .label_ranking import best_columns
from .label_scorer import LabelScorer, label_chunks
from .label_table import SparseLabelTable
from .losses import candidate_cross_entropy
from .modeling_base import Features, XMTCPreTrainedModel, with_loss
from .modeling_output import XMTCOutput
from .probabilities import at_least_float, mean_probability_logits, product_logits

PATHS = "paths"


class ClusteredXMTCModel(XMTCPreTrainedModel):
    """
    Base of families that score all labels or, with `config.tree_levels`, go down a label tree.

    The probability of a label is the product of those of the nodes above it, each given its parent, and of its own,
    which is the mean of the branches'. In training the nodes that lead to labels of a text are always gone on from,
    then those that score highest at this step, so that negatives are drawn anew each time (*LightXML*, Jiang et al.,
    [arXiv:2101.03305](https://arxiv.org/abs/2101.03305); algorithm 2 of *LightAttention*). The loss is a cross-entropy
    for each level and each branch: the mean over the candidates of a text, then over texts.

    Label tables then have sparse gradients ([`SparseLabelTable`]): a step costs what its candidates cost.
    """

    config_class = ClusteredConfig

    def make_label_tree(self, make_classifier: Callable[..., LabelScorer]) -> None:
        """
        The tree, where there is one, and classifiers over the nodes of its levels; families start with this.

        Args:
            make_classifier: From a number of nodes, with `chunk_bytes`, `bias` and `sparse`, a head over them.
        """
        config, self.label_tree = self.config, None
        if not config.tree_levels:
            return
        self.label_tree = CandidateTree(config.num_labels, config.tree_levels)
        # All nodes of the first level are scored, of the others candidates.
        self.level_classifiers = nn.ModuleList(
            make_classifier(
                num_labels=size, chunk_bytes=config.label_chunk_bytes, bias=config.label_bias, sparse=level > 0
            )
            for level, size in enumerate(config.tree_levels)
        )

    @property
    def label_level(self) -> int:
        """The level of the labels, below those of the tree, which are counted from 0."""
        return len(self.config.tree_levels)

    def trained_levels(self) -> range:
        """The levels that have a loss now; the ones above these are gone through as they are."""
        return range(self.label_level + 1)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, SparseLabelTable) and module.bias_table is not None:
            init.zeros_(module.bias_table.weight)
        if isinstance(module, CandidateTree):
            # Loading starts from arbitrary memory: without this, a tree that a checkpoint lacks would look known.
            for buffer in module.buffers():
                init.zeros_(buffer)

    def level_heads(self) -> dict[str, LabelScorer]:
        """The head over the nodes of each level from the top: `level 1` and so on, and `clusters` for the last."""
        if self.label_tree is None:
            return {}
        names = [*(f"level {i + 1}" for i in range(self.label_level - 1)), "clusters"]
        return dict(zip(names, self.level_classifiers, strict=True))

    def set_label_tree(self, child_starts: Sequence[torch.Tensor], label_order: torch.Tensor) -> None:
        """Takes over a `LabelTree` (`tree.child_starts`, `tree.label_order`); a trained model keeps the one it has."""
        if self.label_tree is None:
            raise ValueError("This model scores every label: build it with `tree_levels=tree.level_sizes`.")
        self.label_tree.set_tree(child_starts, label_order)

    def text_features(self, *args: torch.Tensor | None, **kwargs: torch.Tensor | None) -> Features:
        self.check_label_tree()
        return super().text_features(*args, **kwargs)

    def check_label_tree(self) -> None:
        """Refuses to go on without the tree that the model was built for."""
        if self.label_tree is not None and not self.label_tree.is_set:
            raise ValueError(
                "This model has no label tree yet: call `model.set_label_tree(tree.child_starts, tree.label_order)` "
                "with a tree of `glocal_xml.data.build_label_tree`."
            )

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """
        Starts the bias of every label at its training log-odds; with a tree, those of nodes and labels so that their
        product is the label's probability, as if labels occurred independently of each other.
        """
        if self.label_tree is None or not self.config.label_bias:
            return super().start_label_bias(log_odds)
        self.check_label_tree()
        tree, log_sigmoid = self.label_tree, nn.functional.logsigmoid
        odds = torch.as_tensor(log_odds, device=tree.label_order.device).double()
        log_any, log_none = log_sigmoid(odds), log_sigmoid(-odds)  # (labels,)
        heads = list(self.branch_heads().values())
        levels = list(self.level_heads().values())
        parents, order = tree.label_clusters, range(len(levels) - 1, -1, -1)
        for level in order:
            none_below = log_none.new_zeros(tree.level_sizes[level]).index_add_(0, parents, log_none)
            any_below = torch.log(-torch.expm1(none_below))
            for head in heads:
                head.start_label_bias(_log_odds(log_any - any_below[parents]))
            log_any, log_none, heads = any_below, none_below, [levels[level]]
            if level > 0:
                parents = torch.arange(tree.level_sizes[level - 1], device=odds.device).repeat_interleave(
                    tree.child_starts(level - 1).diff()
                )
        levels[0].start_label_bias(_log_odds(log_any))

    def loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.label_tree is None:
            return super().loss_terms(features, labels)
        terms, candidates = self.go_down(features, self.config.training_beam, labels)
        # The labels are not yet trained where levels are one after the other.
        if self.label_level not in self.trained_levels():
            return terms
        logits = {
            name: at_least_float(head.candidate_logits(features[name], candidates))
            for name, head in self.branch_heads().items()
        }
        return terms | self.candidate_loss_terms(logits, candidates, candidates.are_among(labels))

    def candidate_loss_terms(
        self, logits: dict[str, torch.Tensor], candidates: Candidates, is_label: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Terms of the loss on candidate labels, from the logits of each branch, (chosen,)."""
        return {name: candidate_cross_entropy(scores, candidates, is_label) for name, scores in logits.items()}

    def go_down(
        self, features: Features, beam: int, labels: torch.Tensor | None = None
    ) -> tuple[dict[str, torch.Tensor], Candidates]:
        """
        From the top of the tree to candidate labels: at each level the children of the best nodes of the one above.

        Args:
            features: What the heads read of the texts.
            beam: How many nodes of each level to go on from.
            labels: The labels of the texts, in training: the nodes that lead to them are gone on from in any case, and
                the way ends at the last level that is trained.

        Returns:
            A loss for each level that is trained, where there are labels, and the candidates below the last level.
        """
        tree, terms, nodes = self.label_tree, {}, None
        true_nodes = [None] * self.label_level if labels is None else tree.true_nodes(labels)
        trained = range(self.label_level, self.label_level + 1) if labels is None else self.trained_levels()
        for level, (name, head) in enumerate(self.level_heads().items()):
            wanted = true_nodes[level]
            if level == trained.stop:
                return terms, nodes
            if level == 0:
                # Every node of the first level is scored: the loss makes its gradients in label chunks, and what is
                # gone on from needs none.
                if level in trained:
                    terms[name] = head.loss(features[name], wanted)
                with torch.no_grad():
                    paths = _all_logits(head, features[name])
                nodes = best_nodes(paths, beam, None if wanted is None else padded_columns(wanted, paths.shape[1]))
                continue
            below = tree.below(level - 1, nodes)
            with torch.set_grad_enabled(torch.is_grad_enabled() and level in trained):
                logits = at_least_float(head.candidate_logits(features[name], below))  # (chosen,)
            forced = None
            if wanted is not None:
                is_true = below.are_among(wanted)  # (chosen,)
                forced = below.padded(is_true, False)
            if level in trained:
                terms[name] = candidate_cross_entropy(logits, below, is_true)
            paths = product_logits(below.paths, logits.detach())  # (chosen,)
            nodes = best_nodes(below.padded(paths, -torch.inf), beam, forced)
            # Columns of the padded form are places among the children of each text.
            nodes.ids = below.ids[nodes.ids + (below.counts.cumsum(0) - below.counts)[nodes.texts]]
        return terms, tree.below(self.label_level - 1, nodes)

    def branch_logits(self, features: Features, label_ids: slice | torch.Tensor) -> dict[str, torch.Tensor]:
        """Logits of each branch for a run of labels or for chosen ones: those of the way down to a label included."""
        logits = super().branch_logits(features, label_ids)
        if self.label_tree is None:
            return logits
        clusters = self.label_tree.label_clusters[label_ids]
        if PATHS in features:
            paths = features[PATHS][0]
            paths = paths[:, clusters] if clusters.dim() == 1 else paths.gather(1, clusters)  # (texts, labels)
        else:
            paths = self._paths(features, self.label_tree.ancestors(label_ids))
        return {name: product_logits(paths, scores) for name, scores in logits.items()}

    def own_branch_logits(self, features: Features, label_ids: slice) -> dict[str, torch.Tensor]:
        # Labels with a tree are not split over processes.
        if self.label_tree is not None:
            return self.branch_logits(features, label_ids)
        return super().own_branch_logits(features, label_ids)

    def _paths(self, features: Features, nodes: list[torch.Tensor]) -> torch.Tensor:
        """Logits of the ways down through the given nodes of each level, (texts, chosen); those of all texts alike."""
        paths = None
        for chosen, (name, head) in zip(nodes, self.level_heads().items(), strict=True):
            texts = len(features[name][0])
            scores = at_least_float(head.logits(features[name], chosen.expand(texts, -1)))
            paths = scores if paths is None else product_logits(paths, scores)
        return paths

    def _all_paths(self, features: Features) -> torch.Tensor:
        """Logits of the ways down to all clusters, (texts, clusters)."""
        paths = None
        for level, (name, head) in enumerate(self.level_heads().items()):
            scores = _all_logits(head, features[name])
            if paths is not None:
                paths = paths.repeat_interleave(self.label_tree.child_starts(level - 1).diff(), dim=1)
            paths = scores if paths is None else product_logits(paths, scores)
        return paths

    def scan_labels(
        self,
        features: Features,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        """With a tree the best labels of the best clusters; all are scored only where their logits are wanted."""
        if self.label_tree is None:
            return super().scan_labels(features, labels, top_k, output_logits)
        if self._wants_logits(output_logits):
            features = features | {PATHS: (self._all_paths(features),)}
            output = super().scan_labels(features, None, top_k, output_logits)
        else:
            output = self._scan_candidates(features, self._check_top_k(top_k))
        return with_loss(output, {} if labels is None else self.loss_terms(features, labels))

    @torch.no_grad()
    def _scan_candidates(self, features: Features, top_k: int) -> XMTCOutput:
        """The best labels among those of the clusters that a beam through the tree ends at."""
        beam = max(self.config.beam, -(-top_k // self.label_tree.smallest_cluster))
        _, candidates = self.go_down(features, beam)
        heads = self.branch_heads()
        branches = {
            name: product_logits(candidates.paths, at_least_float(head.candidate_logits(features[name], candidates)))
            for name, head in heads.items()
        }
        # In the order of the ids, so that of equal scores the lower id comes first; padding comes last.
        label_ids, order = candidates.padded(candidates.ids, self.config.num_labels).sort(dim=1)
        rankings = {}
        for name, scores in {**branches, None: mean_probability_logits(list(branches.values()))}.items():
            best, columns = best_columns(candidates.padded(scores, -torch.inf).gather(1, order), top_k)
            rankings[name] = (label_ids.gather(1, columns), best)
        return XMTCOutput(
            top_k_ids=rankings[None][0],
            top_k_scores=rankings[None][1].sigmoid(),
            branch_top_k_ids={name: rankings[name][0] for name in heads} if len(heads) > 1 else None,
        )


def _all_logits(head: LabelScorer, features: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Logits of all nodes of a level, (texts, nodes), in chunks."""
    chunks = label_chunks(head.num_labels, head.chunk_size(features))
    return torch.cat([at_least_float(head.logits(features, chunk)) for chunk in chunks], dim=1)


def _log_odds(log_probability: torch.Tensor) -> torch.Tensor:
    """Log-odds of probabilities, just below one where they are one: those of the only child of a node."""
    log_probability = log_probability.clamp(max=-1e-6)
    return log_probability - torch.log(-torch.expm1(log_probability))


__all__ = ["ClusteredXMTCModel"]
