"""Long texts of a run in windows: to train each window is a text, to evaluate the windows of a text are one."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import XMTCOutput, XMTCPreTrainedModel
from glocal_xml.modeling.text_windows import (
    WINDOW_SCORES,
    best_of_windows,
    checked_overlap,
    readable_text,
    text_windows,
)

from .arguments import DataArguments
from .report import rankings
from .token_columns import TEXT_IDS, start_tokens

WINDOW_COUNTS = "window_counts"


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
    Token fields of the start of each text, or of its windows where they are asked for; not padded.

    Args:
        texts: Columns `text` and, where there are some, `labels`.
        tokenizer: A fast tokenizer; its `model_max_length` is the length of a window.
        data_args: How much windows overlap, and how many of a text to take.
        training: Whether every window becomes a row with the labels of its text; else a text stays one row, with its
            windows in it.
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


class WindowCollator(XMTCCollator):
    """Batches of texts, or of the windows of texts with the number of those of each."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if not rows or "windows" not in rows[0]:
            return super().__call__(rows)
        batch = super().__call__([window for row in rows for window in row["windows"]])
        counts = torch.tensor([len(row["windows"]) for row in rows])
        if all("text_ids" in row for row in rows):
            # Experts read the whole text in each of its windows.
            batch["text_ids"] = self.padded_ids([row["text_ids"] for row in rows]).repeat_interleave(counts, dim=0)
        labels = {} if "labels" not in rows[0] else {"labels": self.padded_ids([row["labels"] for row in rows])}
        # Trainer counts texts by what comes first.
        return labels | {WINDOW_COUNTS: counts} | batch


def rank_windows(
    model: XMTCPreTrainedModel, inputs: dict[str, torch.Tensor], score: str, top_k: int
) -> dict[str, torch.Tensor]:
    """The best labels of each text of a batch of windows, final and per branch, and the final scores."""
    fields = {name: values for name, values in inputs.items() if name not in ("labels", WINDOW_COUNTS)}
    best = best_of_windows(model, fields, inputs[WINDOW_COUNTS].tolist(), score, top_k)
    output = XMTCOutput(top_k_ids=best.ids, top_k_scores=best.scores)
    if len(model.branch_names) > 1:
        output.branch_top_k_ids = best.branch_ids
    return rankings(model, output)
