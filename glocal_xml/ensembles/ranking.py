"""The best labels of each text by the mean of the probabilities of several trained models, one in memory at a time."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from glocal_xml.data import LabelSpace, XMTCCollator
from glocal_xml.metrics import top_k_from_scores
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.runs.model import build_model, check_length
from glocal_xml.runs.prepare import load_tokenizer
from glocal_xml.runs.token_columns import start_tokens, with_whole_texts
from glocal_xml.training.arguments import ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import FINAL


def ensemble_top_k(
    members: Sequence[str],
    texts: Dataset,
    label_space: LabelSpace,
    args: XMTCTrainingArguments,
    *,
    top_k: int,
    candidates: int,
    max_length: int | None = None,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """
    The best labels of each text by the mean of the final probabilities of several models, in single precision.

    Each model brings in its `candidates` best labels of a text, and every model then scores all that were brought in:
    their means are exact, but a label that is among the best `candidates` of no model cannot win. With `candidates` as
    many as there are labels nothing is left out. A model with a label tree looks at as many clusters as `candidates`
    labels need, which may be more than its `beam`.

    Args:
        members: Folders or Hub ids of trained models with the labels of `label_space`.
        texts: A column `text`.
        args: Batch size, device, and whether to show progress.
        top_k, candidates: How many labels to rank for each text, and how many, at least as many, each model brings in.
        max_length: Longest text in tokens; by default that of each model.

    Returns:
        Ids and mean probabilities of the best labels, (texts, top_k), of equal ones the lower id first; and the ids
        that each member alone ranks highest.
    """
    options = {"texts": texts, "label_space": label_space, "args": args, "max_length": max_length}
    # A model is gone when its function returns: one at a time.
    best = [_best_labels(member, candidates, **options) for member in members]
    label_ids, is_own = union_of_labels(best)
    mean = sum(_scores(member, label_ids, is_own, **options) for member in members) / len(members)
    # Ids ascend along a row, so that of equal scores the lower id comes first.
    columns = top_k_from_scores(np.where(is_own, mean, -1.0), top_k)
    ids, scores = (np.take_along_axis(values, columns, axis=1) for values in (label_ids, mean))
    return ids, scores, [member_ids[:, :top_k] for member_ids in best]


def union_of_labels(rankings: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """
    The labels of each text that are in any ranking, (texts, labels) each, ascending, and whether each counts, both
    (texts, most labels of a text); what does not count repeats an id that does.
    """
    label_ids = np.sort(np.concatenate(rankings, axis=1), axis=1)
    is_repeated = np.zeros(label_ids.shape, dtype=bool)
    is_repeated[:, 1:] = label_ids[:, 1:] == label_ids[:, :-1]
    width = (~is_repeated).sum(axis=1).max()
    # Repeated ids go to the end, the others keep their order.
    columns = np.argsort(is_repeated, axis=1, kind="stable")[:, :width]
    return np.take_along_axis(label_ids, columns, axis=1), np.take_along_axis(~is_repeated, columns, axis=1)


def _best_labels(member: str, number: int, **options: Any) -> np.ndarray:
    """Ids of the best labels of each text, (texts, number)."""
    model, batches = _open(member, "best labels", **options)
    return np.concatenate([model.predict_top_k(**batch, top_k=number).top_k_ids.cpu().numpy() for batch in batches])


def _scores(member: str, label_ids: np.ndarray, is_own: np.ndarray, **options: Any) -> np.ndarray:
    """Probabilities of the labels of each text that count, in double precision; 0 for the others."""
    model, batches = _open(member, "scores", **options)
    scores, first = np.zeros(label_ids.shape), 0
    for batch in batches:
        rows = slice(first, first + len(batch["input_ids"]))
        # Other batches may need more.
        width = is_own[rows].sum(axis=1).max()
        chosen = torch.as_tensor(label_ids[rows, :width], device=model.device)  # (texts, chosen)
        scores[rows, :width] = model.score_labels(chosen, **batch)[FINAL].cpu().numpy()
        first = rows.stop
    return np.where(is_own, scores, 0.0)


def _open(
    member: str,
    what: str,
    *,
    texts: Dataset,
    label_space: LabelSpace,
    args: XMTCTrainingArguments,
    max_length: int | None,
) -> tuple[XMTCPreTrainedModel, Iterator[dict[str, torch.Tensor]]]:
    """A member and the texts in batches, as its own tokenizer reads them."""
    model_args = ModelArguments(model=member)
    tokenizer = load_tokenizer(model_args, max_length, {})
    model = build_model(model_args, label_space, tokenizer).to(args.device)
    check_length(model, tokenizer.model_max_length)
    texts = with_whole_texts(texts, tokenizer) if model.text_experts() else texts
    tokens = start_tokens(texts, tokenizer, tokenizer.model_max_length)
    loader = DataLoader(tokens, batch_size=args.per_device_eval_batch_size, collate_fn=XMTCCollator(tokenizer))
    bar = tqdm(loader, desc=f"{os.path.basename(os.path.abspath(member))}: {what}", disable=args.disable_tqdm)
    return model, ({name: values.to(args.device) for name, values in batch.items()} for batch in bar)
