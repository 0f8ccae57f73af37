"""Fitting temperature and threshold, and judging them."""

from dataclasses import replace
from typing import Any

from .candidates import ScoredLabels
from .quality import brier_score, cross_entropy, expected_calibration_error
from .temperature import calibrated_scores, fit_temperature
from .threshold import best_threshold, check_average, measures_at


def fit_calibration(pairs: ScoredLabels, f: str = "micro", beta: float = 1.0) -> dict[str, Any]:
    """
    The temperature with the least cross-entropy and, on scores calibrated by it, the threshold with the highest F.

    Args:
        pairs: The best labels of texts that were not trained on.
        f: `"micro"`, `"macro"` or `"samples"`.
        beta: How much more recall counts than precision.

    Returns:
        What `config.calibration` of a model holds.
    """
    check_average(f, beta)
    temperature = fit_temperature(pairs.scores, pairs.is_true)
    threshold = best_threshold(at_temperature(pairs, temperature), f, beta)
    texts = len(pairs.true_per_text)
    return {"temperature": temperature, "threshold": threshold, "f": f, "beta": float(beta), "texts": texts}


def judge_calibration(pairs: ScoredLabels, calibration: dict[str, Any]) -> dict[str, Any]:
    """
    What a calibration reaches on texts: how good scores are `before` and `after`, and F, precision and recall of what
    is given at its threshold. Honest on texts that it was not fitted on.

    Args:
        pairs: The best labels of the texts.
        calibration: As [`fit_calibration`] returns it.
    """
    after = at_temperature(pairs, calibration["temperature"])
    return {
        "texts": len(pairs.true_per_text),
        "true_labels_scored": float(pairs.is_true.sum() / max(1, pairs.true_per_text.sum())),
        "before": _quality(pairs),
        "after": _quality(after),
        **measures_at(after, calibration["threshold"], calibration["f"], calibration["beta"]),
    }


def at_temperature(pairs: ScoredLabels, temperature: float) -> ScoredLabels:
    """The same pairs with calibrated scores."""
    return replace(pairs, scores=calibrated_scores(pairs.scores, temperature))


def report_lines(calibration: dict[str, Any], judged: dict[str, Any]) -> list[str]:
    """A calibration and what it reaches, to read."""
    before, after = judged["before"], judged["after"]
    beta = calibration["beta"]
    measure = f"{calibration['f']} F{'1' if beta == 1 else f' (beta {beta:g})'}"
    return [
        f"temperature {calibration['temperature']:.3f}, threshold {calibration['threshold']:.4f}",
        f"expected calibration error {before['calibration_error']:.5f} -> {after['calibration_error']:.5f}, "
        f"Brier {before['brier']:.5f} -> {after['brier']:.5f}, "
        f"cross-entropy {before['cross_entropy']:.5f} -> {after['cross_entropy']:.5f}",
        f"{measure} {100 * judged['f']:.2f}, precision {100 * judged['precision']:.2f}, "
        f"recall {100 * judged['recall']:.2f} (percent)",
        f"{judged['labels_per_text']:.2f} labels per text, {100 * judged['texts_without_labels']:.1f} % of "
        f"{judged['texts']} texts without any; {100 * judged['true_labels_scored']:.1f} % of the true labels are "
        "among those scored",
    ]


def _quality(pairs: ScoredLabels) -> dict[str, float]:
    return {
        "calibration_error": expected_calibration_error(pairs.scores, pairs.is_true),
        "brier": brier_score(pairs.scores, pairs.is_true),
        "cross_entropy": cross_entropy(pairs.scores, pairs.is_true),
    }
