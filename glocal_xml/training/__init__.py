"""Training: arguments, the Trainer, its callbacks and optimisers, and what a loop of your own needs of them."""

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from .callbacks import evaluation_line
from .collapse import CollapseWatch
from .optimizer import clip_gradients, create_optimizer, parameter_groups
from .rankings import branch_metrics, final_name
from .run_parser import parse_arguments
from .trainer import XMTCTrainer, known_labels
from .whole_checkpoints import check_loss

__all__ = [
    "CollapseWatch",
    "DataArguments",
    "ModelArguments",
    "XMTCTrainer",
    "XMTCTrainingArguments",
    "branch_metrics",
    "check_loss",
    "clip_gradients",
    "create_optimizer",
    "evaluation_line",
    "final_name",
    "known_labels",
    "parameter_groups",
    "parse_arguments",
]
