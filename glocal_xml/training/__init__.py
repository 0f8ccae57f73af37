"""Training: arguments, the Trainer, and one run from files to results."""

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from .ensemble import run_ensemble
from .ensemble_ranking import ensemble_top_k
from .fit import fit
from .gradient_clipping import clip_gradients
from .model_card import card_of_run, render_model_card
from .parameter_groups import parameter_groups
from .report import branch_metrics
from .run import main, run
from .run_parser import parse_arguments
from .trainer import XMTCTrainer, known_labels

__all__ = [
    "DataArguments",
    "ModelArguments",
    "XMTCTrainer",
    "XMTCTrainingArguments",
    "branch_metrics",
    "card_of_run",
    "clip_gradients",
    "ensemble_top_k",
    "fit",
    "known_labels",
    "main",
    "parameter_groups",
    "parse_arguments",
    "render_model_card",
    "run",
    "run_ensemble",
]
