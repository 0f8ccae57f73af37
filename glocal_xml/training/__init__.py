"""Training: arguments, the Trainer, and one run from files to results."""

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments, parse_arguments
from .report import branch_metrics
from .run import main, run
from .trainer import XMTCTrainer, known_labels, parameter_groups

__all__ = [
    "DataArguments",
    "ModelArguments",
    "XMTCTrainer",
    "XMTCTrainingArguments",
    "branch_metrics",
    "known_labels",
    "main",
    "parameter_groups",
    "parse_arguments",
    "run",
]
