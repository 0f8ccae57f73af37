"""The optimiser of a training: what its arguments ask for, with a learning rate per module."""

from collections.abc import Iterable

import torch
from torch import nn
from transformers import Trainer
from transformers.trainer_pt_utils import get_parameter_names

from .arguments import XMTCTrainingArguments
from .parameter_groups import parameter_groups
from .rowwise_adamw import for_sparse_tables


def create_optimizer(
    model: nn.Module, args: XMTCTrainingArguments, decayed: Iterable[str] | None = None
) -> torch.optim.Optimizer:
    """
    An optimiser with the learning rates of `args`, which also knows label tables with sparse gradients.

    Args:
        model: The model to train.
        args: Which optimiser (`optim`), `learning_rate`, `module_learning_rates`, `weight_decay` and the like.
        decayed: Names of the parameters with weight decay; by default all but biases and norms.
    """
    if decayed is None:
        decayed = get_parameter_names(model, [nn.LayerNorm], ["bias", "norm"])
    groups = parameter_groups(
        model,
        learning_rate=args.learning_rate,
        module_learning_rates=args.module_learning_rates,
        weight_decay=args.weight_decay,
        decayed=set(decayed),
    )
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args, model)
    return for_sparse_tables(optimizer_class, model, args.weight_decay)(groups, **options)
