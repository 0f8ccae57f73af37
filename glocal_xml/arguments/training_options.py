"""Arguments of a run that say how to train: those that XMTC needs, and those of Trainer with defaults that suit it."""

from dataclasses import dataclass

from .model_arguments import JSONObject
from .option import option


@dataclass
class TrainingOptions:
    """How to train and to evaluate; the other arguments of Trainer join them in `XMTCTrainingArguments`."""

    _argument_group_name = "training"

    module_learning_rates: JSONObject = option(
        None,
        "Learning rate by the beginning of the parameter name (a regular expression, the first that fits "
        'counts), as JSON: \'{"encoder": 5e-5, "global_head": 2e-3}\'; all others take `learning_rate`.',
    )
    label_shards: int = option(
        1,
        "Split the label table into this many parts, one for each process, which then all read the same "
        "texts; `examples/run_xmtc_no_trainer.py` alone.",
    )
    early_stopping_patience: int | None = option(None, "Stop after this many evaluations without a better one.")
    metrics_at: list[int] = option([1, 3, 5], "The k of P@k and the others.")
    propensity_a: float = option(0.55, "A of the propensity model behind PSP@k.")
    propensity_b: float = option(1.5, "B of the propensity model behind PSP@k.")
    minutes: float | None = option(
        None,
        "Time budget in minutes: experts are fitted on all texts, then heads and encoder are trained on "
        "as many as the remaining time allows. Includes reading and tokenizing, but not evaluating test texts.",
    )
    frozen_layers: int = option(
        0,
        "Lower layers of the encoder that stay as they are, and its embeddings with them: a step is "
        "shorter, which helps where there is time for an epoch or less. 0 trains all.",
    )
    frozen_encoder: bool | None = option(
        None,
        "Leave the encoder as it is: embeddings of all training texts are made once, and the head (the "
        "global branch of glocal_xml) is trained on them for ten epochs, in seconds to minutes. Default: with "
        "`minutes` and a sentence encoder, where the time would suffice for fewer than 20 texts of each label.",
    )
    blend: bool = option(
        True,
        "At the end, fit the weights of heads and experts on the validation texts, which makes scores "
        "calibrated probabilities; without it a score is the mean over heads and experts, as in the papers.",
    )
    threshold_f: str = option(
        "micro", "Average of the F1 that the threshold of the blend maximises: micro, macro or samples."
    )
    refit_experts: bool = option(True, "At the end, fit the experts again on training and validation texts.")
    resume_from_checkpoint: str | None = option(
        None, "Resume a run: `last` for its newest complete checkpoint, or a path."
    )
    overwrite_output: bool = option(False, "Delete the run that `output_dir` holds and start anew.")

    output_dir: str | None = option("outputs/run", "Folder of the run.")
    num_train_epochs: float = option(3.0, "How often all training texts are read.")
    learning_rate: float = option(1e-3, "Rate of parameters without a rate of their own.")
    adam_epsilon: float = option(
        1e-12, "Small, since the loss is a mean over labels: gradients shrink as the labels grow in number."
    )
    lr_scheduler_type: str = option("linear", "With warm-up, `linear` is the slanted triangular schedule.")
    warmup_steps: float = option(0.1, "Below 1: share of all steps; else their number.")
    per_device_train_batch_size: int = option(16, "Texts per device in a training step.")
    train_sampling_strategy: str = option(
        "group_by_length",
        "`group_by_length` puts texts of similar length into a batch, so that there is little padding; "
        "`random` or `sequential`.",
    )
    per_device_eval_batch_size: int = option(64, "Texts per device in evaluation.")
    save_strategy: str = option("epoch", "When to save, and to evaluate on validation texts: steps, epoch or no.")
    save_total_limit: int | None = option(2, "Checkpoints to keep.")
    metric_for_best_model: str | None = option(
        None, "Metric on the validation texts that decides what is best; default: P@k of the largest k."
    )
    greater_is_better: bool | None = option(True, "Whether more of that metric is better.")
    hub_strategy: str = option("end", "With `push_to_hub`: when to push; only `end`.")
    logging_steps: float = option(50, "Steps between two lines about the loss.")
    dataloader_pin_memory: bool | None = option(
        None, "Pinned memory for batches; default: where there is an accelerator."
    )
    disable_tqdm: bool | None = option(None, "No progress bars; default: off a terminal.")
    use_cpu: bool = option(False, "Leave accelerators alone.")
    seed: int = option(42, "Decides everything that is random.")
