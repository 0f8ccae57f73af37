"""How much of a time budget heads and encoder get, and how long texts may be for it."""

import logging
import time
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import DENSE
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments

from .experts import RunExperts
from .model import may_freeze
from .token_columns import start_tokens

logger = logging.getLogger(__name__)

# Longest texts that are tried, in tokens: the longest with which all texts are read once.
_LENGTHS = (256, 192, 128, 96, 64, 48)
# A small set would otherwise be trained for hundreds of epochs.
_MOST_EPOCHS = 8
_MEASURED_STEPS = 3
# Held-out texts are predicted twice, to fit the blend and to judge it: about this part of a training step.
_PREDICTION = 0.8
# Of a training step, for an embedding; and most of the time of heads and encoder that embeddings may take.
_EMBEDDING, _MOST_EMBEDDING = 0.3, 0.15
# What of the time embeddings may take where the encoder is frozen; and how many texts of a label, on average, are so
# few that training the encoder spoils more than it gives (LLMs4Subjects, the only set of so many labels, was tried).
_OF_FROZEN, _FEW_POSITIVES = 0.8, 20
# A head on embeddings of so small a part of the texts still adds to experts on all of them (EURLEX57K, 42,000 texts).
_LEAST_READ = 0.06
# A dense memory of a smaller part of the texts is not worth its time.
_LEAST_EMBEDDED = 0.5
# What is kept back to fit the blend and to save the model.
_SAVING = 2.0


class TimePlan(NamedTuple):
    """How many seconds of a budget are spent on what, after the experts."""

    # Heads and encoder; where the encoder stays as it is (`frozen`), embeddings and the head.
    heads: float
    # Embeddings for the dense memory; 0 where there is too little time for these.
    dense: float
    frozen: bool


def plan_time(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    model: XMTCPreTrainedModel,
    experts: RunExperts,
    started: float,
) -> TimePlan:
    """
    Plans what is left of `args.minutes` when the experts are fitted. Sets the length of texts, where none is given, to
    the longest with which all training texts are read once, from the measured speed of the first steps.
    """
    tokenizer, train, has_dense = experts.tokenizer, experts.texts["train"], DENSE in experts.names
    speed = _tokens_per_second(args, model, train, tokenizer)
    held_out = len(experts.texts.get("validation", ()))
    seconds = 60 * args.minutes - (time.time() - started)
    refit = experts.seconds if args.refit_experts and held_out else 0.0
    left = seconds_for_heads(seconds, refit, 0.0)
    limit = min(_LENGTHS[0], tokenizer.model_max_length)
    sample = start_tokens(train.select(range(min(2000, len(train)))), tokenizer, limit)
    lengths, choices = np.array(sample["length"]), [size for size in _LENGTHS if size <= limit]
    if data_args.max_length is not None or not choices:
        choices = [tokenizer.model_max_length]

    def per_text(length: int) -> float:
        """Seconds of a training step for one text."""
        return np.minimum(lengths, length).mean() / speed

    positives = (
        left / per_text(choices[-1]) * np.mean([len(ids) for ids in sample["labels"]]) / model.config.num_labels
    )
    # Of all texts, beside what the training of the head takes.
    embedding = _EMBEDDING * len(train) / _OF_FROZEN
    # A random part of the texts is read where there is no time for all.
    fits = positives < _FEW_POSITIVES and _LEAST_READ * embedding * per_text(choices[-1]) <= left
    frozen = bool(args.frozen_encoder or (may_freeze(model_args, args) and fits))
    # What embeddings add to reading all texts once.
    reading = embedding if frozen else (1 + _EMBEDDING * has_dense) * len(train)
    length = next((size for size in choices if reading * per_text(size) <= left), choices[-1])
    tokenizer.model_max_length, step = length, per_text(length)
    left = seconds_for_heads(seconds, refit, held_out * step * (_PREDICTION + _EMBEDDING * has_dense))
    dense = 0.0
    if has_dense and not frozen:
        needed = _EMBEDDING * step * len(train)
        dense = min(needed, _MOST_EMBEDDING * left) if _MOST_EMBEDDING * left >= _LEAST_EMBEDDED * needed else 0.0
    left -= dense
    if frozen:
        logger.info(
            "%.1f minutes for embeddings of texts of up to %d tokens and the head; the encoder stays as it is (there "
            "would be time to train it on about %.1f texts of each label)",
            left / 60,
            length,
            positives,
        )
        return TimePlan(left, dense, True)
    args.num_train_epochs = min(_MOST_EPOCHS, np.ceil(left / (step * len(train))))
    logger.info(
        "%.1f minutes for heads and encoder: about %d texts of up to %d tokens (%d tokens a second)",
        left / 60,
        min(left / step, args.num_train_epochs * len(train)),
        length,
        speed,
    )
    return TimePlan(left, dense, False)


def seconds_for_heads(seconds: float, refit: float, prediction: float) -> float:
    """
    How long heads and encoder may train, of the seconds that are left of a budget: without those for the prediction of
    held-out texts and for the second fit of the experts. Where a fit takes more than half, heads come first, and the
    held-out texts stay out of the experts.
    """
    left = seconds - _SAVING - prediction
    return max(1.0, left if refit > left / 2 else left - refit)


def has_time(args: XMTCTrainingArguments, started: float, seconds: float) -> bool:
    """Whether so many seconds are left; always where there is no budget."""
    if args.minutes is None:
        return True
    # A little over is better than experts that lack texts for which time was kept back.
    fits = time.time() - started + seconds <= 1.02 * 60 * args.minutes
    if not fits:
        logger.info("No time is left to fit the experts again with the held-out texts.")
    return fits


def _tokens_per_second(
    args: XMTCTrainingArguments, model: XMTCPreTrainedModel, texts: Dataset, tokenizer: PreTrainedTokenizerBase
) -> float:
    """How many tokens a second are trained on, from a few steps that change nothing."""
    size, length = args.per_device_train_batch_size, min(64, tokenizer.model_max_length)
    rows = start_tokens(texts.select(range(min(len(texts), size * _MEASURED_STEPS))), tokenizer, length)
    collate = XMTCCollator(tokenizer)
    training, counted, seconds = model.training, 0, 0.0
    model.train()
    for number, start in enumerate(range(0, len(rows), size)):
        batch = collate([rows[i] for i in range(start, min(start + size, len(rows)))])
        begun = time.monotonic()
        model(**{name: values.to(model.device) for name, values in batch.items()}).loss.backward()
        # The first one is slower.
        if number or len(rows) <= size:
            seconds += time.monotonic() - begun
            counted += batch["input_ids"].numel()
    model.zero_grad()
    model.train(training)
    # Optimiser and reading of batches take their part too.
    return 0.85 * counted / seconds
