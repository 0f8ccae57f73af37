"""Arguments of a run as plain dataclasses: importing them, as help texts do, takes no time."""

from .data_arguments import DataArguments
from .model_arguments import NO_ENCODER, ModelArguments, read_dict
from .training_options import TrainingOptions

__all__ = ["NO_ENCODER", "DataArguments", "ModelArguments", "TrainingOptions", "read_dict"]
