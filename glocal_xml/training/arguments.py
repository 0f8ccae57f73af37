"""Arguments of training: those of this package on top of Transformers' own, and what several processes may train."""

import logging
import math
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments
from transformers.trainer_utils import HubStrategy, SaveStrategy

from glocal_xml.arguments import DataArguments, ModelArguments, TrainingOptions, read_dict
from glocal_xml.modeling import XMTCConfig
from glocal_xml.modeling.configuration_base import F_KINDS

__all__ = ["DataArguments", "ModelArguments", "XMTCTrainingArguments"]

logger = logging.getLogger(__name__)

# Numbers of Trainer that must be finite, and how low they may be; others it checks itself.
_LOWEST = {
    # Steps as whole numbers, or as shares of all.
    0: "learning_rate weight_decay max_grad_norm warmup_steps adam_epsilon adam_beta1 adam_beta2 seed frozen_layers "
    "label_smoothing_factor logging_steps save_steps eval_steps",
    1: "per_device_train_batch_size per_device_eval_batch_size gradient_accumulation_steps save_total_limit "
    "early_stopping_patience eval_accumulation_steps",
}


@dataclass
class XMTCTrainingArguments(TrainingOptions, TrainingArguments):
    """Transformers' training arguments with the few that XMTC needs, and defaults that suit it."""

    # Which options are dictionaries, written as JSON on the command line.
    _VALID_DICT_FIELDS = [*TrainingArguments._VALID_DICT_FIELDS, "module_learning_rates"]

    # What a run does follows from the files it is given. With validation texts it evaluates whenever it saves, and
    # ends with the best checkpoint.
    do_train: bool = field(default=False, init=False)
    do_eval: bool = field(default=False, init=False)
    do_predict: bool = field(default=False, init=False)
    eval_strategy: str = field(default="no", init=False)
    eval_steps: float | None = field(default=None, init=False)
    load_best_model_at_end: bool = field(default=False, init=False)

    def __post_init__(self):
        _check_numbers(self)
        if self.disable_tqdm is None:
            self.disable_tqdm = not sys.stderr.isatty()
        accelerated = torch.accelerator.is_available() and not self.use_cpu
        if self.dataloader_pin_memory is None:
            self.dataloader_pin_memory = accelerated
        for name in ("fp16", "bf16"):
            # Emulated half precision on a CPU is hundreds of times slower than none.
            if getattr(self, name) and not accelerated:
                logger.warning("%s asked for, but this device does not speed it up: using single precision.", name)
                setattr(self, name, False)
        if not accelerated:
            check_sharding({"FSDP": self.fsdp, "DeepSpeed": self.deepspeed})
        # A branch on an early layer leaves those above without gradient, and so does a batch with label clusters that
        # none of its texts needs; Trainer's default would stop at that with gradient checkpointing.
        if self.ddp_find_unused_parameters is None:
            self.ddp_find_unused_parameters = True
        # All processes hold the same label tree, which would be sent around at every step.
        if self.ddp_broadcast_buffers is None:
            self.ddp_broadcast_buffers = False
        super().__post_init__()
        if self.hub_strategy != "end":
            # Trainer would upload the folder as it is, with pickled arguments that hold the token.
            raise ValueError(f"`hub_strategy` must be end, got {HubStrategy(self.hub_strategy).value!r}.")
        if self.save_strategy not in ("no", "steps", "epoch"):
            raise ValueError(
                f"`save_strategy` must be steps, epoch or no, got {SaveStrategy(self.save_strategy).value!r}."
            )
        # A recipe may hold a single number.
        self.metrics_at = [self.metrics_at] if isinstance(self.metrics_at, int) else sorted(set(self.metrics_at))
        if not self.metrics_at or min(self.metrics_at) < 1:
            raise ValueError(f"`metrics_at` must hold numbers of at least 1, got {self.metrics_at}.")
        if self.threshold_f not in F_KINDS:
            raise ValueError(f"`threshold_f` must be one of {', '.join(F_KINDS)}, got {self.threshold_f!r}.")
        if not 0 < self.num_train_epochs < math.inf and self.max_steps <= 0:
            raise ValueError(f"`num_train_epochs` must be above 0, got {self.num_train_epochs}: nothing is trained.")
        if self.minutes is not None and not 0 < self.minutes < math.inf:
            raise ValueError(f"`minutes` must be above 0, got {self.minutes}.")
        rates = read_dict("module_learning_rates", self.module_learning_rates)
        try:
            self.module_learning_rates = {pattern: float(rate) for pattern, rate in rates.items()}
            if not all(0 <= rate < math.inf for rate in self.module_learning_rates.values()):
                raise ValueError
        except (TypeError, ValueError, OverflowError):
            raise ValueError(f"`module_learning_rates` must hold numbers from 0 up, got {rates}.") from None


def _check_numbers(args: "XMTCTrainingArguments") -> None:
    """Refuses numbers that are not finite, or too low, of which Trainer would make a traceback or another run."""
    for lowest, name in ((lowest, name) for lowest, names in _LOWEST.items() for name in names.split()):
        value = getattr(args, name)
        # What a recipe holds may be no number, which Trainer says itself.
        highest = math.inf if isinstance(value, float) else 2**63
        if isinstance(value, int | float) and not lowest <= value < highest:
            raise ValueError(f"`{name}` must be a number from {lowest} up, got {value}.")


def check_sharding(asked: dict[str, Any]) -> None:
    """
    Refuses libraries as arguments of Trainer, given by their names. Of a configuration of `accelerate launch`, which
    may be shared with other machines, says that every process holds the whole model.
    """
    for name, argument in asked.items():
        if argument:
            raise ValueError(f"`{name.lower()}` is for accelerators, and this run is on a CPU: leave it out.")
        is_configured = os.environ.get(f"ACCELERATE_USE_{name.upper()}") == "true"
        if is_configured and int(os.environ.get("RANK", 0)) == 0:
            logger.warning(
                "The configuration asks for %s, which Accelerate has for accelerators alone: on CPUs every process "
                "holds the whole model.",
                name,
            )


def check_together(number: int) -> None:
    """Refuses processes that a launcher started but of which each would train alone, and write to the same folder."""
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started != number:
        raise ValueError(
            f"{started} processes were started, but {number} would train together, since no accelerators were found: "
            "pass `--use_cpu true`, or set ACCELERATE_USE_CPU=true."
        )


def check_processes(config: XMTCConfig, processes: int) -> None:
    """Refuses levels of a label tree that are trained one after the other by several processes."""
    if processes > 1 and getattr(config, "level_epochs", None):
        raise ValueError(
            f"`level_epochs` with {processes} processes: data parallelism wants a gradient of every sparse table at "
            "every step, and levels that are not yet trained have none. Train in one process, or all levels jointly "
            "(`level_epochs` 0)."
        )
