"""The calibration of a run: fitted on its validation texts, judged on its test texts, kept with the model."""

import logging
import os
from collections.abc import Callable
from typing import Any

import numpy as np
from datasets import Dataset

from glocal_xml.calibration import (
    ScoredLabels,
    fit_calibration,
    judge_calibration,
    keep_calibration,
    report_lines,
)
from glocal_xml.data import LabelSpace
from glocal_xml.modeling import XMTCConfig, XMTCPreTrainedModel

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from .prepare import build_model, check_length, load_tokenizer, settle_ranks
from .trainer import XMTCTrainer
from .windows_of_run import tokens_of_run

logger = logging.getLogger(__name__)

CANDIDATES = 100


def check_calibrate(calibrate: str | None, training: bool, has_validation: bool) -> None:
    """Refuses a calibration that would have no texts to be fitted on."""
    if calibrate is not None and not training:
        raise ValueError("`calibrate` is for training; for a trained model: `glocal-xml calibrate MODEL FILE`.")
    if calibrate is not None and not has_validation:
        raise ValueError(
            "`calibrate` needs texts that are not trained on: pass `--validation_file` or `--validation_size`."
        )


def scored_candidates(config: XMTCConfig, wanted: int = CANDIDATES) -> int:
    """How many labels of each text a calibration looks at: no more than the model ranks."""
    shortlist = getattr(config, "shortlist", None)
    return min(wanted, config.num_labels, *([] if shortlist is None else [shortlist]))


def calibration_of_run(
    f: str,
    rank: Callable[[str, int], tuple[np.ndarray, np.ndarray]],
    texts: dict[str, Any],
    label_space: LabelSpace,
    model: XMTCPreTrainedModel,
    folder: str | os.PathLike | None,
) -> dict[str, Any] | None:
    """
    Fits a calibration on the validation texts and writes it into the configuration of the model.

    Args:
        f: What the threshold is the best for: micro, macro or samples.
        rank: From the name of a part and a number, the ids and scores of as many best labels of each of its texts.
        texts: The parts of the data, with `labels`.
        label_space: The labels.
        model: The model.
        folder: Where the model is saved; `None` where another process writes.

    Returns:
        What `results.json` tells of it; `None` where nothing could be fitted.
    """
    number = scored_candidates(model.config)
    num_labels = label_space.num_labels + len(label_space.unseen)
    rankings = {part: rank(part, number) for part in ("validation", "test") if part in texts}
    try:
        pairs = {
            part: ScoredLabels.from_rankings(ids, scores, list(texts[part]["labels"]), num_labels)
            for part, (ids, scores) in rankings.items()
        }
        calibration = fit_calibration(pairs["validation"], f)
    except ValueError as error:
        # No reason to lose a run that has come this far.
        logger.warning("No calibration. %s", error)
        return None
    model.config.calibration = calibration
    if folder is not None:
        keep_calibration(folder, calibration)
    judged = {part: judge_calibration(scored, calibration) for part, scored in pairs.items()}
    for part, measures in judged.items():
        fitted = ", which it was fitted on" if part == "validation" else ""
        logger.info("calibration, %s%s\n%s", part, fitted, "\n".join(report_lines(calibration, measures)))
    return {**calibration, "candidates": number, **judged}


def rank_texts(
    model: str,
    texts: Dataset,
    label_space: LabelSpace,
    args: XMTCTrainingArguments,
    *,
    data_args: DataArguments,
    candidates: int = CANDIDATES,
) -> tuple[np.ndarray, np.ndarray]:
    """
    Ids and scores of the best labels of each text, (texts, candidates), as a trained model ranks them.

    Args:
        model: Folder of the model.
        texts: Columns `text` and `labels`; the latter are not looked at.
        label_space: The labels of the model.
        args: Batch size, device, and whether to show progress.
        data_args: Longest text in tokens, and whether texts are read in windows.
        candidates: How many labels of each text, at most.
    """
    model_args = ModelArguments(model=model)
    tokenizer = load_tokenizer(model_args, data_args.max_length, {})
    loaded = build_model(model_args, label_space, tokenizer)
    check_length(loaded, tokenizer.model_max_length)
    settle_ranks(args, label_space)
    trainer = XMTCTrainer(
        args=args, label_space=label_space, model=loaded, processing_class=tokenizer, windows=data_args.windows
    )
    tokens = tokens_of_run(texts, tokenizer, data_args, training=False)
    return trainer.best_labels(tokens, scored_candidates(loaded.config, candidates))
