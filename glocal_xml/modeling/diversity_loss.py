"""The distribution-aware diversity loss of ME-XML: experts are to differ where both miss a rare label."""

from itertools import combinations

import torch
from torch import nn


def bernoulli_kl(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """
    KL divergence of two Bernoulli distributions given by logits, elementwise (eq. 7 and 8).

    Without a probability in a logarithm it stays finite where sigmoids are 0 or 1.
    """
    log_sigmoid = nn.functional.logsigmoid
    one = first.sigmoid() * (log_sigmoid(first) - log_sigmoid(second))
    zero = (-first).sigmoid() * (log_sigmoid(-first) - log_sigmoid(-second))
    return one + zero


def diversity_loss(expert_logits: list[torch.Tensor], label_counts: torch.Tensor, num_texts: int) -> torch.Tensor:
    """
    Minus the weighted KL divergence of the experts on the positive labels (eq. 6 and 9): the sum over the labels of a
    text, the mean over texts and, beyond the two experts of the paper, over the pairs in their order.

    Args:
        expert_logits: Logits of each expert on the positive labels of all texts, of shape (positives,).
        label_counts: Training texts of each of these labels, (positives,).
        num_texts: Number of texts.
    """
    total = expert_logits[0].new_zeros(())
    pairs = list(combinations(expert_logits, 2))
    for first, second in pairs:
        # 1 - max(p, q), from the logits so that small values keep their digits.
        both_miss = (-torch.maximum(first, second).detach()).sigmoid()
        # A label of validation texts may have no training text.
        weight = both_miss / label_counts.clamp(min=1)
        total = total - (weight * bernoulli_kl(first, second)).sum()
    return total / (len(pairs) * num_texts)
