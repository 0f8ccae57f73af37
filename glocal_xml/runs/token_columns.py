"""
Token fields of the texts of a run; where experts count whole texts, each text is tokenised once. Long texts may be
read in windows: to train each window is a text, to evaluate the windows of a text are one.
"""

from typing import Any

import numpy as np
from datasets import Dataset, Features, IterableDataset, List, Value
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import tokenize
from glocal_xml.modeling.text_windows import (
    WINDOW_SCORES,
    TextStarts,
    all_token_ids,
    checked_overlap,
    readable_text,
    text_windows,
)
from glocal_xml.training.arguments import DataArguments

TEXT_IDS = "text_ids"


def with_whole_texts(
    texts: Dataset | IterableDataset, tokenizer: PreTrainedTokenizerBase
) -> Dataset | IterableDataset:
    """Adds the ids of all tokens of each text, which the experts count."""
    if TEXT_IDS in texts.column_names:
        return texts
    options: dict[str, Any] = {"batched": True, "fn_kwargs": {"tokenizer": tokenizer}}
    if isinstance(texts, IterableDataset):
        # A stream shows no bar, and knows its columns only where they are given.
        return texts.map(
            _whole_texts, features=Features({**texts.features, TEXT_IDS: List(Value("int32"))}), **options
        )
    return texts.map(_whole_texts, desc="tokenising", **options)


def _whole_texts(batch: dict[str, list[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    return {TEXT_IDS: all_token_ids(tokenizer, [readable_text(text) for text in batch["text"]])}


def whole_rows(texts: Dataset) -> list[np.ndarray]:
    """The ids of all tokens of each text that has been tokenised to its end."""
    return [np.asarray(ids, dtype=np.int32) for ids in texts[TEXT_IDS]]


def start_tokens(texts: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Dataset:
    """
    Replaces `text` by the token fields of its start, not padded, and adds their `length`. The ids of the whole text
    stay, where it has been tokenised to its end.
    """
    if TEXT_IDS not in texts.column_names:
        return tokenize(texts, tokenizer, max_length)
    options = {"starts": TextStarts(tokenizer), "max_length": max_length}
    return texts.map(_starts, batched=True, remove_columns=["text"], fn_kwargs=options)


def _starts(batch: dict[str, list[Any]], starts: TextStarts, max_length: int) -> dict[str, list[Any]]:
    rows = [starts(ids, max_length) for ids in batch[TEXT_IDS]]
    fields = {name: [row[name] for row in rows] for name in rows[0]}
    return {**fields, "length": [len(ids) for ids in fields["input_ids"]]}


def check_windows(data_args: DataArguments) -> None:
    """Refuses windows that could only fail later."""
    if data_args.windows is None:
        return
    if data_args.windows not in WINDOW_SCORES:
        raise ValueError(f"`windows` must be one of {', '.join(WINDOW_SCORES)}, got {data_args.windows!r}.")
    if data_args.max_windows < 1:
        raise ValueError(f"`max_windows` must be at least 1, got {data_args.max_windows}.")
    if data_args.streaming:
        raise ValueError("A stream is not read in windows: leave out `--streaming` or `--windows`.")


def tokens_of_run(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, data_args: DataArguments, *, training: bool
) -> Dataset:
    """
    Token fields of the start of each text, or of its windows where they are asked for; not padded. To train, every
    window becomes a row with the labels of its text; else a text stays one row, with its windows in it.
    """
    length = tokenizer.model_max_length
    if data_args.windows is None:
        tokens = start_tokens(texts, tokenizer, length)
        # Training has no use for experts.
        return tokens.remove_columns(TEXT_IDS) if training and TEXT_IDS in (tokens.column_names or ()) else tokens
    options = {
        "tokenizer": tokenizer,
        "max_length": length,
        "overlap": checked_overlap(data_args.window_overlap, length),
        "most": data_args.max_windows,
        "training": training,
    }
    removed = texts.column_names if training else ["text"]
    return texts.map(_windows_of_batch, batched=True, remove_columns=removed, fn_kwargs=options)


def _windows_of_batch(
    batch: dict[str, list[Any]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    overlap: int,
    most: int,
    training: bool,
) -> dict[str, list[Any]]:
    texts = [text_windows(tokenizer, readable_text(text), max_length, overlap)[:most] for text in batch["text"]]
    if not training:
        return {"windows": texts}
    rows = [window for windows in texts for window in windows]
    labels = [ids for windows, ids in zip(texts, batch["labels"], strict=True) for _ in windows]
    fields = {name: [row[name] for row in rows] for name in rows[0]}
    return {**fields, "length": [len(row["input_ids"]) for row in rows], "labels": labels}
