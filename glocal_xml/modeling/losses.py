"""Losses on padded label ids: no multi-hot matrix is ever built."""

import torch
from torch import nn

PADDING_LABEL = -100


def check_labels(labels: torch.Tensor, num_labels: int, num_texts: int) -> torch.Tensor:
    """Checks padded label ids and turns a repeated id of a text into padding, so that it counts once."""
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
        raise ValueError(
            f"`labels` must hold label ids as integers, padded with {PADDING_LABEL}, got {labels.dtype}; "
            "turn a multi-hot matrix into lists of the ids that are 1."
        )
    if labels.dim() != 2 or labels.shape[0] != num_texts:
        raise ValueError(
            f"`labels` must have the shape (texts, most labels of a text) with {num_texts} texts, "
            f"got {tuple(labels.shape)}."
        )
    labels = labels.long().sort(dim=1).values  # (texts, positives)
    if labels.numel() == 0:
        return labels
    lowest, highest = labels.min().item(), labels.max().item()
    if highest >= num_labels:
        raise ValueError(
            f"`labels` holds the id {highest}, but the model has {num_labels} labels (ids 0 to {num_labels - 1}); "
            "build the model with `num_labels` of the label space, or drop labels it does not know."
        )
    if lowest < 0 and ((labels < 0) & (labels != PADDING_LABEL)).any():
        wrong = labels[(labels < 0) & (labels != PADDING_LABEL)][0].item()
        raise ValueError(f"`labels` holds the id {wrong}; ids start at 0 and padding is {PADDING_LABEL}.")
    repeated = labels[:, 1:] == labels[:, :-1]
    return torch.cat([labels[:, :1], labels[:, 1:].masked_fill(repeated, PADDING_LABEL)], dim=1)


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
