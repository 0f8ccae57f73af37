"""Gradient clipping over dense, sparse and sharded gradients together."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm


@torch.no_grad()
def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> torch.Tensor:
    """
    Scales all gradients down so that their common norm is at most `max_norm`, and returns the norm before that.

    `torch.nn.utils.clip_grad_norm_` for parameters some of which have sparse gradients (rows that occur twice are
    added up first), or are split over processes while others are whole: every process then gets the norm over all. An
    infinite `max_norm` only measures.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            # Gradients can be measured in one go where they lie alike.
            groups.setdefault(_layout(parameter.grad), []).append(parameter)
    if not groups:
        return torch.tensor(0.0)
    norms = [get_total_norm([_values(parameter.grad) for parameter in group]) for group in groups.values()]
    # Squares of shards are summed over their processes here.
    norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    for layout, group in groups.items():
        if layout == "sparse":
            factor = (max_norm / (total + 1e-6)).clamp(max=1.0)
            for parameter in group:
                parameter.grad.values().mul_(factor.to(parameter.grad.device))
        else:
            clip_grads_with_norm_(group, max_norm, total)
    return total


def _layout(gradient: torch.Tensor) -> object:
    """How a gradient lies in memory: sparse, on which devices it is split, or whole."""
    return "sparse" if gradient.is_sparse else getattr(gradient, "device_mesh", "whole")


def _values(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.values() if gradient.is_sparse else gradient
