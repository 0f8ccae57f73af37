"""Fields that the configurations of the families share."""

import os
from dataclasses import field, fields
from math import isfinite
from typing import Any, ClassVar, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME, cached_file

AnyConfig = TypeVar("AnyConfig", bound=PreTrainedConfig)
# Names of the labels beside the weights, line i for label i.
LABELS_FILE = "labels.txt"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")
F_KINDS = ("micro", "macro", "samples")
ATTENTION_SCORINGS = ("evidence", "mlp")


@strict
class XMTCConfig(PreTrainedConfig):
    """
    What every family for extreme multi-label text classification is configured by.

    Args:
        encoder (`PreTrainedConfig` or `dict`, *optional*):
            Configuration of the text encoder; BERT's defaults when left out.
        num_labels (`int`, *optional*, defaults to 2):
            Size of the label space. Unlike elsewhere in Transformers it makes no `id2label` table, which at half a
            million labels would be tens of megabytes of JSON: names are kept in `labels.txt` beside the weights.
        label_bias (`bool`, *optional*, defaults to `True`):
            Adds one bias per label to each branch. Started at the training log-odds (`model.start_label_bias`) it
            saves the epochs that otherwise go into pushing thousands of labels down. The papers have none.
        top_k (`int`, *optional*, defaults to 10):
            How many labels a prediction holds.
        max_logits_labels (`int`, *optional*, defaults to 50000):
            Up to this many labels an evaluation also returns `logits` over all of them; beyond it only on request.
        label_chunk_bytes (`int`, *optional*):
            Memory that the scores of one chunk of labels may take. It bounds memory and changes no result. By default
            8 MB on a CPU, which stays in its cache, and 256 MB on an accelerator.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of freshly made label embeddings.
        lexical (`dict`, *optional*):
            Sizes of the lexical expert ([`LexicalExpert`]); `None` for none. Set by what fits it.
        memory (`dict`, *optional*):
            Sizes of the memory expert ([`MemoryExpert`]); `None` for none. Set by what fits it.
        blend (`dict`, *optional*):
            What was fitted on held-out texts ([`Blend`]): `weights` of the branches, of the log `frequency` of a label
            and a `bias`; the `threshold` with the best F measure `f` (micro, macro or samples) and `beta`; and the
            number of `texts`. Without it the probability of a label is the mean over the branches.
        problem_type (`str`, *optional*, defaults to `"multi_label_classification"`):
            Tells Transformers' own text-classification pipeline that the probability of a label is a sigmoid.
    """

    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["top_k_ids", "top_k_scores", "branch_top_k_ids", "branch_logits", "loss_terms"]
    # Fields that older files lack, with what such a model has.
    fields_of_old_files: ClassVar[dict[str, Any]] = {}

    encoder: PreTrainedConfig | dict | None = None
    num_labels: int = 2
    label_bias: bool = True
    top_k: int = 10
    max_logits_labels: int = 50_000
    label_chunk_bytes: int | None = None
    initializer_range: float | int = 0.02
    lexical: dict | None = None
    memory: dict | None = None
    blend: dict | None = None
    problem_type: str | None = "multi_label_classification"

    def __post_init__(self, **kwargs: Any):
        # Where this package is, its pipeline is registered, and no code beside the weights need be trusted for it.
        if not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        # Only files have the version of Transformers in them.
        if "transformers_version" in config_dict:
            config_dict = cls.fields_of_old_files | config_dict
        return super().from_dict(config_dict, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """All fields but the names of the labels, which are kept in `labels.txt`."""
        fields_of_config = super().to_dict()
        for name in ("id2label", "label2id"):
            fields_of_config.pop(name, None)
        return fields_of_config

    @property
    def hidden_size(self) -> int:
        return self.encoder.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        return self.encoder.num_hidden_layers

    @property
    def whole_loss_epoch(self) -> int:
        """Epoch from which on all terms of the loss are there, the first being 0."""
        return 0

    def validate_label_space(self):
        """Part of the checks that `@strict` runs at construction and before saving."""
        for name in ("num_labels", "top_k", "label_chunk_bytes"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.max_logits_labels < 0:
            raise ValueError(f"`max_logits_labels` must not be negative, got {self.max_logits_labels}; 0 means never.")

    def validate_blend(self):
        """Part of the same checks."""
        if self.blend is None:
            return
        missing = [name for name in ("weights", "threshold", "f") if name not in self.blend]
        if missing:
            raise ValueError(f"`blend` lacks {', '.join(missing)}: {self.blend}; `glocal-xml calibrate` fits it.")
        weights, threshold, kind = (self.blend[name] for name in ("weights", "threshold", "f"))
        wrong = [name for name, weight in weights.items() if not _is_number(weight) or not isfinite(weight)]
        if wrong:
            raise ValueError(f"`blend`: the weights must be numbers, those of {', '.join(wrong)} are not: {weights}.")
        if not _is_number(threshold) or not 0 <= threshold <= 1:
            raise ValueError(f"`blend`: the threshold must lie in 0 to 1, got {threshold!r}.")
        if kind not in F_KINDS:
            raise ValueError(f"`blend`: `f` must be one of {', '.join(F_KINDS)}, got {kind!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


@strict
class AttentionConfig(XMTCConfig):
    """
    What the families with label-word attention are configured by; they score all labels or, with a label tree,
    candidates alone. Shared fields are described in [`XMTCConfig`].

    Args:
        attention_scoring (`str`, *optional*, defaults to `"mlp"`):
            How a label is scored by the words that it reads. `"mlp"`: one MLP shared by all labels, as in the papers.
            `"evidence"`: an output row per label ([`EvidenceHead`]); the share of each word in the score is then known
            exactly.
        key_size (`int`, *optional*):
            Evidence: size of the keys of tokens and the queries of labels; that of the encoder when left out.
        value_size (`int`, *optional*):
            Evidence: size of the values of tokens and the output rows of labels; that of the encoder when left out.
        tied_outputs (`bool`, *optional*, defaults to `False`):
            Evidence: whether the output row of a label is its query, which halves the size of the label tables.
        tree_levels (`list[int]`, *optional*, defaults to `[]`):
            Number of nodes of each level of the label tree from the top, the root left out (`LabelTree.level_sizes`);
            those of the last level are clusters of labels. With no levels every label is scored. The tree itself is
            kept with the weights: `model.set_label_tree`.
        beam (`int`, *optional*, defaults to 16):
            How many nodes of each level a prediction expands; more where `top_k` needs it.
        training_beam (`int`, *optional*, defaults to 16):
            How many nodes of each level a training step expands: those that lead to labels of the text, then the
            ones that now score highest, whose labels are the negatives.
    """

    attention_scoring: str = "mlp"
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
        """Part of the checks that `@strict` runs at construction and before saving."""
        if self.attention_scoring not in ATTENTION_SCORINGS:
            raise ValueError(
                f"`attention_scoring` must be one of {', '.join(ATTENTION_SCORINGS)}, got {self.attention_scoring!r}."
            )
        for name in ("key_size", "value_size"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.attention_scoring == "mlp" and (self.key_size or self.value_size or self.tied_outputs):
            raise ValueError(
                "`key_size`, `value_size` and `tied_outputs` are for `attention_scoring='evidence'`: leave them out, "
                "or take it."
            )
        sizes = self.evidence_sizes
        if self.tied_outputs and sizes[0] != sizes[1]:
            raise ValueError(
                f"`tied_outputs` needs keys and values of one size, got `key_size` {sizes[0]} and `value_size` "
                f"{sizes[1]}: make them equal, or leave `tied_outputs` out."
            )

    def validate_tree(self):
        """Part of the same checks."""
        for name in ("beam", "training_beam"):
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        widening = [1, *self.tree_levels, self.num_labels]
        if self.tree_levels and any(below < above for above, below in zip(widening, widening[1:], strict=False)):
            raise ValueError(
                f"`tree_levels` must grow from the top and stay within the {self.num_labels} labels, got "
                f"{self.tree_levels}; give `LabelTree.level_sizes`."
            )


def make_config(config_class: type[AnyConfig], user_fields: dict[str, Any], **own_fields: Any) -> AnyConfig:
    """
    A configuration from what a user asked for: a field that does not exist or does not fit is a `ValueError`.

    Transformers itself keeps unknown fields without a word, so that a slip would train another model than was meant.
    """
    known = {field.name for field in fields(config_class)} - {field.name for field in fields(PreTrainedConfig)}
    known -= {"encoder", "num_labels"}
    unknown = sorted(set(user_fields) - known)
    if unknown:
        raise ValueError(f"{config_class.__name__} has no fields {unknown}; it has {', '.join(sorted(known))}.")
    try:
        return config_class(**user_fields, **own_fields)
    except StrictDataclassError as error:
        # What is wrong is in the cause.
        raise ValueError(str(error.__cause__ or error)) from error


def write_label_names(folder: str | os.PathLike, names: list[str]) -> None:
    """Writes the file of label names, whole or not at all."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LABELS_FILE)
    with open(f"{path}.tmp", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)
    os.replace(f"{path}.tmp", path)


def find_label_names(name_or_path: str | os.PathLike, **options: Any) -> list[str] | None:
    """The names of a checkpoint, in a folder or on the Hub; `None` where it has none."""
    path = cached_file(
        name_or_path,
        LABELS_FILE,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **{name: options[name] for name in _HUB_OPTIONS if options.get(name) is not None},
    )
    if path is None:
        return None
    with open(path, encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]


__all__ = ["AttentionConfig", "XMTCConfig"]
