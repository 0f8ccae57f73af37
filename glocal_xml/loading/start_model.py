"""What starts a model and does not travel with it: a configuration that a user asks for, and a pretrained encoder."""

import copy
import inspect
import json
import os
from dataclasses import fields
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForTextEncoding,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from glocal_xml.modeling.configuration_base import POOLINGS, read_file
from glocal_xml.modeling.encoder import without_decoder
from glocal_xml.modeling.modeling_base import XMTCPreTrainedModel

logger = logging.get_logger(__name__)
AnyConfig = TypeVar("AnyConfig", bound=PreTrainedConfig)
# By the names of sentence-transformers.
_POOLING_MODES = {"cls": "first", "lasttoken": "last", "mean": "mean"}


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


def start_model(
    family: type[XMTCPreTrainedModel],
    encoder_name_or_path: str | os.PathLike | PreTrainedModel,
    num_labels: int | None,
    label_names: list[str] | None,
    encoder_options: dict[str, Any],
    config_fields: dict[str, Any],
) -> XMTCPreTrainedModel:
    """A model of a family around a pretrained encoder, with fresh heads."""
    if num_labels is None and label_names is None:
        raise ValueError("`num_labels` is missing: pass it, or pass `label_names`.")
    encoder = load_encoder(encoder_name_or_path, encoder_options)
    check_encoder(encoder)
    # A copy: the composite would reset the attention implementation of the live object.
    encoder_fields, name = encoder.config.to_dict(), encoder.name_or_path or ""
    if os.path.isabs(name) or os.path.isdir(name):
        # Where a machine keeps its files concerns nobody who loads the model.
        encoder_fields.pop("_name_or_path", None)
    if "use_cache" in encoder_fields:
        # What decoders keep to generate text takes memory.
        encoder_fields["use_cache"] = False
    if config_fields.get("document_pooling") is None and name:
        config_fields = {**config_fields, "document_pooling": find_pooling(name, encoder_options)}
    config = make_config(
        family.config_class,
        config_fields,
        encoder=encoder_fields,
        attn_implementation=encoder.config._attn_implementation,
        num_labels=len(label_names) if num_labels is None else num_labels,
        # Trainer compares them with the tokenizer's.
        **{name: getattr(encoder.config, name, None) for name in ("pad_token_id", "bos_token_id", "eos_token_id")},
    )
    model = family(config, encoder=encoder)
    model.encoder.config = config.encoder
    model.set_label_names(label_names)
    if getattr(encoder, "hf_quantizer", None) is None:
        # Heads compute with what the encoder gives.
        model.to(encoder.dtype)
    else:
        # Loading would take its packed weights for plain ones.
        model.save_pretrained = _refuse_to_save
    return model


def _refuse_to_save(*args: Any, **kwargs: Any) -> None:
    raise ValueError(
        "A model around a quantised encoder is not saved whole: save its adapter (PEFT), or train without "
        "`quantization_config` and pass it to `from_pretrained` of the trained model."
    )


def load_encoder(name_or_path: str | os.PathLike | PreTrainedModel, options: dict[str, Any]) -> PreTrainedModel:
    """A pretrained encoder by its folder or Hub id, or a copy of one: the caller's stays as it is."""
    if isinstance(name_or_path, PreTrainedModel):
        return copy.deepcopy(without_decoder(name_or_path))
    config = AutoConfig.from_pretrained(name_or_path, **options)
    alone, whole = (names.get(type(config), None) for names in (MODEL_FOR_TEXT_ENCODING_MAPPING, MODEL_MAPPING))
    # The decoder of T5 need not even be loaded: its encoder has a class of its own.
    auto_class = AutoModel if alone in (None, whole) else AutoModelForTextEncoding
    try:
        # Checkpoints in half precision would otherwise be trained in it.
        encoder = auto_class.from_pretrained(name_or_path, **{"dtype": torch.float32, **options})
    except TypeError as error:
        raise ValueError(f"The encoder does not take the options {options}: {error}.") from error
    return without_decoder(encoder)


def check_encoder(encoder: PreTrainedModel) -> None:
    """Refuses models of anything but texts, and those in which padding changes what a text means."""
    kind = type(encoder).__name__
    sizes = ("hidden_size", "num_hidden_layers")
    if encoder.main_input_name != "input_ids" or not all(hasattr(encoder.config, name) for name in sizes):
        raise ValueError(
            f"{kind} is no encoder of texts alone: pass one, or the part of this model that reads texts, such as its "
            "`language_model`."
        )
    if "attention_mask" not in inspect.signature(encoder.forward).parameters:
        raise ValueError(f"{kind} has no attention mask, so that padding would change scores: choose another encoder.")


def find_pooling(name_or_path: str, options: dict[str, Any]) -> str | None:
    """What a sentence-transformers model takes to stand for a text; `None` where this is no such model."""
    try:
        modules = json.loads(read_file(name_or_path, "modules.json", options) or "[]")
    except OSError:
        # The folder that a given encoder once came from may be gone.
        return None
    folder = next((module["path"] for module in modules if module["type"].endswith(".Pooling")), None)
    text = None if folder is None else read_file(name_or_path, f"{folder}/config.json", options)
    if text is None:
        return None
    pooling = json.loads(text)
    # A name or several; in older files a field for each, such as `pooling_mode_mean_tokens`.
    flags = [name for name in pooling if name.startswith("pooling_mode_") and pooling[name]]
    modes = pooling.get("pooling_mode") or [name.split("_", 2)[2].split("_token")[0] for name in flags] or "mean"
    modes = [modes] if isinstance(modes, str) else modes
    if len(modes) == 1 and modes[0] in _POOLING_MODES:
        return _POOLING_MODES[modes[0]]
    logger.warning(
        f"The encoder {name_or_path} pools by {' and '.join(modes)}, which is not known here: the mean of all tokens "
        f"stands for a text. To choose, pass `document_pooling`, one of {', '.join(POOLINGS)}."
    )
    return "mean"
