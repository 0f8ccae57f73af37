"""What the families with a label tree share: the tree, heads over the nodes of its levels, and how biases start."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import initialization as init

from .label_tree import CandidateTree, SparseLabelTable
from .linear_head import LabelTable, LinearHead


class LabelTreeMixin:
    """
    A family that goes down a label tree instead of scoring every label.

    In training the nodes that lead to labels of a text are always expanded, then those that score highest at this
    step, so that negatives are drawn anew each time (*LightXML*, Jiang et al.,
    [arXiv:2101.03305](https://arxiv.org/abs/2101.03305); algorithm 2 of *LightAttention*). The loss is a cross-entropy
    for each level and each branch: the mean over the candidates of a text, then over texts.

    Label tables have sparse gradients ([`SparseLabelTable`]): a step costs what its candidates cost.
    """

    def make_label_tree(self) -> None:
        """The tree, and heads over the nodes of its levels."""
        sizes = self.config.tree_levels
        self.label_tree = CandidateTree(self.config.num_labels, sizes)
        # All nodes of the first level are scored, of the others candidates.
        tables = [LabelTable, *[SparseLabelTable] * (len(sizes) - 1)]
        self.level_classifiers = nn.ModuleList(map(self.make_level, sizes, tables))

    def make_level(self, num_nodes: int, table: type[nn.Module]) -> nn.Module:
        """A head over the nodes of a level, from document embeddings."""
        options = (self.config.label_chunk_bytes, self.config.label_bias, table)
        return LinearHead(self.document_size, num_nodes, *options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, SparseLabelTable) and module.bias_table is not None:
            init.zeros_(module.bias_table.weight)

    def level_heads(self) -> dict[str, nn.Module]:
        """The head over the nodes of each level from the top: `level 1` and so on, and `clusters` for the last."""
        # FSDP, which adds this method, knows no sparse gradients.
        if hasattr(self, "reshard"):
            for module in self.modules():
                if isinstance(module, SparseLabelTable):
                    module.sparse = False
        names = [*(f"level {i + 1}" for i in range(len(self.level_classifiers) - 1)), "clusters"]
        return dict(zip(names, self.level_classifiers, strict=True))

    def set_label_tree(self, child_starts: Sequence[Tensor], label_order: Tensor) -> None:
        """Takes over a `LabelTree` (`tree.child_starts`, `tree.label_order`); a trained model keeps the one it has."""
        self.label_tree.set_tree(child_starts, label_order)

    def start_label_bias(self, log_odds: Tensor) -> None:
        """Starts the biases of nodes and labels so that their product is the training probability of each label."""
        self.config.check_label_bias()
        *levels, labels = self.label_tree.bias_log_odds(log_odds)
        for head, odds in zip(self.level_classifiers, levels, strict=True):
            head.label_embeddings.start_biases(odds)
        for head in self.branch_heads().values():
            head.label_embeddings.start_biases(labels)
