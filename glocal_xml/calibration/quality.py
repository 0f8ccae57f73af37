"""How far scores are from being probabilities, and what the threshold of a model reaches."""

from typing import Any, NamedTuple

import numpy as np

from .candidates import ScoredLabels
from .threshold import measures_at

_BINS = 15


class ReliabilityBins(NamedTuple):
    """Pairs of text and label with similar scores, by bin: their mean score, ascending, true share, and number."""

    mean_scores: np.ndarray
    true_shares: np.ndarray
    counts: np.ndarray


def reliability_bins(scores: np.ndarray, is_true: np.ndarray, bins: int = _BINS) -> ReliabilityBins:
    """
    Bins of equal mass of probability: if scores are probabilities, each holds the same number of true labels.

    Nearly all labels have scores near 0, so that bins with equally many pairs would put all that is ever given into
    one. Equal scores share a bin; a bin that nothing falls into is left out. Scores are probabilities of pairs of text
    and label, (pairs,).
    """
    distinct, places = np.unique(scores, return_inverse=True)
    mass = distinct * np.bincount(places)
    below = np.cumsum(mass) - mass
    # The last of them may be rounded up.
    indices = np.minimum(below / max(mass.sum(), np.finfo(float).tiny) * bins, bins - 1).astype(np.int64)[places]
    counts = np.bincount(indices, minlength=bins)
    sums = (np.bincount(indices, weights=values, minlength=bins) for values in (scores, is_true))
    mean_scores, true_shares = (total[counts > 0] / counts[counts > 0] for total in sums)
    return ReliabilityBins(mean_scores, true_shares, counts[counts > 0])


def expected_calibration_error(scores: np.ndarray, is_true: np.ndarray, bins: int = _BINS) -> float:
    """
    Mean distance of the score from the share of true labels in its bin, over pairs (Naeini et al. 2015, with the bins
    of [`reliability_bins`]). Small by nature where nearly all scores are near 0: to be compared, not judged alone.
    """
    found = reliability_bins(scores, is_true, bins)
    return float(np.average(np.abs(found.mean_scores - found.true_shares), weights=found.counts))


def brier_score(scores: np.ndarray, is_true: np.ndarray) -> float:
    """Mean squared distance of scores from the truth, over pairs."""
    return float(np.mean((scores - is_true) ** 2))


def cross_entropy(scores: np.ndarray, is_true: np.ndarray) -> float:
    """Mean negative log-likelihood of the truth, over pairs."""
    least = np.finfo(float).tiny
    return float(-np.log(np.maximum(np.where(is_true, scores, 1 - scores), least)).mean())


def judge_scores(pairs: ScoredLabels, blend: dict[str, Any]) -> dict[str, Any]:
    """
    What probabilities reach on texts: their quality, and F, precision and recall of the labels from the threshold of
    the blend (`config.blend`) on. Honest on texts that the blend was not fitted on.
    """
    return {
        "texts": len(pairs.true_per_text),
        "true_labels_scored": float(pairs.is_true.sum() / max(1, pairs.true_per_text.sum())),
        "calibration_error": expected_calibration_error(pairs.scores, pairs.is_true),
        "brier": brier_score(pairs.scores, pairs.is_true),
        "cross_entropy": cross_entropy(pairs.scores, pairs.is_true),
        **measures_at(pairs, blend["threshold"], blend["f"], blend["beta"]),
    }


def report_lines(blend: dict[str, Any], judged: dict[str, Any]) -> list[str]:
    """A blend and what it reaches, to read."""
    beta = blend["beta"]
    measure = f"{blend['f']} F{'1' if beta == 1 else f' (beta {beta:g})'}"
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in blend["weights"].items())
    return [
        f"weights: {weights}; threshold {blend['threshold']:.4f}",
        f"expected calibration error {judged['calibration_error']:.5f}, Brier {judged['brier']:.5f}, "
        f"cross-entropy {judged['cross_entropy']:.5f}",
        f"{measure} {100 * judged['f']:.2f}, precision {100 * judged['precision']:.2f}, "
        f"recall {100 * judged['recall']:.2f} (percent)",
        f"{judged['labels_per_text']:.2f} labels per text, {100 * judged['texts_without_labels']:.1f} % of "
        f"{judged['texts']} texts without any; {100 * judged['true_labels_scored']:.1f} % of the true labels are "
        "among those scored",
    ]
