"""How much of a time budget heads and encoder get, and how long texts may be for it."""

import logging
import time
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.training.arguments import DataArguments, XMTCTrainingArguments
from glocal_xml.training.time_budget import TimeBudget

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
_EMBEDDING, _MOST_EMBEDDING = 0.3, 0.3
# A dense memory of fewer texts is not worth its time.
_LEAST_EMBEDDED = 2000
# What is kept back to fit the blend and to save the model.
_SAVING = 2.0


def plan_time(
    args: XMTCTrainingArguments,
    data_args: DataArguments,
    model: XMTCPreTrainedModel,
    texts: dict[str, Any],
    tokenizer: PreTrainedTokenizerBase,
    started: float,
    expert_seconds: float,
    has_dense: bool,
) -> tuple[TimeBudget, float]:
    """
    What is left of `args.minutes` for heads and encoder, where a second fit of the experts takes `expert_seconds`; and
    of it, in seconds, what embeddings of the dense memory may take, 0 where that would be too little. Sets the length
    of texts, where none is given, to the longest with which all training texts are read once in the time of the heads,
    from the measured speed of the first steps.
    """
    speed = _tokens_per_second(args, model, texts["train"], tokenizer)
    held_out = len(texts["validation"]) if "validation" in texts else 0
    seconds = 60 * args.minutes - (time.time() - started)
    refit = expert_seconds if args.refit_experts and held_out else 0.0
    # What embeddings add to reading all texts once.
    reading = 1 + _EMBEDDING * has_dense
    left = seconds_for_heads(seconds, refit, 0.0)
    sample = texts["train"].select(range(min(2000, len(texts["train"]))))
    limit = min(_LENGTHS[0], tokenizer.model_max_length)
    lengths = np.array(start_tokens(sample, tokenizer, limit)["length"])
    if data_args.max_length is None:
        for length in (size for size in _LENGTHS if size <= limit):
            tokenizer.model_max_length = length
            tokens = len(texts["train"]) * np.minimum(lengths, length).mean()
            if reading * tokens / speed <= left:
                break
    per_text = np.minimum(lengths, tokenizer.model_max_length).mean() / speed
    left = seconds_for_heads(seconds, refit, held_out * per_text * (_PREDICTION + _EMBEDDING * has_dense))
    dense = min(_EMBEDDING * per_text * len(texts["train"]), _MOST_EMBEDDING * left) if has_dense else 0.0
    if dense < _EMBEDDING * per_text * min(_LEAST_EMBEDDED, len(texts["train"])):
        dense = 0.0
    left -= dense
    args.num_train_epochs = min(_MOST_EPOCHS, np.ceil(left / (per_text * len(texts["train"]))))
    logger.info(
        "%.1f minutes for heads and encoder: about %d texts of up to %d tokens (%d tokens a second)",
        left / 60,
        min(left / per_text, args.num_train_epochs * len(texts["train"])),
        tokenizer.model_max_length,
        speed,
    )
    return TimeBudget(left, args.warmup_steps if args.warmup_steps < 1 else 0.1), dense


def seconds_for_heads(seconds: float, refit: float, prediction: float) -> float:
    """
    How long heads and encoder may train, of what is left of a budget.

    Args:
        seconds: What is left.
        refit: What the second fit of the experts takes. Where that is more than half of it, heads come first, and
            the held-out texts stay out of the experts.
        prediction: What the prediction of held-out texts takes.
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
    args: XMTCTrainingArguments, model: XMTCPreTrainedModel, texts: Any, tokenizer: PreTrainedTokenizerBase
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
