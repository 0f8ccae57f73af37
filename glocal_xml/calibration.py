"""How good probabilities are, and the threshold from which on labels are given."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from glocal_xml.atomic_file import open_atomically
from glocal_xml.matplotlib_extra import check_matplotlib
from glocal_xml.metrics import RankedLabels
from glocal_xml.metrics.ranking import ratio
from glocal_xml.modeling.configuration_base import F_KINDS

_BINS = 15
# Of Okabe and Ito, told apart with any colour vision.
_COLOUR, _GREY = "#0072B2", "#888888"


@dataclass(frozen=True)
class ScoredLabels:
    """
    The best labels of each text, one pair of text and label after the other, with its probability in double precision
    and whether it is true; nothing grows with texts times labels. How many labels a text has, and how many texts a
    label, is counted beyond the pairs too.
    """

    texts: np.ndarray  # (pairs,)
    labels: np.ndarray  # (pairs,)
    scores: np.ndarray  # (pairs,)
    is_true: np.ndarray  # (pairs,)
    true_per_text: np.ndarray  # (texts,)
    true_per_label: np.ndarray  # (labels,)

    @classmethod
    def from_rankings(
        cls,
        top_k_ids: ArrayLike,
        top_k_scores: ArrayLike,
        true_labels: ArrayLike | Iterable[Sequence[int]],
        num_labels: int,
    ) -> "ScoredLabels":
        """
        Pairs from the best labels of each text and their probabilities, both (texts, candidates), and true labels, as
        [`RankedLabels`] takes them; `num_labels` counts labels too that are met only in evaluation data.
        """
        ranked, scores = RankedLabels(top_k_ids, true_labels, num_labels), np.asarray(top_k_scores, dtype=np.float64)
        if scores.shape != ranked.ids.shape:
            raise ValueError(f"There are scores of shape {scores.shape} for labels of shape {ranked.ids.shape}.")
        if not ((scores >= 0) & (scores <= 1)).all():
            raise ValueError(
                f"Scores must be probabilities, got values from {scores.min()} to {scores.max()}: a model whose "
                "scores are no numbers has diverged in training."
            )
        texts, columns = np.nonzero(ranked.ids >= 0)
        return cls(
            texts=texts,
            labels=ranked.ids[texts, columns],
            scores=scores[texts, columns],
            is_true=ranked.hits[texts, columns],
            true_per_text=ranked.true_counts,
            true_per_label=np.bincount(ranked.true_ids, minlength=num_labels),
        )

    def __len__(self) -> int:
        return len(self.scores)


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


def expected_calibration_error(scores: np.ndarray, is_true: np.ndarray) -> float:
    """
    Mean distance of the score from the share of true labels in its bin, over pairs (Naeini et al. 2015, with the bins
    of [`reliability_bins`]). Small by nature where nearly all scores are near 0: to be compared, not judged alone.
    """
    found = reliability_bins(scores, is_true)
    return float(np.average(np.abs(found.mean_scores - found.true_shares), weights=found.counts))


def brier_score(scores: np.ndarray, is_true: np.ndarray) -> float:
    """Mean squared distance of scores from the truth, over pairs."""
    return float(np.mean((scores - is_true) ** 2))


def judge_scores(pairs: ScoredLabels, blend: dict[str, Any]) -> dict[str, Any]:
    """
    What probabilities reach on texts: their quality, and F, precision and recall of the labels from the threshold of
    the blend (`config.blend`) on. Honest on texts that the blend was not fitted on.
    """
    of_truth = np.where(pairs.is_true, pairs.scores, 1 - pairs.scores)  # (pairs,)
    return {
        "texts": len(pairs.true_per_text),
        "true_labels_scored": float(pairs.is_true.sum() / max(1, pairs.true_per_text.sum())),
        "calibration_error": expected_calibration_error(pairs.scores, pairs.is_true),
        "brier": brier_score(pairs.scores, pairs.is_true),
        "cross_entropy": float(-np.log(np.maximum(of_truth, np.finfo(float).tiny)).mean()),
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


def check_figure(path: str | os.PathLike) -> None:
    """Refuses a figure that could not be drawn, before the work is done."""
    check_matplotlib()
    from matplotlib.figure import Figure

    kinds = sorted(Figure().canvas.get_supported_filetypes())
    if Path(path).suffix.removeprefix(".") not in kinds:
        raise ValueError(f"The figure must be one of {', '.join(kinds)}, got {os.fspath(path)!r}: name it so.")
    if not Path(path).resolve().parent.is_dir():
        raise ValueError(f"There is no folder for the figure {os.fspath(path)!r}: make it first.")


def write_figure(
    path: str | os.PathLike, before: ScoredLabels, after: ScoredLabels, blend: dict[str, Any], title: str
) -> None:
    """
    Draws scores against the share of labels that are true, before and after a fit, with the size of each bin, and the
    threshold of the fitted blend; best of other texts than it was fitted on. The ending of the path is its format.
    """
    check_figure(path)
    from matplotlib.figure import Figure

    threshold = blend["threshold"]
    canvas = Figure(figsize=(9, 6), layout="constrained")
    axes = canvas.subplots(2, 2, sharex=True, sharey="row", height_ratios=[3, 1])
    columns = {"before": before, "after": after}
    for (name, shown), (upper, lower) in zip(columns.items(), axes.T, strict=True):
        bins = reliability_bins(shown.scores, shown.is_true)
        upper.plot([0, 1], [0, 1], color=_GREY, linestyle="--", label="as probabilities would be")
        # Two standard errors of a share, no less than those of one label more or less.
        shares = np.clip(bins.true_shares, 1 / (bins.counts + 1), bins.counts / (bins.counts + 1))
        errors = 2 * np.sqrt(shares * (1 - shares) / bins.counts)
        reach = np.stack([np.minimum(errors, bins.true_shares), np.minimum(errors, 1 - bins.true_shares)])
        style = {"color": _COLOUR, "marker": "o"}
        upper.errorbar(bins.mean_scores, bins.true_shares, reach, **style, capsize=3, label="labels by score")
        error, brier = (judge(shown.scores, shown.is_true) for judge in (expected_calibration_error, brier_score))
        upper.set_title(f"{name}\ncalibration error {error:.5f}, Brier {brier:.5f}", fontsize=10)
        lower.plot(bins.mean_scores, bins.counts, **style, linestyle="")
        lower.vlines(bins.mean_scores, 0.5, bins.counts, color=_COLOUR, linewidth=1)
        lower.set_yscale("log")
        lower.set_ylim(bottom=0.5)
        lower.set_xlabel("mean score of the bin")
        for axis in (upper, lower):
            axis.grid(color="#DDDDDD", linewidth=0.6)
            axis.set_axisbelow(True)
    for axis in axes[:, 1]:
        axis.axvline(threshold, color="#D55E00", linewidth=1.2, label=f"threshold {threshold:.2f}")
    axes[0, 0].set(ylabel="share of labels that are true", xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    axes[1, 0].set_ylabel("labels of the bin")
    axes[0, 1].legend(loc="lower right", frameon=False)
    canvas.suptitle(title, fontsize=12, fontweight="bold")
    with open_atomically(path) as file:
        canvas.savefig(file, format=Path(path).suffix.removeprefix("."), dpi=150)
