"""Fields that the configurations of the families share."""

import os
from collections import Counter
from dataclasses import field
from math import isfinite
from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_MASKED_LM_MAPPING, AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME, cached_file, logging

logger = logging.get_logger(__name__)
# Names of the labels beside the weights, line i for label i.
LABELS_FILE = "labels.txt"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
POOLINGS = ("first", "last", "mean")
F_KINDS = ("micro", "macro", "samples")
# What a model may have beside its heads, each with a field of its sizes.
EXPERTS = ("lexical", "memory", "dense")


def of_encoder(name: str) -> property:
    """A field that is that of the encoder."""
    return property(lambda self: getattr(self.encoder, name), lambda self, value: setattr(self.encoder, name, value))


def check_least(config: PreTrainedConfig, least: int, *names: str) -> None:
    """Refuses fields that are set and below the least that they may be."""
    for name in names:
        if (value := getattr(config, name)) is not None and value < least:
            raise ValueError(f"`{name}` must be at least {least}, got {value}.")


def check_dropout(config: PreTrainedConfig, *names: str) -> None:
    """Refuses a dropout that leaves nothing, or is none."""
    for name in names:
        if not 0 <= (value := getattr(config, name)) < 1:
            raise ValueError(f"`{name}` must lie in 0 to 1, 1 excluded, got {value}.")


@strict
class XMTCConfig(PreTrainedConfig):
    """
    What every family for extreme multi-label text classification is configured by.

    Args:
        encoder: Configuration of the text encoder; BERT's defaults when left out.
        num_labels: Size of the label space. Names of labels are in `labels.txt` beside the weights, not in this
            configuration: at half a million labels they would be tens of megabytes of JSON. `id2label` can be given
            and read as elsewhere in Transformers, up to `max_logits_labels` labels.
        document_pooling: What stands for a text: its `"first"` token, its `"last"`, or the `"mean"` of all. By default
            the last where tokens see only those before them (Qwen, Llama, GPT-2), and for XLNet; the mean for
            word_lstm; else the first. `from_encoder` takes what a sentence-transformers folder says.
        label_bias: Adds one bias per label to each branch. Started at the training log-odds (`model.start_label_bias`)
            it saves the epochs that otherwise go into pushing thousands of labels down. The papers have none.
        top_k: How many labels a prediction holds.
        max_logits_labels: Up to this many labels an evaluation also returns `logits` over all of them; beyond it only
            on request.
        label_chunk_bytes: Memory that the scores of one chunk of labels may take. It bounds memory and changes no
            result. By default 8 MB on a CPU, which stays in its cache, and 256 MB on an accelerator.
        initializer_range: Standard deviation of freshly made label embeddings.
        lexical, memory, dense: Sizes of the experts ([`LexicalExpert`], [`MemoryExpert`], [`DenseMemory`]), set when
            they are fitted; `None` for none.
        blend: What was fitted on held-out texts ([`Blend`]): `weights` of the branches, of the log `frequency` of a
            label and a `bias`; the `threshold` with the best F measure `f` (micro, macro or samples) and `beta`; the
            number of `texts`. Without it the probability of a label is the mean over the branches.
        problem_type: Tells Transformers' own text-classification pipeline that a probability is a sigmoid.
        has_label_names: Whether `labels.txt` belongs to the weights; set with the names.
    """

    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["top_k_ids", "top_k_scores", "branch_top_k_ids", "branch_logits", "loss_terms"]
    # Fields that older files lack, with what such a model has.
    fields_of_old_files: ClassVar[dict[str, Any]] = {}

    encoder: PreTrainedConfig | dict | None = None
    num_labels: int = 2
    document_pooling: str | None = None
    label_bias: bool = True
    top_k: int = 10
    max_logits_labels: int = 50_000
    label_chunk_bytes: int | None = None
    initializer_range: float | int = 0.02
    lexical: dict | None = None
    memory: dict | None = None
    dense: dict | None = None
    blend: dict | None = None
    problem_type: str | None = "multi_label_classification"
    has_label_names: bool = False

    def __post_init__(self, **kwargs: Any):
        # Where this package is, its pipeline is registered, and no code beside the weights need be trusted for it.
        if not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            kwargs.pop("custom_pipelines", None)
        # Of files that were written before there was a blend.
        if kwargs.pop("calibration", None) is not None:
            logger.warning_once(
                "The `calibration` (temperature) of this model is ignored: `glocal-xml calibrate MODEL FILE` fits a "
                "blend in its place, with a threshold."
            )
        self.check_number_of_names(vars(self).get("id2label"))
        super().__post_init__(**kwargs)
        if self.document_pooling is None and self.encoder is not None:
            # An LSTM has no token that stands for the text.
            otherwise = "mean" if self.encoder.model_type == "word_lstm" else "first"
            self.document_pooling = "last" if _is_causal(self.encoder) else otherwise

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        if (found := config_dict.get("model_type", cls.model_type)) != cls.model_type:
            raise ValueError(
                f"These are files of a model of the type {found}, not {cls.model_type}: start from an encoder with "
                "`from_encoder`; load a model of another family with `AutoModel.from_pretrained`."
            )
        # Only files have the version of Transformers in them.
        if "transformers_version" in config_dict:
            encoder = config_dict.get("encoder") or {}
            pooling = {"document_pooling": "last" if encoder.get("model_type") == "xlnet" else "first"}
            config_dict = (pooling if encoder else {}) | cls.fields_of_old_files | config_dict
        found = super().from_dict(config_dict, **kwargs)
        config = found[0] if isinstance(found, tuple) else found
        config.check_number_of_names(kwargs.get("id2label"))
        if config.has_label_names and config.given_label_names is None:
            # They are read when they are asked for.
            config.id2label = None
        return found

    def check_number_of_names(self, names: dict[int, str] | None) -> None:
        """Refuses names of other labels."""
        if names is not None and len(names) != self.num_labels:
            raise ValueError(f"`id2label` names {len(names)} labels: pass `num_labels={len(names)}` with it.")

    def to_dict(self) -> dict[str, Any]:
        """All fields but the names of the labels, which are kept in `labels.txt`."""
        return {name: value for name, value in super().to_dict().items() if name not in ("id2label", "label2id")}

    # Other libraries ask the whole model.
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = map(
        of_encoder, ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    )

    @property
    def whole_loss_epoch(self) -> int:
        """Epoch from which on all terms of the loss are there, the first being 0."""
        return 0

    @property
    def id2label(self) -> dict[int, str] | None:
        """Names by id, for Transformers' own pipeline; `None` for so many labels that it has no logits to name."""
        names = vars(self).get("id2label")
        if (names is None or len(names) != self.num_labels) and self.num_labels <= self.max_logits_labels:
            place = {"revision": getattr(self, "_commit_hash", None)}
            kept = find_label_names(self.name_or_path, **place) if self.has_label_names and self.name_or_path else None
            if kept is None or len(kept) != self.num_labels:
                kept = [f"LABEL_{i}" for i in range(self.num_labels)]
            names = vars(self)["id2label"] = dict(enumerate(kept))
        return names if self.num_labels <= self.max_logits_labels else None

    @id2label.setter
    def id2label(self, names: dict[int, str] | None) -> None:
        if names is not None:
            # In JSON ids are strings, of which 10 comes before 2.
            names = {int(i): name for i, name in (names.items() if isinstance(names, dict) else enumerate(names))}
            if sorted(names) != list(range(len(names))):
                raise ValueError(f"`id2label` must name the ids 0 to {len(names) - 1}, got {sorted(names)[:5]} ….")
        vars(self)["id2label"] = names

    label2id = property(lambda self: self.id2label and {name: i for i, name in self.id2label.items()}, lambda *_: None)

    @property
    def given_label_names(self) -> list[str] | None:
        """The names of `id2label` in the order of ids, where they were given."""
        names = [name for _, name in sorted((self.id2label or {}).items())]
        return None if all(name == f"LABEL_{i}" for i, name in enumerate(names)) else names

    def name_labels(self, names: list[str] | None) -> list[str] | None:
        """Checks, takes over and returns names of all labels, or none."""
        if names is None:
            self.has_label_names, self.id2label = False, None
            return None
        if isinstance(names, str | set | frozenset):
            raise ValueError(f"Label names must be a list, in the order of ids, got a {type(names).__name__}.")
        names = list(names)
        if len(names) != self.num_labels:
            raise ValueError(f"{LABELS_FILE}: {len(names)} label names for a model of {self.num_labels} labels.")
        for name in names:
            if not isinstance(name, str) or "\n" in name or "\r" in name:
                raise ValueError(f"The label name {name!r} must be a string without line breaks, for {LABELS_FILE}.")
        if len(set(names)) != len(names):
            twice = Counter(names).most_common(1)[0][0]
            raise ValueError(f"The label name {twice!r} is there twice: give every label a name of its own.")
        self.has_label_names = True
        self.id2label = None if len(names) > self.max_logits_labels else dict(enumerate(names))
        return names

    def tell_of_missing_logits(self, asked: bool | None) -> None:
        """Says what to do where nobody has said whether logits of all labels are wanted: other tools need them."""
        if asked is None:
            logger.warning_once('No logits of so many labels: use `pipeline("extreme-multi-label-classification")`.')

    def recorded_outputs(self, asked: dict[str, Any]) -> list[str]:
        """Which outputs of all layers a call of the model asks for, or else this configuration."""
        names = {name: asked.get(f"output_{name}") for name in ("hidden_states", "attentions")}
        return [name for name, value in names.items() if (getattr(self, f"output_{name}") if value is None else value)]

    def wants_logits(self, asked: bool | None) -> bool:
        """Whether a prediction returns the logits of all labels."""
        return self.num_labels <= self.max_logits_labels if asked is None else asked

    def check_label_bias(self) -> None:
        """Refuses to start biases that the model does not have."""
        if not self.label_bias:
            raise ValueError("This model has no label bias: build it with `label_bias=True`.")

    def validate_label_space(self):
        """As all `validate_…`, run by `@strict` at construction and before saving."""
        check_least(self, 1, "num_labels", "top_k", "label_chunk_bytes")
        check_least(self, 0, "max_logits_labels")
        if (pooling := self.document_pooling) not in (None, *POOLINGS):
            raise ValueError(f"`document_pooling` must be one of {', '.join(POOLINGS)}, got {pooling!r}.")

    def validate_blend(self):
        if self.dense is not None and self.encoder is None:
            raise ValueError("`dense` compares embeddings of texts, which a model without an encoder does not have.")
        if self.blend is None:
            return
        weights, threshold, kind = (self.blend.get(name) for name in ("weights", "threshold", "f"))
        is_known = isinstance(weights, dict) and all(map(_is_number, [*weights.values(), threshold]))
        if not is_known or kind not in F_KINDS or not 0 <= threshold <= 1:
            raise ValueError(
                "`blend` must hold `weights` that are numbers, a `threshold` in 0 to 1 and an `f` of "
                f"{', '.join(F_KINDS)}, got {self.blend}; `glocal-xml calibrate` fits it."
            )


def _is_causal(encoder: PreTrainedConfig) -> bool:
    """Whether tokens see only those before them; said of XLNet as well, whose special token is the last."""
    # CLIP's text model generates nothing, but reads from left to right all the same.
    if getattr(encoder, "is_decoder", False) or encoder.model_type == "clip_text_model":
        return True
    # Those that can also fill in a mask see both ways, and so does BERT for generation.
    generates = type(encoder) in MODEL_FOR_CAUSAL_LM_MAPPING and type(encoder) not in MODEL_FOR_MASKED_LM_MAPPING
    both_ways = encoder.is_encoder_decoder or encoder.model_type == "bert-generation"
    both_ways |= getattr(encoder, "use_bidirectional_attention", None) in (True, "all")
    return generates and not both_ways and getattr(encoder, "is_causal", True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


@strict
class AttentionConfig(XMTCConfig):
    """
    What the families with label-word attention are configured by; they score all labels or, with a label tree,
    candidates alone. Shared fields are described in [`XMTCConfig`].

    Args:
        attention_scoring: How a label is scored by the words that it reads. `"mlp"`: one MLP shared by all labels, as
            in the papers. `"evidence"`: an output row per label ([`EvidenceHead`]); the share of each word in the
            score is then known exactly.
        key_size, value_size: Evidence: size of the keys of tokens and the queries of labels, and of the values of
            tokens and the output rows of labels; that of the encoder when left out.
        tied_outputs: Evidence: whether the output row of a label is its query, which halves the label tables.
        tree_levels: Number of nodes of each level of the label tree from the top, the root left out
            (`LabelTree.level_sizes`); those of the last level are clusters of labels. With no levels every label is
            scored. The tree itself is kept with the weights: `model.set_label_tree`.
        beam: How many nodes of each level a prediction expands; more where `top_k` needs it.
        training_beam: How many nodes of each level a training step expands: those that lead to labels of the text,
            then the ones that now score highest, whose labels are the negatives.
    """

    attention_scoring: Literal["evidence", "mlp"] = "mlp"
    key_size: int | None = None
    value_size: int | None = None
    tied_outputs: bool = False
    tree_levels: list[int] = field(default_factory=list)
    beam: int = 16
    training_beam: int = 16

    @property
    def evidence_sizes(self) -> tuple[int, int]:
        """Size of keys and of values."""
        default = getattr(self, "label_size", None) or self.hidden_size
        return self.key_size or default, self.value_size or default

    def validate_attention(self):
        check_least(self, 1, "key_size", "value_size")
        if self.attention_scoring == "mlp" and (self.key_size or self.value_size or self.tied_outputs):
            raise ValueError(
                "`key_size`, `value_size` and `tied_outputs` need `attention_scoring='evidence'`: take it, or none."
            )
        keys, values = self.evidence_sizes
        if self.tied_outputs and keys != values:
            raise ValueError(f"`tied_outputs` needs `key_size` and `value_size` to be equal, got {keys} and {values}.")

    def validate_tree(self):
        check_least(self, 1, "beam", "training_beam")
        widening = [1, *self.tree_levels, self.num_labels]
        if self.tree_levels and any(below < above for above, below in zip(widening, widening[1:], strict=False)):
            raise ValueError(
                f"`tree_levels` must grow from the top and stay within the {self.num_labels} labels, got "
                f"{self.tree_levels}; give `LabelTree.level_sizes`."
            )


def write_label_names(folder: str | os.PathLike, names: list[str]) -> None:
    """Writes the file of label names, whole or not at all."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LABELS_FILE)
    with open(f"{path}.tmp", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)
    os.replace(f"{path}.tmp", path)


def code_beside(name_or_path: str | os.PathLike, name: str, options: dict[str, Any]) -> type | None:
    """A class, `file.Class`, of the code that lies beside weights; `None` where there is no such file."""
    if read_file(name_or_path, f"{name.split('.')[0]}.py", options) is None:
        return None
    return get_class_from_dynamic_module(name, name_or_path, **hub_options(options))


def find_label_names(name_or_path: str | os.PathLike, **options: Any) -> list[str] | None:
    """The names of a checkpoint, in a folder or on the Hub; `None` where it has none."""
    text = read_file(name_or_path, LABELS_FILE, options)
    return None if text is None else text.split("\n")[:-1]


def hub_options(options: dict[str, Any]) -> dict[str, Any]:
    """Those of the options of `from_pretrained` that say where files are."""
    return {name: options[name] for name in _HUB_OPTIONS if options.get(name) is not None}


def read_file(name_or_path: str | os.PathLike, name: str, options: dict[str, Any]) -> str | None:
    """What a file of a model holds, in a folder or on the Hub; `None` where there is none."""
    # The public function of the Hub's library knows no folders, and the public form of this one raises an error.
    path = cached_file(
        name_or_path,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **hub_options(options),
    )
    if path is None:
        return None
    with open(path, encoding="utf-8", newline="\n") as file:
        return file.read()
