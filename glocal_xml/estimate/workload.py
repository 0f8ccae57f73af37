"""What a training step has to deal with: texts, their lengths, labels, batches."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.training import XMTCTrainingArguments

_SAMPLED_TEXTS = 2000
_SIMULATED_BATCHES = 200
# How many batches Transformers sorts together when it groups texts by length.
_BATCHES_GROUPED = 50


@dataclass(frozen=True)
class Workload:
    """
    Data and batches of a run.

    Args:
        num_labels: Number of labels.
        num_texts: Training texts.
        lengths: Lengths of (a sample of) the training texts in tokens, cut at the longest allowed.
        labels_per_text: Mean number of labels of a training text.
        label_counts: Training texts of each label in falling order, where they are known.
        num_evaluated: Texts of the validation and of the test part.
        token_types: Whether the tokenizer gives token types, which some encoders have parameters for.
    """

    num_labels: int
    num_texts: int
    lengths: np.ndarray
    labels_per_text: float
    label_counts: np.ndarray | None = None
    num_evaluated: tuple[int, int] = (0, 0)
    token_types: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest text, to which a batch with it is padded."""
        return int(self.lengths.max())

    @property
    def mean_length(self) -> float:
        return float(self.lengths.mean())

    def padded_length(self, batch_size: int, grouped: bool, seed: int = 0) -> float:
        """Mean over batches of the length that their texts are padded to."""
        rng = np.random.default_rng(seed)
        batch_size = min(batch_size, self.num_texts)
        drawn = rng.choice(self.lengths, (_SIMULATED_BATCHES, batch_size))
        if grouped:
            # As many batches as are sorted together, of which a small set of texts has fewer.
            together = max(1, min(_BATCHES_GROUPED, self.num_texts // (4 * batch_size), _SIMULATED_BATCHES))
            whole = drawn[: _SIMULATED_BATCHES // together * together].reshape(-1, together * batch_size)
            drawn = np.sort(whole, axis=1).reshape(-1, batch_size)
        return float(drawn.max(axis=1).mean())

    def share_of_labels(self, start: int, stop: int) -> float:
        """Share of all occurrences of labels that belong to the `start`-th to `stop`-th most frequent ones."""
        counts = self.label_counts
        if counts is None:
            # Zipf's law, which labels of large sets roughly follow.
            counts = 1 / np.arange(1, self.num_labels + 1)
        return float(counts[start:stop].sum() / counts.sum())


def measured_workload(texts: dict[str, Any], label_space: LabelSpace, tokenizer: PreTrainedTokenizerBase) -> Workload:
    """The workload of texts that were read; lengths are those of a sample."""
    train = texts["train"]
    sample = list(islice(train, _SAMPLED_TEXTS)) if not hasattr(train, "__len__") else _sample(train)
    tokens = tokenizer([row["text"] for row in sample], truncation=True, max_length=tokenizer.model_max_length)
    counts = np.sort(np.asarray(label_space.counts))[::-1]
    return Workload(
        num_labels=label_space.num_labels,
        num_texts=label_space.num_texts,
        lengths=np.array([len(ids) for ids in tokens["input_ids"]]),
        labels_per_text=float(counts.sum() / label_space.num_texts),
        label_counts=counts,
        num_evaluated=tuple(len(texts[part]) if part in texts else 0 for part in ("validation", "test")),
        token_types="token_type_ids" in tokens,
    )


def _sample(train: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    order = np.random.default_rng(0).permutation(len(train))[:_SAMPLED_TEXTS]
    return [train[int(i)] for i in np.sort(order)]


def number_of_steps(workload: Workload, args: XMTCTrainingArguments) -> int:
    """Optimiser steps of the whole run."""
    if args.max_steps > 0:
        return args.max_steps
    batches = -(-workload.num_texts // args.per_device_train_batch_size)
    return int(np.ceil(-(-batches // args.gradient_accumulation_steps) * args.num_train_epochs))
