"""Arguments of a run that say how to train: those that XMTC needs, and those of Trainer with defaults that suit it."""

from dataclasses import dataclass, field

from .model_arguments import JSONObject


@dataclass
class TrainingOptions:
    """How to train and to evaluate; the other arguments of Trainer join them in `XMTCTrainingArguments`."""

    _argument_group_name = "training"

    module_learning_rates: JSONObject = field(
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
    frozen_encoder: bool | None = field(
        default=None,
        metadata={
            "help": "Leave the encoder as it is: embeddings of all training texts are made once, and the head (the "
            "global branch of glocal_xml) is trained on them for ten epochs, in seconds to minutes. Default: with "
            "`minutes` and a sentence encoder, where the time would suffice for fewer than 20 texts of each label."
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
        metadata={"help": "Average of the F1 that the threshold of the blend maximises: micro, macro or samples."},
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
    num_train_epochs: float = field(default=3.0, metadata={"help": "How often all training texts are read."})
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
    use_cpu: bool = field(default=False, metadata={"help": "Leave accelerators alone."})
    seed: int = field(default=42, metadata={"help": "Decides everything that is random."})
