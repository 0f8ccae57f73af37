"""A pretrained encoder with label names: how a model starts, is saved and is loaded again."""

import os
from typing import Any

import torch
from transformers import AutoModel, PreTrainedModel
from transformers.configuration_utils import PreTrainedConfig

from .configuration_base import XMTCConfig, make_config
from .label_names import LABELS_FILE, check_label_names, find_label_names, write_label_names
from .modeling_word_lstm import WordLSTMModel
from .pipeline_xmtc import TASK, ExtremeMultiLabelPipeline


class EncoderWithLabelNames(PreTrainedModel):
    """A text encoder, and the names of the labels, which are saved beside the weights."""

    config_class = XMTCConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    # Trainer would otherwise multiply the loss by the number of accumulation steps.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True

    def __init__(self, config: XMTCConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config)
        self.encoder = _new_encoder(config.encoder) if encoder is None else encoder
        # No family reads it, and a parameter without a gradient stops data-parallel training.
        if getattr(self.encoder, "pooler", None) is not None:
            self.encoder.pooler = None
        self.label_names: list[str] | None = None

    @classmethod
    def from_encoder(
        cls,
        encoder_name_or_path: str | os.PathLike | PreTrainedModel,
        *,
        num_labels: int | None = None,
        label_names: list[str] | None = None,
        encoder_options: dict[str, Any] | None = None,
        **config_fields: Any,
    ) -> "EncoderWithLabelNames":
        """
        Starts a model from a pretrained encoder, with fresh heads.

        Args:
            encoder_name_or_path: Folder or Hub id of any encoder that `AutoModel` loads, or an encoder itself.
            num_labels: Size of the label space; may be left out when `label_names` is given.
            label_names: Names of the labels, in the order of their ids; they travel with the weights.
            encoder_options: Passed on to `AutoModel.from_pretrained`, such as `revision` or `token`.
            config_fields: Fields of the configuration of this family.
        """
        if num_labels is None and label_names is None:
            raise ValueError("`num_labels` is missing: pass it, or pass `label_names`.")
        if isinstance(encoder_name_or_path, PreTrainedModel):
            encoder = encoder_name_or_path
        else:
            # Checkpoints in half precision would otherwise be trained in it.
            options = {"dtype": torch.float32, **(encoder_options or {})}
            try:
                encoder = AutoModel.from_pretrained(encoder_name_or_path, **options)
            except TypeError as error:
                raise ValueError(f"The encoder does not take the options {encoder_options}: {error}.") from error
        # A copy: the composite would reset the attention implementation of the live object.
        encoder_fields = encoder.config.to_dict()
        if os.path.isdir(encoder_fields.get("_name_or_path", "")):
            # Where a machine keeps its files concerns nobody who loads the model.
            del encoder_fields["_name_or_path"]
        config = make_config(
            cls.config_class,
            config_fields,
            encoder=encoder_fields,
            attn_implementation=encoder.config._attn_implementation,
            num_labels=len(label_names) if num_labels is None else num_labels,
            # Trainer compares them with the tokenizer's.
            **{name: getattr(encoder.config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
        )
        model = cls(config, encoder=encoder)
        model.encoder.config = config.encoder
        model.set_label_names(label_names)
        return model

    def set_label_names(self, label_names: list[str] | None) -> None:
        """Names the labels; the names are saved with the weights."""
        if label_names is not None:
            if len(label_names) != self.config.num_labels:
                raise ValueError(f"{len(label_names)} label names for a model of {self.config.num_labels} labels.")
            check_label_names(label_names)
        self.label_names = None if label_names is None else list(label_names)
        self.config.id2label = self.config.label2id = None
        # Transformers' own pipeline reads names here; beyond this many labels it has no logits to name.
        if self.config.num_labels <= self.config.max_logits_labels:
            names = self.label_names or [f"LABEL_{i}" for i in range(self.config.num_labels)]
            self.config.id2label = dict(enumerate(names))
            self.config.label2id = {name: i for i, name in enumerate(names)}

    def save_pretrained(self, save_directory: str | os.PathLike, is_main_process: bool = True, **kwargs: Any) -> Any:
        """Saves weights, configuration, code and label names so that `from_pretrained` finds all of them again."""
        if self.should_save_on_this_rank(is_main_process):
            # The code is saved under one Auto class; people also ask for the other.
            if self._auto_class is not None:
                known = getattr(self.config, "auto_map", None) or {}
                self.config.auto_map = {**known, "AutoModelForSequenceClassification": _code_name(type(self))}
                self.config.custom_pipelines = {
                    TASK: {"impl": _code_name(ExtremeMultiLabelPipeline), "pt": ["AutoModel"]}
                }
            if self.label_names is not None:
                write_label_names(save_directory, self.label_names)
        return super().save_pretrained(save_directory, is_main_process=is_main_process, **kwargs)

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        # With `push_to_hub` all is sent that is newer than these, and label names are written before they are taken.
        times = super()._get_files_timestamps(working_dir)
        return {name: time for name, time in times.items() if name != LABELS_FILE}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, *args: Any, **kwargs: Any) -> Any:
        """Loads weights and configuration as everywhere in Transformers, and the label names beside them."""
        loaded = super().from_pretrained(pretrained_model_name_or_path, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        names = find_label_names(pretrained_model_name_or_path, **kwargs)
        # A checkpoint loaded into another label space has no use for the old names.
        model.set_label_names(names if names is not None and len(names) == model.config.num_labels else None)
        return loaded


def _code_name(code: type) -> str:
    """Where code that travels with a checkpoint finds a class."""
    return f"{code.__module__.rsplit('.', 1)[-1]}.{code.__name__}"


def _new_encoder(config: PreTrainedConfig) -> PreTrainedModel:
    # Code that came with a checkpoint is loaded once for configurations and once for models: `AutoModel` goes by the
    # class of the configuration and would not know the other copy.
    if config.model_type == WordLSTMModel.config_class.model_type:
        return WordLSTMModel(config)
    return AutoModel.from_config(config)
