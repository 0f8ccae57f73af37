"""Fields that the configuration of every family shares."""

from dataclasses import fields
from typing import Any, TypeVar

from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig, SubConfigSpec
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from .calibration import check_calibration

# Not used here: a checkpoint brings it along, and importing it makes the encoder of this package known.
from .configuration_word_lstm import WordLSTMConfig

AnyConfig = TypeVar("AnyConfig", bound=PreTrainedConfig)


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
        top_k (`int`, *optional*, defaults to 10):
            How many labels a prediction holds.
        max_logits_labels (`int`, *optional*, defaults to 50000):
            Up to this many labels an evaluation also returns `logits` over all of them; beyond it only on request.
        label_chunk_bytes (`int`, *optional*, defaults to 8388608):
            Memory that the scores of one chunk of labels may take. It bounds memory and changes no result; the default
            was the fastest on two CPU cores, a GPU may gain from more.
        initializer_range (`float`, *optional*, defaults to 0.02):
            Standard deviation of freshly made label embeddings.
        calibration (`dict`, *optional*):
            What `glocal-xml calibrate` found on texts held out: `temperature`, `threshold`, the `f` that it is best
            for (micro, macro or samples), `beta` and the number of `texts`. Applied on request alone.
        problem_type (`str`, *optional*, defaults to `"multi_label_classification"`):
            Tells Transformers' own text-classification pipeline that the probability of a label is a sigmoid.
    """

    sub_configs_defaults = {"encoder": SubConfigSpec(config_class=AutoConfig, model_type="bert")}
    keys_to_ignore_at_inference = ["top_k_ids", "top_k_scores", "branch_top_k_ids", "loss_terms"]

    encoder: PreTrainedConfig | dict | None = None
    num_labels: int = 2
    top_k: int = 10
    max_logits_labels: int = 50_000
    label_chunk_bytes: int = 8 * 2**20
    initializer_range: float | int = 0.02
    calibration: dict | None = None
    problem_type: str | None = "multi_label_classification"

    def __post_init__(self, **kwargs: Any):
        # Where this package is, its pipeline is registered, and no code beside the weights need be trusted for it.
        if not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            kwargs.pop("custom_pipelines", None)
        super().__post_init__(**kwargs)

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
            if getattr(self, name) < 1:
                raise ValueError(f"`{name}` must be at least 1, got {getattr(self, name)}.")
        if self.max_logits_labels < 0:
            raise ValueError(f"`max_logits_labels` must not be negative, got {self.max_logits_labels}; 0 means never.")

    def validate_calibration(self):
        """Part of the same checks."""
        check_calibration(self.calibration)


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


__all__ = ["WordLSTMConfig", "XMTCConfig"]
