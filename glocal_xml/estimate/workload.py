"""What a training step has to deal with: texts, their lengths, labels, batches."""

import math
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import SaveStrategy

from glocal_xml.data import LabelSpace
from glocal_xml.training import XMTCTrainingArguments

_SAMPLED_TEXTS = 2000
_SIMULATED_BATCHES = 200


@dataclass(frozen=True)
class Workload:
    """Data and batches of a run: numbers of labels and of training texts, and what follows."""

    num_labels: int
    num_texts: int
    # Of (a sample of) the training texts in tokens, cut at the longest allowed.
    lengths: np.ndarray
    # The mean over training texts.
    labels_per_text: float
    # Training texts of each label in falling order, where they are known.
    label_counts: np.ndarray | None = None
    # Texts of the validation and of the test part.
    num_evaluated: tuple[int, int] = (0, 0)
    # Whether the tokenizer gives token types, which some encoders have parameters for.
    token_types: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest text, to which a batch with it is padded."""
        return int(self.lengths.max())

    def padded_length(self, batch_size: int, grouped: bool) -> float:
        """Mean over batches of the length that their texts are padded to."""
        drawn = np.random.default_rng(0).choice(self.lengths, min(self.num_texts, _SIMULATED_BATCHES * batch_size))
        if grouped:
            drawn = drawn[list(LengthGroupedSampler(batch_size, lengths=drawn.tolist()))]
        return float(np.mean([drawn[i : i + batch_size].max() for i in range(0, len(drawn), batch_size)]))

    def drawn_labels(self, texts: int, num_labels: int) -> np.ndarray:
        """Labels of texts, (texts, labels of a text), drawn by frequency: `num_labels` ids, most frequent first."""
        # By default Zipf's law, which labels of large sets roughly follow.
        counts = 1 / np.arange(1, self.num_labels + 1) if self.label_counts is None else self.label_counts
        size = (texts, max(1, round(self.labels_per_text)))
        drawn = np.random.default_rng(0).choice(self.num_labels, size, p=counts / counts.sum())
        return drawn * num_labels // self.num_labels

    def number_of_steps(self, args: XMTCTrainingArguments) -> int:
        """Optimiser steps of the whole run."""
        if args.max_steps > 0:
            return args.max_steps
        batches = math.ceil(self.num_texts / args.per_device_train_batch_size)
        return math.ceil(math.ceil(batches / args.gradient_accumulation_steps) * args.num_train_epochs)

    def number_of_evaluated(self, args: XMTCTrainingArguments) -> int:
        """Validation texts whenever the run saves and once at the end, and test texts."""
        saves: float = 0
        if args.save_strategy == SaveStrategy.EPOCH:
            saves = math.ceil(args.num_train_epochs)
        elif args.save_strategy == SaveStrategy.STEPS:
            saves = (self.number_of_steps(args) if args.save_steps >= 1 else 1) / args.save_steps
        validation, test = self.num_evaluated
        return validation * (int(saves) + 1) + test


def measured_workload(texts: dict[str, Any], label_space: LabelSpace, tokenizer: PreTrainedTokenizerBase) -> Workload:
    """The workload of texts that were read; lengths are those of a sample."""
    train = texts["train"]
    if hasattr(train, "__len__"):
        order = np.random.default_rng(0).permutation(len(train))[:_SAMPLED_TEXTS]
        train = train.select(np.sort(order))
    sample = islice(train, _SAMPLED_TEXTS)
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


def described_workload(tokenizer: PreTrainedTokenizerBase, **sizes: Any) -> Workload:
    """The workload of texts that are not at hand, all of them as long as the tokenizer allows."""
    lengths, has_types = np.array([tokenizer.model_max_length]), "token_type_ids" in tokenizer.model_input_names
    return Workload(lengths=lengths, token_types=has_types, **sizes)
