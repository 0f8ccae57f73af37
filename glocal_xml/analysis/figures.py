"""The figures of each study: which curves it draws, as PNG and SVG, and their numbers as CSV."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from .points import MeasuredPoint
from .studies import Study
from .tables import write_csv

# Colours of Okabe and Ito, told apart with any colour vision; the shapes tell them apart in grey.
_STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")]

# A number of a measured point; None where it has none.
Value = Callable[[MeasuredPoint], float | None]


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis; `zero` draws a line at zero, `least_span` keeps small differences looking small."""

    y_name: str
    curves: dict[str, Value]
    # Below two points of precision a single run tells little; the axis does not blow such differences up.
    least_span: float = 2.0
    zero: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: its title, its horizontal axis, its panels, one above the other, and the name of its files."""

    title: str
    x_name: str
    panels: list[Panel]
    name: str = "precision"


def _precision(k: int, branch: str | None = None, line: str | None = None) -> Value:
    """P@k in percent of a branch, where a model has it, or of the final ranking; of the points of one line, or all."""

    def value(measured: MeasuredPoint) -> float | None:
        metrics = measured.results["test"].get(branch or measured.final_branch)
        return None if metrics is None or line not in (None, measured.point.line) else 100 * metrics[f"precision@{k}"]

    return value


def _divergence(name: str, line: str | None = None) -> Value:
    return lambda measured: measured.divergences["pairs"][0][name] if line in (None, measured.point.line) else None


def _relative_gain(measured: MeasuredPoint) -> float | None:
    both, alone = (measured.results["test"][branch]["precision@5"] for branch in ("both", "global"))
    # Nothing found is nothing to gain on.
    return 100 * (both - alone) / alone if alone > 0 else None


_BRANCHES = {branch: _precision(5, branch) for branch in ("both", "global", "local")}
_LINES = {"A-m: label-to-word attention on layer m": "A-m", "D-m: document token of layer m": "D-m"}
_LAYER, _SECOND = "layer that the local branch reads (0: embeddings)", "layer m of the second expert"
_GAIN, _DIVERGENCE = (
    "P@5 of both over global\n(percent of global)",
    "JSD of global and local\n(nats, mean over labels)",
)
_KL = "KL(second || {last})\n(nats per text, sum over its true labels)"
_CLUSTERS = [Panel("P@1 (percent)", {"APLC-XLNet": _precision(1)})]

# {last} is the expert on the last layer.
FIGURES = {
    ("layers", "glocal_xml"): [
        Figure("P@5 against the local layer", _LAYER, [Panel("P@5 (percent)", _BRANCHES)]),
        Figure(
            "Gain of both branches and their divergence against the local layer",
            _LAYER,
            [
                Panel(_GAIN, {"relative gain": _relative_gain}, zero=True),
                Panel(_DIVERGENCE, {"Jensen-Shannon divergence": _divergence("jsd")}, least_span=0.0),
            ],
            "gain_and_divergence",
        ),
    ],
    ("experts", "me_xml"): [
        Figure(
            "P@5 of two experts, {last} and a second one, against its layer",
            _SECOND,
            [Panel("P@5 of both experts (percent)", {title: _precision(5, None, x) for title, x in _LINES.items()})],
        ),
        Figure(
            "Divergence of the second expert from {last} on true labels",
            _SECOND,
            [Panel(_KL, {title: _divergence("kl_per_text", line) for title, line in _LINES.items()}, least_span=0.0)],
            "divergence",
        ),
    ],
    ("clusters", "aplc_xlnet"): [Figure("P@1 against the number of equal clusters", "number of clusters", _CLUSTERS)],
    ("partitions", "aplc_xlnet"): [
        Figure("P@1 of three partitions of the labels", "head / tail 1 / tail 2", _CLUSTERS)
    ],
    ("ablations", "glocal_xml"): [
        Figure("P@5 of GlocalXML and its ablations", "model", [Panel("P@5 (percent)", _BRANCHES)])
    ],
    ("ablations", "me_xml"): [
        Figure(
            "P@5 of ME-XML and its ablations",
            "experts and losses",
            [Panel("P@5 of all experts (percent)", {"ME-XML": _precision(5)})],
        )
    ],
}


def write_figures(folder: Path, study: Study, points: Sequence[MeasuredPoint], subtitle: str) -> str:
    """Writes all figures of a study as PNG and SVG, and their numbers as CSV; returns Markdown that shows them."""
    last, shown = points[0].point.changes.get("experts", [""])[-1], []
    for figure in FIGURES[study.name, study.model_type]:
        panels = [replace(panel, y_name=panel.y_name.format(last=last)) for panel in figure.panels]
        figure = replace(figure, title=figure.title.format(last=last), panels=panels)
        numbers = [_numbers(panel, points) for panel in panels]
        _draw(folder / figure.name, figure, numbers, subtitle)
        write_csv(folder / f"{figure.name}.csv", pd.concat(numbers))
        shown.append(f"![{figure.title}]({figure.name}.png)")
    return "\n\n".join(shown)


def _numbers(panel: Panel, points: Sequence[MeasuredPoint]) -> pd.DataFrame:
    """The numbers of a panel: mean, least and greatest value of the seeds at each place of each curve."""
    quantity, keys = " ".join(panel.y_name.split()), ["quantity", "curve", "x"]
    rows = [
        (quantity, curve, measured.point.name if measured.point.x is None else measured.point.x, value(measured))
        for curve, value in panel.curves.items()
        for measured in points
    ]
    groups = pd.DataFrame(rows, columns=[*keys, "value"]).dropna().groupby(keys, sort=False)["value"]
    return groups.agg(mean="mean", least="min", greatest="max", seeds="count").reset_index()


def _draw(path: Path, figure: Figure, numbers: list[pd.DataFrame], subtitle: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    places = pd.concat(numbers)["x"].unique().tolist()
    # Names of models are long: they stand in lines, with the values to the right.
    in_lines = isinstance(places[0], str)
    height = 2.0 + (0.35 * len(places) if in_lines else 2.6 * len(figure.panels))
    # Ids in the SVG are drawn from this salt, so that equal figures are equal files.
    with matplotlib.rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "none", "font.size": 10}):
        canvas = Canvas(figsize=(7, height), layout="constrained")
        axes = canvas.subplots(len(figure.panels), 1, sharex=True, squeeze=False)[:, 0]
        for panel, own, axis in zip(figure.panels, numbers, axes, strict=True):
            _draw_panel(axis, panel, own, places, in_lines)
        (axes[0].set_ylabel if in_lines else axes[-1].set_xlabel)(figure.x_name)
        handles, names = axes[0].get_legend_handles_labels()
        # Under the figure, where names take no room from it; a single curve is named by its axis.
        if len(names) > 1:
            columns = len(names) if sum(map(len, names)) < 60 else 1
            canvas.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
        canvas.suptitle(figure.title, fontsize=12, fontweight="bold")
        axes[0].set_title(subtitle, fontsize=9, color="#444444")
        canvas.savefig(path.with_suffix(".png"), dpi=150)
        canvas.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _draw_panel(axis: Any, panel: Panel, numbers: pd.DataFrame, places: list[Any], in_lines: bool) -> None:
    for name, (colour, marker) in zip(panel.curves, _STYLES, strict=False):
        own = numbers[numbers["curve"] == name]
        reach = [own["mean"] - own["least"], own["greatest"] - own["mean"]] if any(own["seeds"] > 1) else None
        style = {"color": colour, "marker": marker, "capsize": 3, "clip_on": False, "label": name}
        if in_lines:
            axis.errorbar(own["mean"], own["x"].map(places.index), xerr=reach, linestyle="", **style)
        else:
            axis.errorbar(own["x"], own["mean"], yerr=reach, **style)
    if in_lines:
        # The first row on top, as in a table.
        axis.set(yticks=range(len(places)), yticklabels=places, ylim=(len(places) - 0.5, -0.5))
        axis.set(xlabel=panel.y_name, xlim=_limits(panel, numbers))
    else:
        axis.set(xticks=places, ylabel=panel.y_name, ylim=_limits(panel, numbers))
    if panel.zero:
        axis.axhline(0.0, color="#888888", linewidth=1)
    axis.grid(color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)


def _limits(panel: Panel, numbers: pd.DataFrame) -> tuple[float, float]:
    """A range with some room around the values, zero in it where that is drawn, and not narrower than it may be."""
    low, high = numbers["least"].min(), numbers["greatest"].max()
    # A divergence is a quantity from zero on.
    if panel.zero or not panel.least_span:
        low, high = min(low, 0.0), max(high, 0.0)
    room = max((high - low) * 0.08, (panel.least_span - (high - low)) / 2, 1e-12)
    return (low if low == 0.0 and not panel.zero else low - room), high + room
