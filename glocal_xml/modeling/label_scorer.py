"""What every head over the labels offers: loss in label chunks, and scores of a run of labels or of chosen ones."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from .losses import LossPair, binary_cross_entropy_pair


class LabelScorer(nn.Module):
    """
    Base of the heads that turn the features of a text into one logit per label.

    A head owns its parameters, among them `label_bias` or `None`, and defines `logits`, `loss` and `bytes_per_label`;
    everything that goes over all labels
    works chunk by chunk, so that memory does not grow with their number.

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

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """Starts the bias of every label at its log-odds, of shape (labels,), where there is a bias."""
        self.label_bias.copy_(log_odds)

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


def readable_weight(linear: nn.Module, name: str) -> torch.Tensor:
    """
    The weight of a linear layer that is read directly rather than called.

    Adapters, quantisation and sharding work by changing what a call does and would be passed over without a word.
    """
    weight = getattr(linear, "weight", None)
    plain = isinstance(linear, nn.Linear) and weight.is_floating_point() and not hasattr(weight, "to_local")
    if not plain:
        raise ValueError(
            f"`{name}` is {type(linear).__name__} with a weight of type {type(weight).__name__}; heads over labels "
            "need a plain `nn.Linear` of floating-point numbers: leave this module out of adapters, quantisation and "
            "sharding of its own."
        )
    return weight
