"""Losses on padded label ids: no multi-hot matrix is ever built."""

from collections.abc import Callable

import torch
from torch import nn

from .label_candidates import Candidates

# From the logits of a run of labels (texts, labels of the run), the padded ids of all positive labels and the first
# label of the run: the sum of the loss, and its derivative by each logit. Both in the precision of the logits.
LossPair = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


def binary_cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, first_label: int = 0) -> torch.Tensor:
    """
    Sum of the binary cross-entropy over texts and over the labels `first_label`, `first_label + 1`, … of `logits`.

    Args:
        logits: Scores of a run of labels, of shape (texts, labels of the run).
        labels: Ids of the positive labels over the whole label space, of shape (texts, positives), padded with -100.
        first_label: Label of the first column of `logits`.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    columns, inside = _columns_in_run(logits, labels, first_label)
    positive = logits.gather(1, columns).masked_fill(~inside, 0.0)  # (texts, positives)
    return nn.functional.softplus(logits).sum() - positive.sum()


def binary_cross_entropy_pair(
    logits: torch.Tensor, labels: torch.Tensor, first_label: int = 0, text_weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    [`binary_cross_entropy_sum`] together with its derivative by each logit, of the shape of `logits`.

    The heads take their loss as such a pair, since they make gradients in the forward pass. With `text_weights`, of
    shape (texts,), the terms of each text are multiplied by its weight.
    """
    columns, inside = _columns_in_run(logits, labels, first_label)
    inside = inside.to(logits.dtype)
    positive = logits.gather(1, columns) * inside  # (texts, positives)
    loss = nn.functional.softplus(logits).sum(dim=1) - positive.sum(dim=1)  # (texts,)
    # An id outside the run is moved to a column inside it, but takes nothing away there.
    by_logits = logits.sigmoid().scatter_add_(1, columns, -inside)
    if text_weights is not None:
        text_weights = text_weights.to(logits.dtype)
        loss, by_logits = loss * text_weights, by_logits.mul_(text_weights.unsqueeze(1))
    return loss.sum(), by_logits


def candidate_cross_entropy(logits: torch.Tensor, candidates: Candidates, is_true: torch.Tensor) -> torch.Tensor:
    """
    Binary cross-entropy on candidates: the mean over those of a text, then over texts.

    Args:
        logits: Scores of the candidates, of shape (chosen,).
        candidates: Which text each belongs to.
        is_true: Whether each is a label of its text, or leads to one, (chosen,).
    """
    losses = nn.functional.softplus(logits) - logits * is_true
    weights = 1 / candidates.counts.to(logits.dtype)  # (texts,)
    return (losses * weights[candidates.texts]).sum() / len(candidates.counts)


def _columns_in_run(logits: torch.Tensor, labels: torch.Tensor, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Column of every id, and whether it lies among those of `logits`; both of shape (texts, positives)."""
    columns = labels - first_label
    last = logits.shape[1] - 1
    return columns.clamp(0, last), (columns >= 0) & (columns <= last)
