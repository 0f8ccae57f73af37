"""The optimiser of a training: a learning rate per module, weight decay where it belongs, and sparse gradients."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_pt_utils import get_parameter_names

from .arguments import XMTCTrainingArguments
from .rowwise_adamw import for_sparse_tables


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
