"""The figures of a study, as PNG and SVG, and their numbers as CSV."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from glocal_xml.atomic_file import write_atomically

from .studies import MeasuredPoint, Study

# Colours of Okabe and Ito, told apart with any colour vision; the shapes tell them apart in grey.
_STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")]
# Below two points of precision a single run tells little; the axis does not blow such differences up.
_LEAST_SPAN = 2.0


def write_figures(folder: Path, study: Study, points: Sequence[MeasuredPoint], subtitle: str) -> str:
    """Writes all figures of a study as PNG and SVG, and their numbers as CSV; returns Markdown that shows them."""
    expert, table, shown = points[0].point.changes.get("experts", [""])[-1], _table(points), []
    for figure in json.loads(json.dumps(study.figures).replace("{expert}", expert)):
        numbers = [_numbers(panel, table) for panel in figure["panels"]]
        _draw(folder / figure["name"], figure, numbers, subtitle)
        write_atomically(folder / f"{figure['name']}.csv", pd.concat(numbers).to_csv(index=False, lineterminator="\n"))
        shown.append(f"![{figure['title']}]({figure['name']}.png)")
    return "\n\n".join(shown)


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


def _numbers(panel: dict[str, Any], table: pd.DataFrame) -> pd.DataFrame:
    """The numbers of a panel: mean, least and greatest value of the seeds at each place of each curve."""
    quantity = " ".join(panel["y_name"].split())
    curves = [table.query(rows).assign(quantity=quantity, curve=curve) for curve, rows in panel["curves"].items()]
    groups = pd.concat(curves).dropna(subset=panel["column"]).groupby(["quantity", "curve", "x"], sort=False)
    return groups[panel["column"]].agg(mean="mean", least="min", greatest="max", seeds="count").reset_index()


def _draw(path: Path, figure: dict[str, Any], numbers: list[pd.DataFrame], subtitle: str) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    places = pd.concat(numbers)["x"].unique().tolist()
    # Names of models are long: they stand in lines, with the values to the right.
    in_lines = isinstance(places[0], str)
    height = 2.0 + (0.35 * len(places) if in_lines else 2.6 * len(numbers))
    # Ids in the SVG are drawn from this salt, so that equal figures are equal files.
    with matplotlib.rc_context({"svg.hashsalt": figure["name"], "svg.fonttype": "none", "font.size": 10}):
        canvas = Figure(figsize=(7, height), layout="constrained")
        axes = canvas.subplots(len(numbers), 1, sharex=True, squeeze=False)[:, 0]
        for panel, own, axis in zip(figure["panels"], numbers, axes, strict=True):
            _draw_panel(axis, panel, own, places, in_lines)
        (axes[0].set_ylabel if in_lines else axes[-1].set_xlabel)(figure["x_name"])
        handles, names = axes[0].get_legend_handles_labels()
        # Under the figure, where names take no room from it; a single curve is named by its axis.
        if len(names) > 1:
            columns = len(names) if sum(map(len, names)) < 60 else 1
            canvas.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
        canvas.suptitle(figure["title"], fontsize=12, fontweight="bold")
        axes[0].set_title(subtitle, fontsize=9, color="#444444")
        canvas.savefig(path.with_suffix(".png"), dpi=150)
        canvas.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def _draw_panel(axis: Any, panel: dict[str, Any], numbers: pd.DataFrame, places: list[Any], in_lines: bool) -> None:
    for name, (colour, marker) in zip(panel["curves"], _STYLES, strict=False):
        own = numbers[numbers["curve"] == name]
        reach = [own["mean"] - own["least"], own["greatest"] - own["mean"]] if any(own["seeds"] > 1) else None
        style = {"color": colour, "marker": marker, "capsize": 3, "clip_on": False, "label": name}
        if in_lines:
            axis.errorbar(own["mean"], own["x"].map(places.index), xerr=reach, linestyle="", **style)
        else:
            axis.errorbar(own["x"], own["mean"], yerr=reach, **style)
    zero, least_span = panel.get("zero", False), panel.get("least_span", _LEAST_SPAN)
    low, high = numbers["least"].min(), numbers["greatest"].max()
    # A divergence is a quantity from zero on.
    if zero or not least_span:
        low, high = min(low, 0.0), max(high, 0.0)
    room = max((high - low) * 0.08, (least_span - (high - low)) / 2, 1e-12)
    limits = low if low == 0.0 and not zero else low - room, high + room
    if in_lines:
        # The first row on top, as in a table.
        axis.set(yticks=range(len(places)), yticklabels=places, ylim=(len(places) - 0.5, -0.5))
        axis.set(xlabel=panel["y_name"], xlim=limits)
    else:
        axis.set(xticks=places, ylabel=panel["y_name"], ylim=limits)
    if zero:
        axis.axhline(0.0, color="#888888", linewidth=1)
    axis.grid(color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)
