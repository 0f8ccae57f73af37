"""One temperature for all scores: it makes them softer or sharper and changes no ranking."""

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.special import expit, logit

# Beyond these nothing is gained: scores are all but 0.5, or all but 0 and 1.
_TEMPERATURES = (0.05, 20.0)
# The probabilities next to 0 and 1 in single precision, which scores of exactly 0 and 1 stand for.
_LEAST, _MOST = 2.0**-149, 1 - 2.0**-25


def calibrated_scores(scores: np.ndarray, temperature: float) -> np.ndarray:
    """sigmoid(logit / temperature) of probabilities."""
    return expit(_logits(scores) / temperature)


def fit_temperature(scores: np.ndarray, is_true: np.ndarray) -> float:
    """
    The temperature with the least cross-entropy (*On Calibration of Modern Neural Networks*, Guo et al.,
    [arXiv:1706.04599](https://arxiv.org/abs/1706.04599)), with a sigmoid for each label in place of their softmax.

    Args:
        scores: Probabilities of pairs of text and label, (pairs,).
        is_true: Whether the text has the label, (pairs,).
    """
    logits = _logits(scores)
    pull = logits[is_true].sum()

    def cross_entropy(sharpness: float) -> float:
        return np.logaddexp(0, sharpness * logits).sum() - sharpness * pull

    # Convex in 1 / temperature, so that the minimum within the bounds is the only one.
    bounds = (1 / _TEMPERATURES[1], 1 / _TEMPERATURES[0])
    return float(1 / minimize_scalar(cross_entropy, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)


def _logits(scores: np.ndarray) -> np.ndarray:
    return logit(np.clip(np.asarray(scores, dtype=np.float64), _LEAST, _MOST))
