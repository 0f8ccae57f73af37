"""The threshold from which on labels are given, by the F measure that it reaches."""

import numpy as np

from glocal_xml.metrics.ranking import ratio
from glocal_xml.modeling.configuration_base import F_KINDS

from .candidates import ScoredLabels


def check_average(average: str, beta: float) -> None:
    """Refuses an F measure that there is not."""
    if average not in F_KINDS:
        raise ValueError(f"The average of F must be one of {', '.join(F_KINDS)}, got {average!r}.")
    if not 0 < beta < np.inf:
        raise ValueError(f"`beta` of F must be above 0, got {beta}: below 1 precision counts more, above 1 recall.")


def best_threshold(pairs: ScoredLabels, average: str = "micro", beta: float = 1.0) -> float:
    """
    The threshold with the highest F measure of all that there are, of equally good ones the highest.

    All three averages are means over groups: of everything (one group), of the pairs of each label, or of those of
    each text. The F of a group only changes where one of its own labels is added, so that sorted changes add up to
    the F at every threshold.

    It lies half-way between the lowest score that is given and the next one below, which no rounding can cross.

    Args:
        pairs: Labels with scores. True labels that are not among them are missed at any threshold.
        average: `"micro"`; `"macro"`, the mean over all labels; or `"samples"`, the mean over texts. 0/0 counts 0.
        beta: How much more recall counts than precision.
    """
    check_average(average, beta)
    if not pairs.is_true.any():
        raise ValueError(
            f"None of the {pairs.true_per_text.sum()} true labels is among the {len(pairs)} scored ones, and every "
            "threshold is as bad: take more candidates, other texts, or a model that has learned more."
        )
    groups, true_counts = _groups(pairs, average)
    # Group by group, the best score first.
    order = np.lexsort((-pairs.scores, groups))
    groups, scores, hits = groups[order], pairs.scores[order], pairs.is_true[order]
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    start = np.repeat(starts, np.diff(starts, append=len(groups)))  # (pairs,)
    given = np.arange(1, len(groups) + 1) - start
    found = np.cumsum(hits)
    found -= (found - hits)[start]
    measure = _f(found, given, true_counts[groups], beta)  # (pairs,)
    change = np.diff(measure, prepend=0.0)
    change[starts] = measure[starts]

    order = np.argsort(-scores, kind="stable")
    scores, total = scores[order], np.cumsum(change[order])
    # Equal scores are given together.
    ends = np.flatnonzero(np.append(scores[1:] < scores[:-1], True))
    best = ends[np.argmax(total[ends])]
    below = scores[best + 1] if best + 1 < len(scores) else 0.0
    return float((scores[best] + below) / 2)


def measures_at(pairs: ScoredLabels, threshold: float, average: str = "micro", beta: float = 1.0) -> dict[str, float]:
    """
    F, precision and recall of the labels with this score or more, how many a text gets, and how many texts get none;
    the rest as for [`best_threshold`].
    """
    check_average(average, beta)
    groups, true = _groups(pairs, average)
    is_given = pairs.scores >= threshold
    given = np.bincount(groups[is_given], minlength=len(true))
    found = np.bincount(groups[is_given & pairs.is_true], minlength=len(true))
    per_text = np.bincount(pairs.texts[is_given], minlength=len(pairs.true_per_text))
    return {
        "f": float(_f(found, given, true, beta).mean()),
        "precision": float(ratio(found, given).mean()),
        "recall": float(ratio(found, true).mean()),
        "labels_per_text": float(per_text.mean()),
        "texts_without_labels": float((per_text == 0).mean()),
    }


def _groups(pairs: ScoredLabels, average: str) -> tuple[np.ndarray, np.ndarray]:
    """The group of each pair, and how many true labels each group has."""
    if average == "micro":
        return np.zeros_like(pairs.texts), pairs.true_per_text.sum(keepdims=True)
    return {"macro": (pairs.labels, pairs.true_per_label), "samples": (pairs.texts, pairs.true_per_text)}[average]


def _f(found: np.ndarray, given: np.ndarray, true: np.ndarray, beta: float) -> np.ndarray:
    return ratio((1 + beta**2) * found, given + beta**2 * true)
