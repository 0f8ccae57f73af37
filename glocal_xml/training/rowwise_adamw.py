"""AdamW that touches only the rows in play of tables with sparse gradients."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

# Rows updated at a time: their states stay in the cache.
_ROWS = 4096


class RowwiseAdamW(torch.optim.AdamW):
    """
    `torch.optim.AdamW` for models with label trees, whose label tables have sparse gradients.

    Parameters with dense gradients are updated as by AdamW. Of a table with a sparse gradient only the rows that the
    gradient holds are read or written, in the weights and in both moments, and each row counts its own steps. It
    differs from dense AdamW in what happens to a row while it is out of play: dense AdamW keeps moving it by its old
    momentum, lets its moments fade and decays its weight; here it rests. A row that is in play at every step is
    updated exactly as by AdamW.

    Args:
        params, options: As for `torch.optim.AdamW`; `amsgrad`, `maximize` and `capturable` are not supported.
    """

    def __init__(self, params: Any, **options: Any):
        for name in ("amsgrad", "maximize", "capturable", "differentiable"):
            if options.get(name):
                raise ValueError(f"`{name}` is not supported with row-wise updates: leave it out.")
        super().__init__(params, **options)
        # A fused AdamW would unscale gradients within its step, where sparse ones are not seen.
        self._step_supports_amp_scaling = False

    @torch.no_grad()
    def step(self, closure: Callable[[], torch.Tensor] | None = None) -> torch.Tensor | None:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._check_gradients()
        sparse = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    sparse.append((parameter, parameter.grad))
                    self._update_rows(group, parameter)
        # AdamW refuses sparse gradients.
        for parameter, _ in sparse:
            parameter.grad = None
        super().step()
        for parameter, gradient in sparse:
            parameter.grad = gradient
        return loss

    def _check_gradients(self) -> None:
        for parameter in self.state:
            counts_rows = self.state[parameter]["step"].dim() > 0
            if counts_rows and parameter.grad is not None and not parameter.grad.is_sparse:
                raise ValueError(
                    f"A table of shape {tuple(parameter.shape)} had sparse gradients and now has a dense one: take "
                    "the loss from `model(..., labels=...)`, not from the logits of all labels."
                )

    def _update_rows(self, group: dict[str, Any], parameter: nn.Parameter) -> None:
        gradient = parameter.grad.coalesce()
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros(len(parameter), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        rate, (beta1, beta2) = float(group["lr"]), group["betas"]
        chunks = zip(gradient.indices()[0].split(_ROWS), gradient.values().split(_ROWS), strict=True)
        for rows, values in chunks:
            steps = state["step"][rows] + 1  # (rows,)
            first = state["exp_avg"][rows].lerp_(values, 1 - beta1)  # (rows, size)
            second = state["exp_avg_sq"][rows].mul_(beta2).addcmul_(values, values, value=1 - beta2)
            state["step"][rows], state["exp_avg"][rows], state["exp_avg_sq"][rows] = steps, first, second
            shape = (-1, *[1] * (values.dim() - 1))
            bias1, bias2 = (1 - beta1**steps).view(shape), (1 - beta2**steps).view(shape)
            weights = parameter[rows].mul_(1 - rate * group["weight_decay"])
            change = first.div_(bias1).div_(second.div_(bias2).sqrt_().add_(group["eps"]))
            parameter[rows] = weights.sub_(change, alpha=rate)


def for_sparse_tables(
    optimizer_class: type[torch.optim.Optimizer], model: nn.Module, weight_decay: float = 0.0
) -> type[torch.optim.Optimizer]:
    """The optimiser to take for a model: where it has tables with sparse gradients, one that knows these."""
    if not any(isinstance(module, nn.Embedding) and module.sparse for module in model.modules()):
        return optimizer_class
    if optimizer_class is torch.optim.AdamW:
        return RowwiseAdamW
    if optimizer_class is RowwiseAdamW or (optimizer_class is torch.optim.SGD and weight_decay == 0):
        return optimizer_class
    raise ValueError(
        f"A model with a label tree has sparse gradients, which {optimizer_class.__name__} does not know: use "
        "`--optim adamw_torch` (row-wise for label tables) or `--optim sgd` without weight decay."
    )
