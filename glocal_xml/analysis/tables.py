"""Numbers of a study as rows: CSV files, and the same in Markdown."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import percent, ranks
from glocal_xml.hub.run_files import BASELINE

from .points import MeasuredPoint

Row = dict[str, Any]
_DIVERGENCES = {"jsd": "JSD", "kl_per_text": "KL per text", "kl_per_positive": "KL per true label"}


def branch_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """All metrics on the test texts of every run and branch, as `results.json` has them."""
    return [{**_head(m), "branch": branch, **metrics} for m in points for branch, metrics in m.results["test"].items()]


def divergence_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """The divergences of every run and pair of branches, as `divergences.json` has them."""
    return [{**_head(measured), **pair} for measured in points for pair in measured.divergences["pairs"]]


def band_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """Macro precision, recall and F1 at the largest k by branch and band of labels: table 3 of ME-XML."""
    rows = []
    for measured in points:
        columns = _macro_columns(measured)
        for branch, metrics in measured.results["test"].items():
            for band in reversed(BAND_LIMITS):
                values = {name: metrics[f"{name}_{band}"] for name in columns if f"{name}_{band}" in metrics}
                # A band without labels has no metrics.
                if values:
                    rows.append({**_head(measured), "branch": branch, "band": band, **values})
    return rows


def _macro_columns(measured: MeasuredPoint) -> list[str]:
    k = ranks(measured.results["test"][BASELINE])[-1]
    return [f"macro_{name}@{k}" for name in ("precision", "recall", "f1")]


def _head(measured: MeasuredPoint) -> Row:
    return {"point": measured.point.name, "x": measured.point.x, "line": measured.point.line, "seed": measured.seed}


def write_csv(path: str | os.PathLike, rows: Sequence[Row]) -> None:
    """Writes rows with all columns that any of them has; numbers as Python reads them back."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def precision_table(points: Sequence[MeasuredPoint]) -> str:
    """P@1, P@3 and P@5 in percent of every point and branch; the label frequency once."""
    # The label frequency is the same in all runs; the study is about the others.
    rows = [row for row in branch_rows(points) if row["branch"] != BASELINE]
    rows += [{**row, "point": ""} for row in branch_rows(points[:1]) if row["branch"] == BASELINE]
    return _markdown(rows, ("point", "branch"), {f"precision@{k}": f"P@{k}" for k in (1, 3, 5)}, percent)


def band_table(points: Sequence[MeasuredPoint]) -> str:
    """Macro precision, recall and F1 in percent of the final ranking by band; `bands.csv` has every branch."""
    finals = {measured.point.name: measured.final_branch for measured in points}
    rows = [row for row in band_rows(points) if row["branch"] == finals[row["point"]]]
    titles = {
        name: f"macro {name.removeprefix('macro_')[0].upper()}@{name.split('@')[1]}"
        for name in _macro_columns(points[0])
    }
    return _markdown(rows, ("point", "band"), titles, percent)


def divergence_table(points: Sequence[MeasuredPoint]) -> str:
    """Divergences in nats of every point and pair of branches; empty where models have one branch."""
    rows = divergence_rows(points)
    return _markdown(rows, ("point", "first", "second"), _DIVERGENCES, "{:.4g}".format) if rows else ""


def _markdown(rows: Iterable[Row], keys: Sequence[str], columns: dict[str, str], write: Callable[[float], str]) -> str:
    """A table of the mean and range over rows that differ in their seeds alone, in the order they came."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    titles = ["labels" if key == "band" else key for key in keys] + list(columns.values())
    cells = [titles, ["---"] * len(titles)]
    for names, group in groups.items():
        cells.append([*names, *(mean_and_range([row[name] for row in group], write) for name in columns)])
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def mean_and_range(values: Sequence[float], write: Callable[[float], str]) -> str:
    """`49.28`, or with several seeds `49.28 (49.01 to 49.60)`."""
    mean = write(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({write(min(values))} to {write(max(values))})"
