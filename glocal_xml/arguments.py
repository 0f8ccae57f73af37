"""
Arguments of a run: which model, texts and labels from where, and how to train.

Plain dataclasses: importing them, as help texts do, takes no time.
"""

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

# An object, given as JSON on the command line; checked arguments hold the object.
if TYPE_CHECKING:
    JSONObject = dict[str, Any]
else:
    JSONObject = dict | str | None
# What `--encoder` is for a model of experts alone.
NO_ENCODER = "none"


def option(default: Any, text: str) -> Any:
    """A field of a dataclass with the text that help shows of its flag."""
    value = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return field(**value, metadata={"help": text})


@dataclass
class ModelArguments:
    """Which model to train or to use."""

    _argument_group_name = "model"

    model_type: str = option("glocal_xml", "Family of a new model: aplc_xlnet, glocal_xml, light_attention or me_xml.")
    encoder: str | None = option(
        None,
        "Encoder a new model starts from: a folder, a Hub id, `minilm` for the one that the extra "
        "`minilm` installs, `word_lstm` for one made from the training texts and word vectors, or `none` for a "
        "model of experts alone, with the tokenizer of `minilm`.",
    )
    tokenizer: str | None = option(
        None,
        "With `--encoder none`: folder or Hub id of a tokenizer, that of the encoder that may come later; "
        "default: that of `minilm` where it is installed, else one of words made from the training texts.",
    )
    model: str | None = option(None, "Trained model (folder or Hub id) to evaluate, predict with or train further.")
    model_config: JSONObject = option(None, "Fields of the model's configuration, as JSON: '{\"local_layer\": 1}'.")

    label_tree: dict | str | None = option(
        None,
        "Score clusters of labels first, and then the labels of the best ones alone: options to build the "
        'tree with, as JSON: \'{"cluster_size": 100, "height": 1, "branching": 16, "features": "texts", '
        "\"seed\": 0}' ('{}' for these, their defaults; features may be texts, names or text_embeddings), or the "
        "label_tree.npz of another run. For tens of thousands of labels and more.",
    )
    experts: list[str] = option(
        ["lexical", "memory", "dense"],
        "Experts beside the heads of the family, fitted on the training texts in seconds to minutes: "
        "`lexical` (a linear model over tokens), `memory` (training texts with similar words), `dense` (training "
        "texts with similar document embeddings; needs an encoder), or `none`.",
    )
    encoder_dropout: bool = option(
        False,
        "Train with the dropout that the encoder was pretrained with. Off by default, which makes a step "
        "about a quarter shorter on a CPU.",
    )
    encoder_options: JSONObject = option(
        None,
        "Options with which the encoder of a new model is loaded, such as `revision`, as JSON: "
        '\'{"revision": "main"}\'. Those of word_lstm: vectors (a file), max_words, min_texts, '
        "embedding_size, lstm_size, num_hidden_layers, embedding_dropout, output_dropout.",
    )

    def __post_init__(self):
        # Here, since help texts are made of these fields, and torch takes seconds.
        from glocal_xml.modeling import FAMILIES
        from glocal_xml.modeling.configuration_base import EXPERTS

        types = sorted(config_class.model_type for config_class in FAMILIES)
        self.model_config = read_dict("model_config", self.model_config)
        self.encoder_options = read_dict("encoder_options", self.encoder_options)
        # `{}` asks for a tree with the defaults, and a file name is no JSON.
        if isinstance(self.label_tree, str) and self.label_tree.lstrip().startswith("{"):
            self.label_tree = read_dict("label_tree", self.label_tree)
        if self.model_type not in types:
            raise ValueError(f"`model_type` must be one of {', '.join(types)}, got {self.model_type!r}.")
        self.experts = [name for name in dict.fromkeys(self.experts) if name != "none"]
        if self.encoder == NO_ENCODER:
            self.experts = [name for name in self.experts if name != "dense"]
        unknown = [str(name) for name in self.experts if name not in EXPERTS]
        if unknown:
            raise ValueError(f"`experts` must be among {', '.join(EXPERTS)} and none, got {', '.join(unknown)}.")
        if self.model is not None and self.label_tree is not None:
            raise ValueError("`label_tree` is for new models; a trained model keeps the tree it has.")


@dataclass
class DataArguments:
    """Where texts and labels come from."""

    _argument_group_name = "data"

    train_file: str | None = option(None, "Training texts with labels.")
    validation_file: str | None = option(None, "Texts on which the best checkpoint is chosen; never the test set.")
    validation_size: float | None = option(
        None,
        "Without a validation file: share (below 1) or number of training texts to hold out; 0 for none. "
        "Default: 10 %%, from 50 to 1,000, to fit the blend; none of fewer than 100 texts.",
    )
    test_file: str | None = option(None, "Texts with labels to evaluate the final model on.")
    predict_file: str | None = option(None, "Texts to predict labels for; labels optional.")
    dataset_name: str | None = option(None, "Instead of files: a dataset on the Hub or on disk with its own splits.")
    dataset_config: str | None = option(None, "Configuration of that dataset.")
    file_format: str | None = option(
        None, "jsonl, csv, tsv, text_pair, aplc_csv, xc_json, pecos, pecos_npz; found by content when left out."
    )
    text_column: str = option("text", "Field or column of the text.")
    labels_column: str = option("labels", "Field or column of the labels.")
    label_delimiter: str | None = option(
        None,
        "Separates labels written in one string. By default the one of `,`, `;` and `|` that gives known labels; in "
        "training files the only one that the first rows hold, or a comma where there are several, with a warning.",
    )
    label_map: str | None = option(None, "xc_json, pecos and pecos_npz: file with the names of the label indices.")
    label_names_file: str | None = option(
        None, "All labels there are, one per line: a taxonomy with more labels than the training texts."
    )
    label_texts: bool = option(
        True,
        "Use label names as additional training texts of the experts, if they are words and not codes; "
        "this helps rare labels.",
    )
    label_texts_file: str | None = option(
        None,
        "Names of labels in words, where the labels are codes: a line for each, with the label, its name "
        "and, where there are some, other names (separated by `;`), with tabs between; may be gzipped.",
    )
    allow_no_labels: bool = option(False, "Take texts without labels, for which every label is wrong; else an error.")
    bad_rows: str = option("error", "`error` stops at a bad row and names it, `skip` counts and reports them.")
    streaming: bool = option(False, "Read training texts while training, for sets larger than the disk cache.")
    max_length: int | None = option(
        None, "Longest text in tokens, the rest is cut off; default: the trained model's, 256 for a new one."
    )
    windows: str | None = option(
        None,
        "Read texts beyond max_length too, in windows of that length: in training each window counts as a "
        "text, in evaluation the score of a label is the `max` or the `mean` over the windows of a text.",
    )
    window_overlap: int | None = option(None, "Tokens that windows share, at most half of them; default: a quarter.")
    max_windows: int = option(8, "Most windows of a text; what follows is not read.")
    max_train_texts: int | None = option(None, "Train on a random part of this size.")
    max_test_texts: int | None = option(None, "Evaluate on a random part of this size.")

    def __post_init__(self):
        for name in ("max_length", "max_windows", "max_train_texts", "max_test_texts"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1, got {value}.")
        size = self.validation_size
        if size is not None and not (0 <= size < 1 or (1 <= size < math.inf and size == int(size))):
            raise ValueError(f"`validation_size` must be a share below 1 or a whole number, 0 for none, got {size}.")


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
    resume_from_checkpoint: str | None = option(None, "Resume a run: `last`, its newest whole checkpoint, or a path.")
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
    dataloader_pin_memory: bool | None = option(None, "Pinned memory for batches; default: with an accelerator.")
    disable_tqdm: bool | None = option(None, "No progress bars; default: off a terminal.")
    use_cpu: bool = option(False, "Leave accelerators alone.")
    seed: int = option(42, "Decides everything that is random.")


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
