"""Losses on padded label ids: no multi-hot matrix is ever built."""

import torch
from torch import nn


def binary_cross_entropy_sum(logits: torch.Tensor, labels: torch.Tensor, first_label: int = 0) -> torch.Tensor:
    """
    Sum of the binary cross-entropy over texts and over the labels `first_label`, `first_label + 1`, … of `logits`.

    Args:
        logits: Scores of a run of labels, of shape (texts, labels of the run).
        labels: Ids of the positive labels over the whole label space, of shape (texts, positives), padded with -100.
        first_label: Label of the first column of `logits`.
    """
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    columns = labels - first_label
    inside = (columns >= 0) & (columns < logits.shape[1])
    positive = logits.gather(1, columns.clamp(0, logits.shape[1] - 1)).masked_fill(~inside, 0.0)  # (texts, positives)
    return nn.functional.softplus(logits).sum() - positive.sum()
