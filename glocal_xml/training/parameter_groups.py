"""Parameters of a model in groups for its optimiser: a learning rate per module, and weight decay where it belongs."""

import re
from collections.abc import Iterable
from typing import Any

from torch import nn


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
        model: The model.
        learning_rate: Rate of all parameters that no pattern fits.
        module_learning_rates: Rate by regular expression, matched from the start of the parameter name; of several
            that fit, the first counts. One that decides nothing is an error, since it is most likely a slip.
        weight_decay: Weight decay of the parameters in `decayed`; all others have none.
        decayed: Names of the parameters with weight decay.
    """
    # Below the two wrappers of PEFT names are the model's.
    names = [name.removeprefix("base_model.model.") for name, _ in model.named_parameters()]
    patterns = deciding_patterns(names, module_learning_rates)
    groups: dict[tuple[float, float, bool], list[nn.Parameter]] = {}
    for (wrapped, parameter), pattern in zip(model.named_parameters(), patterns, strict=True):
        if parameter.requires_grad:
            rate = learning_rate if pattern is None else module_learning_rates[pattern]
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
