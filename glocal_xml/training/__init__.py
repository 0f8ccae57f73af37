"""Training: arguments, the Trainer, its callbacks and optimisers."""

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from .gradient_clipping import clip_gradients
from .parameter_groups import parameter_groups
from .rankings import branch_metrics
from .run_parser import parse_arguments
from .trainer import XMTCTrainer, known_labels

__all__ = [
    "DataArguments",
    "ModelArguments",
    "XMTCTrainer",
    "XMTCTrainingArguments",
    "branch_metrics",
    "clip_gradients",
    "known_labels",
    "parameter_groups",
    "parse_arguments",
]
