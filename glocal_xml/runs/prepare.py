"""What a run needs before it can train: checked arguments, texts with a label space, and a model."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from huggingface_hub import snapshot_download
from tokenizers.models import WordLevel
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LABEL_SPACE_FILES, LabelSpace, load_hub_dataset, load_xmtc_dataset, split_validation
from glocal_xml.data.text_files import read_names
from glocal_xml.modeling import FAMILIES, AttentionConfig, XMTCPreTrainedModel
from glocal_xml.modeling.text_windows import all_token_ids, readable_text
from glocal_xml.pretrained import minilm_path
from glocal_xml.trained_model import plain_model_errors, trained_config, trained_tokenizer
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import FINAL, branch_metrics, settle_ranks

from .experts import held_out_texts
from .word_encoder import WORD_ENCODER, check_word_options, make_word_tokenizer

logger = logging.getLogger(__name__)

_DEFAULT_LENGTH = 256
# What tokenizers have that were told of no limit.
_NO_LIMIT = 10**12
_STREAM_WINDOW = 10_000
# Training texts whose tokens are looked at.
_LOOKED_AT = 200
_HUB_OPTIONS = ("cache_dir", "local_files_only", "revision", "subfolder", "token", "trust_remote_code")


def check_arguments(model_args: ModelArguments, data_args: DataArguments, training: bool) -> None:
    """Refuses runs that could only fail later."""
    if not (training or data_args.test_file or data_args.predict_file or data_args.dataset_name):
        raise ValueError("Nothing to do: pass `--train_file`, `--test_file`, `--predict_file` or `--dataset_name`.")
    if model_args.model is None and model_args.encoder is None:
        raise ValueError(
            f"Pass `--encoder` (folder, Hub id, minilm, {WORD_ENCODER}, {NO_ENCODER}) to train, or `--model` to use a "
            "trained model."
        )
    if model_args.model is not None and model_args.encoder is not None and not training:
        raise ValueError("Pass `encoder` to train a new model or `model` to use a trained one, not both.")
    if model_args.tokenizer is not None and model_args.encoder != NO_ENCODER:
        raise ValueError(f"`tokenizer` is for `--encoder {NO_ENCODER}`: an encoder or a trained model brings its own.")
    if model_args.encoder == NO_ENCODER and not model_args.experts:
        raise ValueError(f"`--encoder {NO_ENCODER}` needs `--experts lexical`, `memory` or both: no others are left.")
    if model_args.encoder == NO_ENCODER and data_args.streaming:
        raise ValueError("Experts are fitted on all training texts at once: leave out `--streaming`.")
    if not training and model_args.model is None:
        raise ValueError("Without `--train_file` a trained model is needed: pass `--model`.")
    families = {config.model_type: config for config in FAMILIES}
    if model_args.label_tree is not None and not issubclass(families[model_args.model_type], AttentionConfig):
        known = ", ".join(name for name, config in families.items() if issubclass(config, AttentionConfig))
        raise ValueError(f"`label_tree` is for {known}; {model_args.model_type} has none: leave it out.")
    if data_args.validation_file is not None and data_args.validation_file == data_args.test_file:
        raise ValueError("The validation file is the test file: the best checkpoint would be chosen on test data.")
    files = [name for name in ("train_file", "validation_file", "test_file") if getattr(data_args, name) is not None]
    if data_args.dataset_name is not None and files:
        raise ValueError(
            f"`dataset_name` brings its own parts: leave out {', '.join(files)}, or leave out the dataset."
        )
    if data_args.streaming and (data_args.validation_size or data_args.max_train_texts):
        raise ValueError(
            "A stream cannot be split: with `--streaming` pass a `--validation_file` instead of `--validation_size`, "
            "and `--max_steps` instead of `--max_train_texts`."
        )
    if model_args.encoder == WORD_ENCODER:
        check_word_options(model_args.encoder_options)
        if data_args.streaming:
            raise ValueError(
                f"{WORD_ENCODER} takes its vocabulary from all training texts, which a stream does not have at once: "
                "leave out `--streaming`, or take another encoder."
            )


def encoder_path(name: str) -> str:
    """Resolves the short name of the encoder that comes as a package; a folder that is not there is an error."""
    if name == "minilm":
        return minilm_path()
    if name == WORD_ENCODER:
        raise ValueError(f"{WORD_ENCODER} is made in a run, from its training texts; there is none to look up here.")
    # Ids on the Hub have one slash at most.
    if (name.count("/") > 1 or name.startswith((".", "/"))) and not Path(name).is_dir():
        raise ValueError(f"There is no encoder folder {name}; make it first, or give the id of an encoder on the Hub.")
    return name


def encoder_tokenizer(name: str, **hub_options: Any) -> PreTrainedTokenizerBase:
    """The tokenizer of a pretrained encoder."""
    path = encoder_path(name)
    with plain_model_errors(path):
        return AutoTokenizer.from_pretrained(path, **hub_options)


def load_tokenizer(
    model_args: ModelArguments, max_length: int | None, texts: dict[str, Any]
) -> PreTrainedTokenizerBase:
    """The tokenizer of the model or of its encoder; it keeps the length at which the model is trained."""
    if model_args.model is not None:
        tokenizer = trained_tokenizer(model_args.model)
        if model_args.encoder is not None and max_length is None:
            max_length = min(_DEFAULT_LENGTH, encoder_tokenizer(model_args.encoder).model_max_length)
    else:
        if model_args.encoder == WORD_ENCODER:
            tokenizer = make_word_tokenizer(texts["train"]["text"], model_args.encoder_options)
        elif model_args.encoder == NO_ENCODER:
            tokenizer = _tokenizer_of_experts(model_args.tokenizer, texts["train"]["text"])
            max_length = max_length or _NO_LIMIT
        else:
            hub = {name: value for name, value in model_args.encoder_options.items() if name in _HUB_OPTIONS}
            tokenizer = encoder_tokenizer(model_args.encoder, **hub)
        max_length = max_length or min(_DEFAULT_LENGTH, tokenizer.model_max_length)
    if max_length is not None:
        tokenizer.model_max_length = max_length
    if isinstance(texts.get("train"), Dataset) and model_args.encoder != WORD_ENCODER:
        _warn_of_unknown_tokens(tokenizer, texts["train"]["text"][:_LOOKED_AT])
    return tokenizer


def _warn_of_unknown_tokens(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> None:
    """Warns of texts in a script that the tokenizer does not know: they look alike to a model."""
    rows = all_token_ids(tokenizer, [readable_text(text[:1000]) for text in texts])
    unknown, number = sum(list(row).count(tokenizer.unk_token_id) for row in rows), sum(map(len, rows))
    # Words that a single text has are unknown to a tokenizer of words.
    of_words = isinstance(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), WordLevel)
    if unknown > 0.1 * number and not of_words:
        logger.warning(
            "%.0f %% of the tokens of the training texts are unknown to the tokenizer, and tell a model nothing: "
            "choose an encoder for their language (with `--encoder %s`, another `--tokenizer`)",
            *(100 * unknown / number, NO_ENCODER),
        )


def _tokenizer_of_experts(name: str | None, texts: list[str]) -> PreTrainedTokenizerBase:
    """The one that is asked for, or that of MiniLM where it is installed, or one of words."""
    if name is not None:
        return encoder_tokenizer(name)
    try:
        return AutoTokenizer.from_pretrained(minilm_path())
    except ValueError:
        return make_word_tokenizer(texts, {})


def trained_label_space(model: str) -> LabelSpace:
    """The label space of a trained model, from its folder or from the Hub."""
    trained_config(model)
    folder = Path(model)
    if not folder.is_dir():
        with plain_model_errors(model):
            folder = Path(snapshot_download(model, allow_patterns=list(LABEL_SPACE_FILES)))
    if not all((folder / name).is_file() for name in LABEL_SPACE_FILES):
        raise ValueError(
            f"{model} lacks {' or '.join(LABEL_SPACE_FILES)}; models of this package have both; give its folder."
        )
    return LabelSpace.load(folder)


def load_texts(
    data_args: DataArguments,
    label_space: LabelSpace | None,
    seed: int,
    train_rows: Dataset | None = None,
    holds_out: bool = False,
) -> tuple[dict[str, Any], LabelSpace]:
    """
    The parts train, validation, test and predict with `text` and `labels`, and their label space: that of a trained
    model, or of the training texts, which may be in memory (`train_rows`). By `holds_out` a part of these is for
    validation where nothing is said of it.
    """
    columns: dict[str, Any] = {"text_column": data_args.text_column, "labels_column": data_args.labels_column}
    reader = columns | {"file_format": data_args.file_format, "label_map": data_args.label_map}
    options: dict[str, Any] = {"label_delimiter": data_args.label_delimiter, "bad_rows": data_args.bad_rows}
    if data_args.dataset_name is not None:
        files = load_hub_dataset(
            data_args.dataset_name, config=data_args.dataset_config, streaming=data_args.streaming, **columns
        )
        if label_space is not None:
            files.pop("train", None)
            if not files:
                raise ValueError(f"{data_args.dataset_name} has only a train part; a trained model needs another one.")
    else:
        files = {name: getattr(data_args, f"{name}_file") for name in ("train", "validation", "test")}
        files = {name: path for name, path in files.items() if path is not None}
    if train_rows is not None:
        files["train"] = train_rows
    texts: dict[str, Any] = {}
    # What a model knows.
    earlier = label_space
    if files:
        parts, label_space = load_xmtc_dataset(
            files,
            label_space=label_space,
            label_names=read_label_names(data_args.label_names_file),
            streaming=data_args.streaming,
            allow_no_labels=data_args.allow_no_labels,
            **options,
            # The columns of a dataset have their standard names by now.
            **(reader if data_args.dataset_name is None else {}),
        )
        texts = dict(parts)
    if data_args.predict_file is not None:
        options |= {"label_space": label_space, "allow_no_labels": True, **reader}
        parts, label_space = load_xmtc_dataset({"test": data_args.predict_file}, **options)
        texts["predict"] = parts["test"]
    if data_args.streaming:
        # What a stream brings is mixed within a window; files are often sorted.
        if "train" in texts:
            texts["train"] = texts["train"].shuffle(seed=seed, buffer_size=_STREAM_WINDOW)
        if "test" in texts and data_args.max_test_texts is not None:
            texts["test"] = texts["test"].take(data_args.max_test_texts)
        return texts, label_space
    for name, limit in {"train": data_args.max_train_texts, "test": data_args.max_test_texts}.items():
        if name in texts and limit is not None:
            texts[name] = texts[name].shuffle(seed=seed).select(range(min(limit, len(texts[name]))))
    if "train" not in texts:
        return texts, label_space
    size = data_args.validation_size
    if size is None and holds_out:
        size = held_out_texts(len(texts["train"]), has_blend=earlier is not None)
    if "validation" not in texts and size:
        texts["train"], texts["validation"] = split_validation(
            texts["train"], fraction_or_size=size if size < 1 else int(size), seed=seed
        )
    # Propensities, bands and priors are those of the texts that are trained on.
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *texts["train"]["labels"]]).astype(np.int64)
    counts, num_texts = np.bincount(ids, minlength=label_space.num_labels), len(texts["train"])
    if earlier is not None:
        # Labels of a model that is trained further are not rare because new texts lack them.
        counts, num_texts = counts + np.asarray(earlier.counts), num_texts + earlier.num_texts
    return texts, replace(label_space, counts=counts.tolist(), num_texts=num_texts)


def read_label_names(path: str | None) -> list[str] | None:
    """All labels of a taxonomy, one per line."""
    return None if path is None else read_names(path)


def follow_validation(args: XMTCTrainingArguments, has_validation: bool) -> None:
    """With validation texts a run evaluates whenever it saves and ends with the best; without, with the last."""
    args.load_best_model_at_end = has_validation and args.save_strategy != SaveStrategy.NO
    if args.load_best_model_at_end:
        args.eval_strategy, args.eval_steps = IntervalStrategy(SaveStrategy(args.save_strategy).value), args.save_steps
    elif args.early_stopping_patience is not None:
        raise ValueError(
            "`early_stopping_patience` needs validation texts (`--validation_file` or `--validation_size`) and a "
            "`save_strategy` other than no."
        )


def settle_metrics(args: XMTCTrainingArguments, model: XMTCPreTrainedModel, label_space: LabelSpace) -> None:
    """Drops ranks beyond the number of labels, and makes sure that what decides the best checkpoint will exist."""
    settle_ranks(args, label_space)
    if not args.load_best_model_at_end:
        return
    if args.metric_for_best_model is None:
        args.metric_for_best_model = f"precision@{max(args.metrics_at)}"
    nothing = np.zeros((1, max(args.metrics_at)), dtype=np.int64)
    rankings = {FINAL: nothing} | dict.fromkeys(model.branch_names, nothing)
    known = branch_metrics(rankings, np.zeros((1, 1), dtype=np.int64), label_space, args)
    if args.metric_for_best_model not in known:
        raise ValueError(
            f"`metric_for_best_model` is {args.metric_for_best_model!r}; this run has {', '.join(sorted(known))}."
        )
