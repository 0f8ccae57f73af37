"""Probabilities of several heads as logits, so that nothing saturates and no digit is lost."""

from functools import reduce

import torch
from torch import nn


def mean_probability_logits(logits: list[torch.Tensor]) -> torch.Tensor:
    """The logits whose sigmoid is the mean of the sigmoids of several."""
    if len(logits) == 1:
        return logits[0]
    log_sigmoid = nn.functional.logsigmoid
    log_yes = reduce(torch.logaddexp, map(log_sigmoid, logits))
    return log_yes - reduce(torch.logaddexp, (log_sigmoid(-scores) for scores in logits))


def product_logits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """
    The logits whose sigmoid is sigmoid(first) * sigmoid(second): eq. 2 of APLC-XLNet, in log space.

    With u = exp(-first) and v = exp(-second) the odds against the product are u + v + uv. Nothing saturates before the
    product itself does, and no product is above its factors.
    """
    return -torch.logaddexp(-first, nn.functional.softplus(-first) - second)


def at_least_float(logits: torch.Tensor) -> torch.Tensor:
    """Half precision would make ties of close scores."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
