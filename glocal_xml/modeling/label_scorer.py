"""What every head over the labels offers: loss in label chunks, and scores of a run of labels or of chosen ones."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import nn

from .label_candidates import Candidates
from .label_shards import LabelShard, label_shard, own_rows
from .losses import LossPair, binary_cross_entropy_pair


class LabelScorer(nn.Module):
    """
    Base of the heads that turn the features of a text into one logit per label.

    A head owns its parameters, among them `label_bias` or `None`, and defines `own_logits`, `own_loss` and
    `bytes_per_label`; everything that goes over all labels works chunk by chunk, so that memory does not grow with
    their number. Own labels are those whose rows this process holds: all of them, unless the label table is split over
    processes ([`LabelShard`]). Heads that can be asked about candidates alone define `candidate_logits` too; with a
    sparse label table ([`SparseLabelTable`]) these are all they can be trained on.

    Args:
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
    """

    # A subclass may bring another loss, such as a focal or a weighted one.
    loss_pair: LossPair = staticmethod(binary_cross_entropy_pair)
    # Whether one table holds a row per label, so that it may be split over processes.
    has_one_table = True

    def __init__(self, num_labels: int, chunk_bytes: int):
        super().__init__()
        self.num_labels = num_labels
        self.chunk_bytes = chunk_bytes

    def logits(self, features: tuple[torch.Tensor, ...], label_ids: slice | torch.Tensor) -> torch.Tensor:
        """Logits of a run of labels, or of labels chosen per text by ids of shape (texts, chosen)."""
        return self.shard.collect(partial(self.own_logits, self.shard.shared(features)), label_ids)

    def own_logits(self, features: tuple[torch.Tensor, ...], label_ids: slice | torch.Tensor) -> torch.Tensor:
        """Logits of a run of own labels or of chosen ones, counted from the first of them."""
        raise NotImplementedError

    def loss(
        self, features: tuple[torch.Tensor, ...], labels: torch.Tensor, loss_pair: LossPair | None = None
    ) -> torch.Tensor:
        """
        Binary cross-entropy, the mean over texts and labels, from ids padded with -100.

        Its gradients are made in the forward pass ([`fused_loss`]): one backward pass per forward pass. Another
        `loss_pair` is given the rows of `labels` for what it is asked about, whatever these mean to it.
        """
        shard = self.shard
        return shard.sum(self.own_loss(shard.shared(features), labels, shard.shifted(loss_pair or self.loss_pair)))

    def own_loss(self, features: tuple[torch.Tensor, ...], labels: torch.Tensor, loss_pair: LossPair) -> torch.Tensor:
        """What own labels add to the loss."""
        raise NotImplementedError

    def candidate_logits(self, features: tuple[torch.Tensor, ...], candidates: Candidates) -> torch.Tensor:
        """Logits of the candidates of each text, of shape (chosen,)."""
        raise NotImplementedError

    @property
    def shard(self) -> LabelShard:
        """The labels whose rows this process holds."""
        return label_shard(getattr(self.label_embeddings, "weight", None), self.num_labels)

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """Starts the bias of every label at its log-odds, of shape (labels,), where there is a bias."""
        bias = own_rows(self.label_bias)
        bias.copy_(log_odds[self.shard.first :][: self.shard.size].view_as(bias))

    def bytes_per_label(self, features: tuple[torch.Tensor, ...]) -> int:
        """Memory that one more label in a chunk takes."""
        raise NotImplementedError

    def chunk_size(self, features: tuple[torch.Tensor, ...]) -> int:
        """Number of labels of a chunk, from the memory budget; chunks are of about equal size."""
        most = max(1, self.chunk_bytes // self.bytes_per_label(features))
        largest = self.shard.largest
        return math.ceil(largest / math.ceil(largest / most))


def label_chunks(num_labels: int, chunk_size: int) -> Iterator[slice]:
    """Runs of at most `chunk_size` labels that together cover all of them."""
    for start in range(0, num_labels, chunk_size):
        yield slice(start, min(start + chunk_size, num_labels))
