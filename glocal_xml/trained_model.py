"""Trained models opened for use, and what is wrong with those that cannot be, in one line."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, Pipeline, PreTrainedTokenizerBase, pipeline

from glocal_xml.modeling import FAMILIES, TASK, XMTCConfig, XMTCPreTrainedModel


@contextmanager
def plain_model_errors(model: str) -> Iterator[None]:
    """Turns what the loading of a model may raise into a `ValueError` that names the model."""
    try:
        yield
    # Half a file, something that is no weights at all, fields of another type: other people's parsers raise anything.
    except Exception as error:
        reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        where = f"{model} cannot be loaded" if Path(model).is_dir() else f"There is no folder {model}, nor a Hub model"
        raise ValueError(f"{where}: {reason}.") from error


def trained_config(model: str, **hub_options: Any) -> XMTCConfig:
    """The configuration of a trained model, a folder or a Hub id with `revision` and `token`; or why there is none."""
    path = Path(model)
    if path.is_file():
        raise ValueError(f"{model} is a file, but a model is a folder or a Hub id; give the `output_dir` of its run.")
    if path.is_dir() and not (path / "config.json").is_file():
        inside = sorted(config.parent.name for config in path.glob("*/config.json"))
        hint = f"one of the folders in it may be: {', '.join(inside)}" if inside else "give the `output_dir` of a run"
        raise ValueError(f"{model} is no model, since it has no config.json; {hint}.")
    if not path.exists() and (model.count("/") > 1 or model.startswith((".", "/", "~"))):
        raise ValueError(f"There is no model folder {model}; check the path.")
    # Left open, Transformers would ask whether to run foreign code, and take the answer from the texts in a pipe.
    with plain_model_errors(model):
        config = AutoConfig.from_pretrained(model, trust_remote_code=False, **hub_options)
    if not isinstance(config, XMTCConfig):
        families = ", ".join(family.model_type for family in FAMILIES)
        raise ValueError(
            f"{model} is a model of the type {config.model_type}, but those of this package are {families}; "
            "`glocal-xml train --encoder` makes one of an encoder."
        )
    return config


def trained_tokenizer(model: str, **hub_options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a trained model; options as for [`trained_config`]."""
    if Path(model).is_dir() and not Path(model, "tokenizer_config.json").is_file():
        raise ValueError(f"{model} has no tokenizer_config.json, which says how to read texts: copy the whole folder.")
    with plain_model_errors(model):
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False, **hub_options)
    # Without its file it may be made up, with no words in it.
    if len(tokenizer) <= len(tokenizer.all_special_ids):
        raise ValueError(f"{model} has no words for its tokenizer; tokenizer.json is missing: copy the whole folder.")
    length, special = tokenizer.model_max_length, tokenizer.num_special_tokens_to_add()
    if type(length) not in (int, float) or not special < length < math.inf or length != int(length):
        raise ValueError(
            f"{model} cannot be loaded: `model_max_length` of tokenizer_config.json is {length!r}, but a whole number "
            f"above {special} is needed: restore the file."
        )
    tokenizer.model_max_length = int(length)
    return tokenizer


def load_trained_model(model: str, tokenizer: PreTrainedTokenizerBase, **options: Any) -> XMTCPreTrainedModel:
    """A trained model that fits its tokenizer; options are those of `from_pretrained`."""
    with plain_model_errors(model):
        loaded = AutoModel.from_pretrained(model, trust_remote_code=False, **options)
        check_vocabulary(loaded, tokenizer)
    return loaded


def open_pipeline(
    model: str, *, device: str | None = None, revision: str | None = None, token: str | None = None
) -> Pipeline:
    """
    The pipeline of a trained model, a folder or a Hub id, whose branch or commit and token may be given; by default on
    the accelerator where there is one, else `cpu`, `cuda:1` and the like.
    """
    options = {name: value for name, value in {"revision": revision, "token": token}.items() if value is not None}
    check_device(device)
    trained_config(model, **options)
    tokenizer = trained_tokenizer(model, **options)
    loaded = load_trained_model(model, tokenizer, **options)
    pipe = pipeline(TASK, model=loaded, tokenizer=tokenizer, device=device)
    # Settings may fit the weights and still give no numbers.
    with plain_model_errors(model):
        if not all(math.isfinite(item["score"]) for item in pipe("a text")):
            raise ValueError("its scores are not finite")
    return pipe


def check_vocabulary(model: XMTCPreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuses a tokenizer with ids that the encoder has no embedding for."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    size = None if model.encoder is None else model.encoder.get_input_embeddings().weight.shape[0]
    if size is not None and largest >= size:
        raise ValueError(
            f"The tokenizer has ids up to {largest}, the encoder has embeddings for {size}: tokenizer.json belongs to "
            "another model; or call `model.resize_token_embeddings(len(tokenizer))` before training."
        )


def check_device(device: str | None) -> None:
    """Refuses a device that torch does not know or this machine does not have."""
    if device is None:
        return
    found = torch.accelerator.current_accelerator(check_available=True)
    known = {"cpu": 1} if found is None else {"cpu": 1, found.type: torch.accelerator.device_count()}
    try:
        asked = torch.device(device)
    except RuntimeError:
        asked = None
    if asked is None or (asked.index or 0) >= known.get(asked.type, 0):
        raise ValueError(f"This machine has no device {device!r}; it has {', '.join(known)}.")
