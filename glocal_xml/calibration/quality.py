"""How far scores are from being probabilities."""

from dataclasses import dataclass

import numpy as np

_BINS = 15


@dataclass(frozen=True)
class ReliabilityBins:
    """
    Pairs of text and label with similar scores.

    Args:
        mean_scores: Mean score of the pairs of each bin, ascending, (bins,).
        true_shares: Share of them that are true, (bins,).
        counts: How many they are, (bins,).
    """

    mean_scores: np.ndarray
    true_shares: np.ndarray
    counts: np.ndarray


def reliability_bins(scores: np.ndarray, is_true: np.ndarray, bins: int = _BINS) -> ReliabilityBins:
    """
    Bins of equal mass of probability: if scores are probabilities, each holds the same number of true labels.

    Nearly all labels have scores near 0, so that bins with equally many pairs would put all that is ever given into
    one. Equal scores share a bin; a bin that nothing falls into is left out.

    Args:
        scores: Probabilities of pairs of text and label, (pairs,).
        is_true: Whether the text has the label, (pairs,).
        bins: How many bins to make.
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
