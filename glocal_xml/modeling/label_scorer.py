"""What every head over the labels offers: loss in label chunks, and scores of a run of labels or of chosen ones."""

import math
from collections.abc import Iterable, Iterator

import torch
from torch import nn

from .label_candidates import Candidates
from .losses import LossPair, binary_cross_entropy_pair


class LabelScorer(nn.Module):
    """
    Base of the heads that turn the features of a text into one logit per label.

    A head owns its parameters, among them `label_bias` or `None`, and defines `logits`, `loss` and `bytes_per_label`;
    everything that goes over all labels works chunk by chunk, so that memory does not grow with their number. Heads
    that can be asked about candidates alone define `candidate_logits` too; with a sparse label table
    ([`make_label_table`]) these are all they can be trained on.

    Args:
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
    """

    # A subclass may bring another loss, such as a focal or a weighted one.
    loss_pair: LossPair = staticmethod(binary_cross_entropy_pair)

    def __init__(self, num_labels: int, chunk_bytes: int):
        super().__init__()
        self.num_labels = num_labels
        self.chunk_bytes = chunk_bytes

    def logits(self, features: tuple[torch.Tensor, ...], label_ids: slice | torch.Tensor) -> torch.Tensor:
        """Logits of a run of labels, or of labels chosen per text by ids of shape (texts, chosen)."""
        raise NotImplementedError

    def loss(
        self, features: tuple[torch.Tensor, ...], labels: torch.Tensor, loss_pair: LossPair | None = None
    ) -> torch.Tensor:
        """
        Binary cross-entropy, the mean over texts and labels, from ids padded with -100.

        Its gradients are made in the forward pass ([`fused_loss`]): one backward pass per forward pass. Another
        `loss_pair` is given the rows of `labels` for what it is asked about, whatever these mean to it.
        """
        raise NotImplementedError

    def candidate_logits(self, features: tuple[torch.Tensor, ...], candidates: Candidates) -> torch.Tensor:
        """Logits of the candidates of each text, of shape (chosen,)."""
        raise NotImplementedError

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """Starts the bias of every label at its log-odds, of shape (labels,), where there is a bias."""
        self.label_bias.copy_(log_odds.view_as(self.label_bias))

    def bytes_per_label(self, features: tuple[torch.Tensor, ...]) -> int:
        """Memory that one more label in a chunk takes."""
        raise NotImplementedError

    def chunk_size(self, features: tuple[torch.Tensor, ...]) -> int:
        """Number of labels of a chunk, from the memory budget; chunks are of about equal size."""
        most = max(1, self.chunk_bytes // self.bytes_per_label(features))
        return math.ceil(self.num_labels / math.ceil(self.num_labels / most))


def label_chunks(num_labels: int, chunk_size: int) -> Iterator[slice]:
    """Runs of at most `chunk_size` labels that together cover all of them."""
    for start in range(0, num_labels, chunk_size):
        yield slice(start, min(start + chunk_size, num_labels))


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
        return table.bias[label_ids]
    rows = table.bias[label_ids] if isinstance(label_ids, slice) else table.bias_table(label_ids)
    return rows.squeeze(-1)


def readable_weight(linear: nn.Module, name: str) -> torch.Tensor:
    """
    The weight of a linear layer that is read directly rather than called.

    Adapters, quantisation and sharding work by changing what a call does and would be passed over without a word.
    """
    weight = getattr(linear, "weight", None)
    plain = (
        isinstance(linear, nn.Linear | SparseLabelTable)
        and weight.is_floating_point()
        and not hasattr(weight, "to_local")
    )
    if not plain:
        raise ValueError(
            f"`{name}` is {type(linear).__name__} with a weight of type {type(weight).__name__}; heads over labels "
            "need a plain `nn.Linear` of floating-point numbers: leave this module out of adapters, quantisation and "
            "sharding of its own."
        )
    return weight
