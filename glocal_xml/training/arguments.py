"""Arguments of a run: the model, the data, the training."""

import json
import logging
import math
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import TrainingArguments

from glocal_xml.experts.fit import EXPERTS
from glocal_xml.modeling import FAMILIES
from glocal_xml.modeling.configuration_base import F_KINDS

from .data_arguments import DataArguments
from .sharding_on_cpu import check_sharding

__all__ = ["MODEL_TYPES", "NO_ENCODER", "DataArguments", "ModelArguments", "XMTCTrainingArguments", "read_dict"]

logger = logging.getLogger(__name__)

# What `--encoder` is for a model of experts alone.
NO_ENCODER = "none"
# Numbers of Trainer that must be finite, and how low they may be; others it checks itself.
_LOWEST = {
    **dict.fromkeys(("learning_rate", "weight_decay", "max_grad_norm", "warmup_steps", "adam_epsilon", "seed"), 0),
    **dict.fromkeys(("adam_beta1", "adam_beta2", "label_smoothing_factor", "frozen_layers"), 0),
    **dict.fromkeys(("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps"), 1),
    **dict.fromkeys(("save_total_limit", "early_stopping_patience", "eval_accumulation_steps"), 1),
    # As whole numbers, or as shares of all steps.
    **dict.fromkeys(("logging_steps", "save_steps", "eval_steps", "minutes"), 0),
}
MODEL_TYPES = sorted(config_class.model_type for config_class in FAMILIES)


@dataclass
class ModelArguments:
    """Which model to train or to use."""

    _argument_group_name = "model"

    model_type: str = field(
        default="glocal_xml", metadata={"help": f"Family of a new model: {', '.join(MODEL_TYPES)}."}
    )
    encoder: str | None = field(
        default=None,
        metadata={
            "help": "Encoder a new model starts from: a folder, a Hub id, `minilm` for the one that the extra "
            "`minilm` installs, `word_lstm` for one made from the training texts and word vectors, or `none` for a "
            "model of experts alone, with the tokenizer of `minilm`."
        },
    )
    tokenizer: str | None = field(
        default=None,
        metadata={
            "help": "With `--encoder none`: folder or Hub id of a tokenizer, that of the encoder that may come later; "
            "default: that of `minilm` where it is installed, else one of words made from the training texts."
        },
    )
    model: str | None = field(
        default=None, metadata={"help": "Trained model (folder or Hub id) to evaluate, predict with or train further."}
    )
    model_config: dict | str | None = field(
        default=None, metadata={"help": "Fields of the model's configuration, as JSON: '{\"local_layer\": 1}'."}
    )

    label_tree: dict | str | None = field(
        default=None,
        metadata={
            "help": "Score clusters of labels first, and then the labels of the best ones alone: options to build the "
            'tree with, as JSON: \'{"cluster_size": 100, "height": 1, "branching": 16, "features": "texts", '
            "\"seed\": 0}' ('{}' for these, their defaults; features may be texts, names or text_embeddings), or the "
            "label_tree.npz of another run. For tens of thousands of labels and more."
        },
    )
    experts: list[str] = field(
        default_factory=lambda: list(EXPERTS),
        metadata={
            "help": "Experts beside the heads of the family, fitted on the training texts in seconds to minutes: "
            "`lexical` (a linear model over tokens), `memory` (similar training texts), or `none`."
        },
    )
    encoder_dropout: bool = field(
        default=False,
        metadata={
            "help": "Train with the dropout that the encoder was pretrained with. Off by default, which makes a step "
            "about a quarter shorter on a CPU."
        },
    )
    encoder_options: dict | str | None = field(
        default=None,
        metadata={
            "help": "Options with which the encoder of a new model is loaded, such as `revision`, as JSON: "
            '\'{"revision": "main"}\'. Those of word_lstm: vectors (a file), max_words, min_texts, '
            "embedding_size, lstm_size, num_hidden_layers, embedding_dropout, output_dropout."
        },
    )

    def __post_init__(self):
        self.model_config = read_dict("model_config", self.model_config)
        self.encoder_options = read_dict("encoder_options", self.encoder_options)
        # `{}` asks for a tree with the defaults, and a file name is no JSON.
        if isinstance(self.label_tree, str) and self.label_tree.lstrip().startswith("{"):
            self.label_tree = read_dict("label_tree", self.label_tree)
        if self.model_type not in MODEL_TYPES:
            raise ValueError(f"`model_type` must be one of {', '.join(MODEL_TYPES)}, got {self.model_type!r}.")
        self.experts = [name for name in self.experts if name != "none"]
        unknown = [name for name in self.experts if name not in EXPERTS]
        if unknown:
            raise ValueError(f"`experts` must be among {', '.join(EXPERTS)} and none, got {', '.join(unknown)}.")
        if self.model is not None and self.label_tree is not None:
            raise ValueError("`label_tree` is for new models; a trained model keeps the tree it has.")


@dataclass
class XMTCTrainingArguments(TrainingArguments):
    """Transformers' training arguments with the few that XMTC needs, and defaults that suit it."""

    _argument_group_name = "training"
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

    module_learning_rates: dict | str | None = field(
        default=None,
        metadata={
            "help": "Learning rate by the beginning of the parameter name (a regular expression, the first that fits "
            'counts), as JSON: \'{"encoder": 5e-5, "global_head": 2e-3}\'; all others take `learning_rate`.'
        },
    )
    label_shards: int = field(
        default=1,
        metadata={
            "help": "Split the label table into this many parts, one for each process, which then all read the same "
            "texts; `examples/run_xmtc_no_trainer.py` alone."
        },
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after this many evaluations without a better one."}
    )
    metrics_at: list[int] = field(default_factory=lambda: [1, 3, 5], metadata={"help": "The k of P@k and the others."})
    propensity_a: float = field(default=0.55, metadata={"help": "A of the propensity model behind PSP@k."})
    propensity_b: float = field(default=1.5, metadata={"help": "B of the propensity model behind PSP@k."})
    minutes: float | None = field(
        default=None,
        metadata={
            "help": "Time budget in minutes: experts are fitted on all texts, then heads and encoder are trained on "
            "as many as the remaining time allows. Includes reading and tokenizing, but not evaluating test texts."
        },
    )
    frozen_layers: int = field(
        default=0,
        metadata={
            "help": "Lower layers of the encoder that stay as they are, and its embeddings with them: a step is "
            "shorter, which helps where there is time for an epoch or less. 0 trains all."
        },
    )
    blend: bool = field(
        default=True,
        metadata={
            "help": "At the end, fit the weights of heads and experts on the validation texts, which makes scores "
            "calibrated probabilities; without it a score is the mean over heads and experts, as in the papers."
        },
    )
    threshold_f: str = field(
        default="micro",
        metadata={"help": f"Average of the F1 that the threshold of the blend maximises: {', '.join(F_KINDS)}."},
    )
    refit_experts: bool = field(
        default=True,
        metadata={"help": "At the end, fit the experts again on training and validation texts."},
    )
    resume_from_checkpoint: str | None = field(
        default=None, metadata={"help": "Resume a run: `last` for its newest complete checkpoint, or a path."}
    )
    overwrite_output: bool = field(
        default=False, metadata={"help": "Delete the run that `output_dir` holds and start anew."}
    )

    output_dir: str | None = field(default="outputs/run", metadata={"help": "Folder of the run."})
    learning_rate: float = field(default=1e-3, metadata={"help": "Rate of parameters without a rate of their own."})
    adam_epsilon: float = field(
        default=1e-12,
        metadata={
            "help": "Small, since the loss is a mean over labels: gradients shrink as the labels grow in number."
        },
    )
    lr_scheduler_type: str = field(
        default="linear", metadata={"help": "With warm-up, `linear` is the slanted triangular schedule."}
    )
    warmup_steps: float = field(default=0.1, metadata={"help": "Below 1: share of all steps; else their number."})
    per_device_train_batch_size: int = field(default=16, metadata={"help": "Texts per device in a training step."})
    train_sampling_strategy: str = field(
        default="group_by_length",
        metadata={
            "help": "`group_by_length` puts texts of similar length into a batch, so that there is little padding; "
            "`random` or `sequential`."
        },
    )
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Texts per device in evaluation."})
    save_strategy: str = field(
        default="epoch", metadata={"help": "When to save, and to evaluate on validation texts: steps, epoch or no."}
    )
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints to keep."})
    metric_for_best_model: str | None = field(
        default=None,
        metadata={"help": "Metric on the validation texts that decides what is best; default: P@k of the largest k."},
    )
    greater_is_better: bool | None = field(default=True, metadata={"help": "Whether more of that metric is better."})
    hub_strategy: str = field(default="end", metadata={"help": "With `push_to_hub`: when to push; only `end`."})
    logging_steps: float = field(default=50, metadata={"help": "Steps between two lines about the loss."})
    dataloader_pin_memory: bool | None = field(
        default=None, metadata={"help": "Pinned memory for batches; default: where there is an accelerator."}
    )
    disable_tqdm: bool | None = field(default=None, metadata={"help": "No progress bars; default: off a terminal."})

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
            raise ValueError(f"`hub_strategy` must be end, got {self.hub_strategy.value!r}.")
        if self.save_strategy not in ("no", "steps", "epoch"):
            raise ValueError(f"`save_strategy` must be steps, epoch or no, got {self.save_strategy.value!r}.")
        # A recipe may hold a single number.
        self.metrics_at = [self.metrics_at] if isinstance(self.metrics_at, int) else sorted(set(self.metrics_at))
        if not self.metrics_at or min(self.metrics_at) < 1:
            raise ValueError(f"`metrics_at` must hold numbers of at least 1, got {self.metrics_at}.")
        if self.threshold_f not in F_KINDS:
            raise ValueError(f"`threshold_f` must be one of {', '.join(F_KINDS)}, got {self.threshold_f!r}.")
        if not 0 < self.num_train_epochs < math.inf and self.max_steps <= 0:
            raise ValueError(f"`num_train_epochs` must be above 0, got {self.num_train_epochs}: nothing is trained.")
        if self.frozen_layers < 0:
            raise ValueError(f"`frozen_layers` must be at least 0, got {self.frozen_layers}.")
        if self.minutes is not None and self.minutes <= 0:
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
    for name, lowest in _LOWEST.items():
        value = getattr(args, name)
        # What a recipe holds may be no number, which Trainer says itself.
        highest = math.inf if isinstance(value, float) else 2**63
        if isinstance(value, int | float) and not lowest <= value < highest:
            raise ValueError(f"`{name}` must be a number from {lowest} up, got {value}.")


def read_dict(name: str, value: dict | str | None) -> dict[str, Any]:
    """A mapping that may have been given as JSON on the command line."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"`{name}` must be a JSON object, got {value!r} ({error}).") from None
    if value is not None and not isinstance(value, dict):
        raise ValueError(f"`{name}` must be a mapping, got {value!r}.")
    return value or {}
