"""The figures of a study, as PNG and SVG, and their numbers as CSV."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

from glocal_xml.atomic_file import write_atomically

from .points import MeasuredPoint
from .studies import Figure, Panel, Study

# Colours of Okabe and Ito, told apart with any colour vision; the shapes tell them apart in grey.
_STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")]


def write_figures(folder: Path, study: Study, points: Sequence[MeasuredPoint], subtitle: str) -> str:
    """Writes all figures of a study as PNG and SVG, and their numbers as CSV; returns Markdown that shows them."""
    last, table, shown = points[0].point.changes.get("experts", [""])[-1], _table(points), []
    for figure in study.figures:
        panels = [replace(panel, y_name=panel.y_name.format(last=last)) for panel in figure.panels]
        figure = replace(figure, title=figure.title.format(last=last), panels=panels)
        numbers = [_numbers(panel, table) for panel in panels]
        _draw(folder / figure.name, figure, numbers, subtitle)
        write_csv(folder / f"{figure.name}.csv", pd.concat(numbers))
        shown.append(f"![{figure.title}]({figure.name}.png)")
    return "\n\n".join(shown)


def write_csv(path: Path, table: pd.DataFrame) -> None:
    """Writes a table; numbers as Python reads them back."""
    write_atomically(path, table.to_csv(index=False, lineterminator="\n"))


def _table(points: Sequence[MeasuredPoint]) -> pd.DataFrame:
    """A row for each run and branch: percent of P@k, and with the final ranking what is of the run as a whole."""
    rows = []
    for measured in points:
        point, test, final = measured.point, measured.results["test"], measured.final_branch
        of_run = dict(*measured.divergences["pairs"][:1])
        # Nothing found is nothing to gain on.
        if alone := test.get("global", {}).get("precision@5"):
            of_run["gain"] = 100 * (test[final]["precision@5"] - alone) / alone
        for branch, metrics in test.items():
            row = {"x": point.name if point.x is None else point.x, "line": point.line, "branch": branch}
            row |= {f"precision@{k}": 100 * metrics[f"precision@{k}"] for k in (1, 5)}
            rows.append({**row, "is_final": branch == final, **(of_run if branch == final else {})})
    return pd.DataFrame(rows)


def _numbers(panel: Panel, table: pd.DataFrame) -> pd.DataFrame:
    """The numbers of a panel: mean, least and greatest value of the seeds at each place of each curve."""
    quantity = " ".join(panel.y_name.split())
    curves = [table.query(rows).assign(quantity=quantity, curve=curve) for curve, rows in panel.curves.items()]
    groups = pd.concat(curves).dropna(subset=panel.column).groupby(["quantity", "curve", "x"], sort=False)
    return groups[panel.column].agg(mean="mean", least="min", greatest="max", seeds="count").reset_index()


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
