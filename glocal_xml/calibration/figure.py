"""The reliability of scores as a figure: what share of the labels with a score is true, before and after."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np

from glocal_xml.atomic_file import write_atomically
from glocal_xml.matplotlib_extra import check_matplotlib

from .candidates import ScoredLabels
from .quality import brier_score, expected_calibration_error, reliability_bins

# Of Okabe and Ito, told apart with any colour vision.
_COLOUR, _GREY = "#0072B2", "#888888"


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
    drawn = io.BytesIO()
    canvas.savefig(drawn, format=Path(path).suffix.removeprefix("."), dpi=150)
    write_atomically(path, drawn.getvalue())
