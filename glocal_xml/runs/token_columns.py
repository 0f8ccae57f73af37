"""Token fields of the texts of a run; where experts count whole texts, each text is tokenised once."""

from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import tokenize
from glocal_xml.modeling.text_windows import TextStarts, all_token_ids, readable_text

TEXT_IDS = "text_ids"


def with_whole_texts(texts: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Adds the ids of all tokens of each text, which the experts count."""
    if TEXT_IDS in texts.column_names:
        return texts
    return texts.map(_whole_texts, batched=True, fn_kwargs={"tokenizer": tokenizer}, desc="tokenising")


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
