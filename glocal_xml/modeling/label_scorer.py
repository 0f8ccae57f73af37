"""What every head over the labels offers: loss in label chunks, and scores of a run of labels or of chosen ones."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from .losses import binary_cross_entropy_sum


class LabelScorer(nn.Module):
    """
    Base of the heads that turn the features of a text into one logit per label.

    A head owns its parameters and defines `logits` and `bytes_per_label`; everything that goes over all labels works
    chunk by chunk, so that memory does not grow with their number.

    Args:
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
    """

    def __init__(self, num_labels: int, chunk_bytes: int):
        super().__init__()
        self.num_labels = num_labels
        self.chunk_bytes = chunk_bytes

    def logits(self, features: tuple[torch.Tensor, ...], label_ids: slice | torch.Tensor) -> torch.Tensor:
        """Logits of a run of labels, or of labels chosen per text by ids of shape (texts, chosen)."""
        raise NotImplementedError

    def bytes_per_label(self, features: tuple[torch.Tensor, ...]) -> int:
        """Memory that one more label in a chunk takes."""
        raise NotImplementedError

    def chunk_size(self, features: tuple[torch.Tensor, ...]) -> int:
        """Number of labels of a chunk, from the memory budget."""
        return max(1, self.chunk_bytes // self.bytes_per_label(features))

    def loss(self, features: tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
        """Binary cross-entropy, the mean over texts and labels, from ids padded with -100."""
        chunks = list(label_chunks(self.num_labels, self.chunk_size(features)))
        # A single chunk fits the budget with its activations; several would pile theirs up until the backward pass.
        recompute = len(chunks) > 1 and torch.is_grad_enabled()
        total = 0.0
        for chunk in chunks:
            if recompute:
                total = total + checkpoint(self._chunk_loss, features, labels, chunk, use_reentrant=False)
            else:
                total = total + self._chunk_loss(features, labels, chunk)
        return total / (labels.shape[0] * self.num_labels)

    def _chunk_loss(self, features: tuple[torch.Tensor, ...], labels: torch.Tensor, chunk: slice) -> torch.Tensor:
        return binary_cross_entropy_sum(self.logits(features, chunk), labels, chunk.start)


def label_chunks(num_labels: int, chunk_size: int) -> Iterator[slice]:
    """Runs of at most `chunk_size` labels that together cover all of them."""
    for start in range(0, num_labels, chunk_size):
        yield slice(start, min(start + chunk_size, num_labels))
