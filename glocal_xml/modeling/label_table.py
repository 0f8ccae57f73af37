"""The table with one embedding per label: dense, split over processes, or with sparse gradients."""

from collections.abc import Iterable

import torch
from torch import nn

from .label_candidates import Candidates
from .label_shards import is_sharded, own_rows


def make_label_table(num_labels: int, size: int, bias: bool, sparse: bool) -> nn.Module:
    """
    One embedding per label, with or without a bias each.

    A sparse table is an embedding layer: looked up for chosen labels, its gradient holds their rows alone, and data
    parallelism knows of it. The others are linear layers, which sharding and quantisation know.
    """
    if sparse:
        return SparseLabelTable(num_labels, size, bias)
    return nn.Linear(size, num_labels, bias=bias)


class SparseLabelTable(nn.Embedding):
    """Embeddings of labels with sparse gradients; the bias is a column of its own, since it starts elsewhere."""

    def __init__(self, num_labels: int, size: int, bias: bool):
        super().__init__(num_labels, size, sparse=True)
        self.bias_table = nn.Embedding(num_labels, 1, sparse=True) if bias else None

    @property
    def bias(self) -> torch.Tensor | None:
        return None if self.bias_table is None else self.bias_table.weight  # (labels, 1)


def label_rows(table: nn.Module, label_ids: slice | torch.Tensor) -> torch.Tensor:
    """Embeddings of labels, of shape (labels, size) or that of the ids and one dimension more."""
    if isinstance(table, SparseLabelTable) and not isinstance(label_ids, slice):
        return table(label_ids)
    return readable_weight(table, "label_embeddings")[label_ids]


def candidate_rows(table: nn.Module, candidates: Candidates) -> Iterable[torch.Tensor]:
    """Embeddings of the candidates of one text after the other, each of shape (chosen for the text, size)."""
    if torch.is_grad_enabled():
        # Looked up once: the gradient of each lookup is a matrix of its own.
        return label_rows(table, candidates.ids).split(candidates.lengths)
    return (label_rows(table, ids) for ids in candidates.ids.split(candidates.lengths))


def label_biases(table: nn.Module, label_ids: slice | torch.Tensor) -> torch.Tensor | None:
    """Biases of labels, of shape (labels,) or that of the ids."""
    if table.bias is None:
        return None
    if not isinstance(table, SparseLabelTable):
        return own_rows(table.bias)[label_ids]
    if isinstance(label_ids, slice):
        return table.bias[label_ids].squeeze(-1)
    # The gradient of a sum is the same memory for all of its terms, and that of a lookup keeps it as it is: data
    # parallelism, which divides gradients in place as soon as they are there, would divide those of all terms. A
    # product has a gradient of its own.
    return table.bias_table(label_ids).squeeze(-1) * 1.0


def readable_weight(linear: nn.Module, name: str) -> torch.Tensor:
    """
    The weight of a linear layer that is read directly rather than called; of a split label table, own rows.

    Adapters, quantisation and other sharding change what a call does and would be passed over without a word.
    """
    weight = getattr(linear, "weight", None)
    plain = isinstance(linear, nn.Linear | SparseLabelTable) and weight.is_floating_point()
    plain = plain and (is_sharded(weight) or not hasattr(weight, "to_local"))
    if not plain:
        raise ValueError(
            f"`{name}` is {type(linear).__name__} with a weight of type {type(weight).__name__}; heads over labels "
            "need a plain `nn.Linear` of floating-point numbers: leave this module out of adapters, quantisation and "
            "sharding of its own."
        )
    return own_rows(weight)
