"""The optimiser of a training: a learning rate per module, weight decay where it belongs, and sparse gradients."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from transformers import Trainer
from transformers.trainer_pt_utils import get_parameter_names

from .arguments import XMTCTrainingArguments

# Rows updated at a time: their states stay in the cache.
_ROWS = 4096


def create_optimizer(
    model: nn.Module, args: XMTCTrainingArguments, decayed: Iterable[str] | None = None
) -> torch.optim.Optimizer:
    """
    The optimiser of `args` (`optim`), with the learning rates and the weight decay of these, which also knows label
    tables with sparse gradients. All parameters but biases and norms are decayed, or those of the given names.
    """
    if decayed is None:
        decayed = get_parameter_names(model, [nn.LayerNorm], ["bias", "norm"])
    names = ("learning_rate", "module_learning_rates", "weight_decay")
    groups = parameter_groups(model, decayed=set(decayed), **{name: getattr(args, name) for name in names})
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
    return for_sparse_tables(optimizer_class, model, args.weight_decay)(groups, **options)


def parameter_groups(
    model: nn.Module,
    *,
    learning_rate: float,
    module_learning_rates: dict[str, float],
    weight_decay: float,
    decayed: set[str],
) -> list[dict[str, Any]]:
    """
    Optimiser groups with a learning rate per module.

    Args:
        learning_rate: Rate of all parameters that no pattern fits.
        module_learning_rates: Rate by regular expression, matched from the start of the parameter name; of several
            that fit, the first counts. One that decides nothing is an error, since it is most likely a slip.
        weight_decay, decayed: Weight decay, and the names of the parameters that have it.
    """
    # Below the two wrappers of PEFT names are the model's.
    names = [name.removeprefix("base_model.model.") for name, _ in model.named_parameters()]
    patterns = deciding_patterns(names, module_learning_rates)
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for (wrapped, parameter), pattern in zip(model.named_parameters(), patterns, strict=True):
        if parameter.requires_grad:
            rate = module_learning_rates.get(pattern, learning_rate)
            # Parameters that are split over processes and whole ones cannot be updated by one call.
            split = hasattr(parameter, "to_local")
            groups.setdefault((rate, weight_decay if wrapped in decayed else 0.0, split), []).append(parameter)
    if unused := [pattern for pattern in module_learning_rates if pattern not in patterns]:
        modules = sorted({re.escape(".".join(name.split(".")[:2])) for name, _ in model.named_parameters()})
        raise ValueError(
            f"The learning rate patterns {', '.join(map(repr, unused))} decide no parameter: each must fit the start "
            f"of a name that no earlier pattern fits. The modules are {', '.join(modules)}."
        )
    return [{"params": group, "lr": rate, "weight_decay": decay} for (rate, decay, _), group in groups.items()]


def deciding_patterns(names: Iterable[str], rates: dict[str, float]) -> list[str | None]:
    """For the name of each parameter the first pattern that fits, which decides its learning rate; None without."""
    try:
        patterns = {pattern: re.compile(pattern) for pattern in rates}
    except re.error as error:
        raise ValueError(f"The learning rate pattern {error.pattern!r} is no regular expression: {error}.") from None
    return [next((pattern for pattern in rates if patterns[pattern].match(name)), None) for name in names]


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
        sparse = []
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.grad.is_sparse:
                    sparse.append((parameter, parameter.grad))
                    self._update_rows(group, parameter)
                elif parameter.grad is not None and parameter in self.state and self.state[parameter]["step"].dim():
                    raise ValueError(
                        f"A table of shape {tuple(parameter.shape)} had sparse gradients and now has a dense one: "
                        "take the loss from `model(..., labels=...)`, not from the logits of all labels."
                    )
        # AdamW refuses sparse gradients.
        for parameter, _ in sparse:
            parameter.grad = None
        super().step()
        for parameter, gradient in sparse:
            parameter.grad = gradient
        return loss

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
            # Gradients can be measured in one go where they lie alike: sparse, on the same devices, or whole.
            layout = "sparse" if parameter.grad.is_sparse else getattr(parameter.grad, "device_mesh", "whole")
            groups.setdefault(layout, []).append(parameter)
    if not groups:
        return torch.tensor(0.0)
    norms = [
        get_total_norm([parameter.grad.values() if layout == "sparse" else parameter.grad for parameter in group])
        for layout, group in groups.items()
    ]
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
