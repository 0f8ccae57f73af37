"""Figures as PNG and SVG, each readable on its own, and their numbers as CSV."""

import io
import os
from pathlib import Path
from typing import Any

from .curves import Figure, Panel
from .tables import Row, write_csv

# Colours of Okabe and Ito, told apart with any colour vision; the shapes tell them apart in grey.
_STYLES = [("#0072B2", "o"), ("#D55E00", "s"), ("#009E73", "^"), ("#CC79A7", "D")]


def check_matplotlib() -> None:
    """Refuses to start hours of training whose figures could not be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError(
            "Figures need matplotlib: install the extra by `pip install 'glocal-xml[analysis]'`."
        ) from None


def write_figure(folder: str | os.PathLike, figure: Figure, subtitle: str) -> None:
    """Writes `<name>.png`, `<name>.svg` and `<name>.csv`."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    tables = {panel.y_name: panel for panel in figure.panels}
    categories = [place for place in figure.panels[0].curves[0].values if isinstance(place, str)]
    # Names of models are long: they stand in lines, with the values to the right.
    height = 2.0 + 0.35 * len(_places(figure)) if categories else 2.0 + 2.6 * len(tables)
    # Ids in the SVG are drawn from this salt, so that equal figures are equal files.
    with matplotlib.rc_context({"svg.hashsalt": figure.name, "svg.fonttype": "none", "font.size": 10}):
        canvas = Canvas(figsize=(7, height), layout="constrained")
        axes = canvas.subplots(len(tables), 1, sharex=True, squeeze=False)[:, 0]
        for panel, axis in zip(figure.panels, axes, strict=True):
            if categories:
                _draw_rows(axis, panel, _places(figure))
            else:
                _draw_lines(axis, panel, _places(figure))
        (axes[0].set_ylabel if categories else axes[-1].set_xlabel)(figure.x_name)
        _add_legend(canvas, axes[0])
        canvas.suptitle(figure.title, fontsize=12, fontweight="bold")
        axes[0].set_title(subtitle, fontsize=9, color="#444444")
        for kind, options in {"png": {"dpi": 150}, "svg": {"metadata": {"Date": None}}}.items():
            written = io.BytesIO()
            canvas.savefig(written, format=kind, **options)
            Path(folder, f"{figure.name}.{kind}").write_bytes(written.getvalue())
    write_csv(Path(folder, f"{figure.name}.csv"), figure_rows(figure))


def figure_rows(figure: Figure) -> list[Row]:
    """The numbers of a figure: mean, least and greatest value of the seeds at each place of each curve."""
    return [
        {
            "quantity": " ".join(panel.y_name.split()),
            "curve": curve.name,
            "x": place,
            "mean": sum(values) / len(values),
            "least": min(values),
            "greatest": max(values),
            "seeds": len(values),
        }
        for panel in figure.panels
        for curve in panel.curves
        for place, values in curve.values.items()
    ]


def _places(figure: Figure) -> list[int | str]:
    return list(dict.fromkeys(place for panel in figure.panels for curve in panel.curves for place in curve.values))


def _draw_lines(axis: Any, panel: Panel, places: list[int | str]) -> None:
    for curve, (colour, marker) in zip(panel.curves, _STYLES, strict=False):
        axis.errorbar(*_means(curve.values), color=colour, marker=marker, capsize=3, clip_on=False, label=curve.name)
    axis.set_xticks(places)
    axis.set_ylabel(panel.y_name)
    axis.set_ylim(*_limits(panel))
    _finish(axis, panel)


def _draw_rows(axis: Any, panel: Panel, places: list[int | str]) -> None:
    for curve, (colour, marker) in zip(panel.curves, _STYLES, strict=False):
        names, means, ranges = _means(curve.values)
        rows = [places.index(name) for name in names]
        axis.errorbar(means, rows, xerr=ranges, color=colour, marker=marker, linestyle="", capsize=3, label=curve.name)
    axis.set_yticks(range(len(places)), places)
    # The first row on top, as in a table.
    axis.set_ylim(len(places) - 0.5, -0.5)
    axis.set_xlabel(panel.y_name)
    axis.set_xlim(*_limits(panel))
    _finish(axis, panel)


def _finish(axis: Any, panel: Panel) -> None:
    if panel.zero:
        axis.axhline(0.0, color="#888888", linewidth=1)
    axis.grid(color="#DDDDDD", linewidth=0.6)
    axis.set_axisbelow(True)


def _add_legend(canvas: Any, axis: Any) -> None:
    """Names of the curves under the figure, where they take no room from it; a single curve is named by its axis."""
    handles, names = axis.get_legend_handles_labels()
    if len(names) > 1:
        columns = len(names) if sum(map(len, names)) < 60 else 1
        canvas.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)


def _means(values: dict[int | str, list[float]]) -> tuple[list[int | str], list[float], list[list[float]] | None]:
    """Places, means, and how far the seeds reach below and above them."""
    means = [sum(numbers) / len(numbers) for numbers in values.values()]
    below = [mean - min(numbers) for mean, numbers in zip(means, values.values(), strict=True)]
    above = [max(numbers) - mean for mean, numbers in zip(means, values.values(), strict=True)]
    several = any(len(numbers) > 1 for numbers in values.values())
    return list(values), means, [below, above] if several else None


def _limits(panel: Panel) -> tuple[float, float]:
    """A range with some room around the values, zero in it where that is drawn, and not narrower than it may be."""
    numbers = [number for curve in panel.curves for numbers in curve.values.values() for number in numbers]
    low, high = min(numbers), max(numbers)
    # A divergence is a quantity from zero on.
    if panel.zero or not panel.least_span:
        low, high = min(low, 0.0), max(high, 0.0)
    room = max((high - low) * 0.08, (panel.least_span - (high - low)) / 2, 1e-12)
    return (low if low == 0.0 and not panel.zero else low - room), high + room
