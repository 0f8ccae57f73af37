"""Numbers of a study as rows: CSV files, and the same in Markdown."""

import csv
import io
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import percent
from glocal_xml.hub.run_files import BASELINE

from .points import MeasuredPoint

Row = dict[str, Any]


def final_branch(measured: MeasuredPoint) -> str:
    """What the results call the final ranking, which they list first."""
    return next(iter(measured.results["test"]))


def branch_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """All metrics on the test texts of every run and branch, as `results.json` has them."""
    return [
        {**_head(measured), "branch": branch, **metrics}
        for measured in points
        for branch, metrics in measured.results["test"].items()
    ]


def divergence_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """The divergences of every run and pair of branches, as `divergences.json` has them."""
    return [{**_head(measured), **pair} for measured in points for pair in measured.divergences["pairs"]]


def band_rows(points: Iterable[MeasuredPoint]) -> list[Row]:
    """Macro precision, recall and F1 at the largest k by branch and band of labels: table 3 of ME-XML."""
    rows = []
    for measured in points:
        for branch, metrics in measured.results["test"].items():
            k = largest_rank(measured)
            for band in reversed(BAND_LIMITS):
                names = {f"macro_{name}@{k}": f"macro_{name}@{k}_{band}" for name in ("precision", "recall", "f1")}
                # A band without labels has no metrics.
                if all(name in metrics for name in names.values()):
                    values = {title: metrics[name] for title, name in names.items()}
                    rows.append({**_head(measured), "branch": branch, "band": band, **values})
    return rows


def largest_rank(measured: MeasuredPoint) -> int:
    """The largest k of a run's metrics."""
    metrics = measured.results["test"][BASELINE]
    return max(int(name.removeprefix("precision@")) for name in metrics if name.startswith("precision@"))


def _head(measured: MeasuredPoint) -> Row:
    return {"point": measured.point.name, "x": measured.point.x, "line": measured.point.line, "seed": measured.seed}


def by_point(rows: Iterable[Row], keys: Sequence[str]) -> dict[tuple, list[Row]]:
    """Rows that differ in their seeds alone, together, in the order they came."""
    groups: dict[tuple, list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


def write_csv(path: str | os.PathLike, rows: Sequence[Row]) -> None:
    """Writes rows with all columns that any of them has; numbers as Python reads them back."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())


def markdown_table(titles: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown that also reads well as plain text."""
    lines = [list(titles), *map(list, lines)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
    written = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines]
    return "\n".join([written[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *written[1:]])


def mean_and_range(values: Sequence[float], write: Callable[[float], str]) -> str:
    """`49.28`, or with several seeds `49.28 (49.01 to 49.60)`."""
    mean = write(sum(values) / len(values))
    return mean if len(values) == 1 else f"{mean} ({write(min(values))} to {write(max(values))})"


def precision_table(points: Sequence[MeasuredPoint]) -> str:
    """P@1, P@3 and P@5 in percent of every point and branch; the label frequency once."""
    columns = ("precision@1", "precision@3", "precision@5")
    lines, baseline = [], None
    for (point, branch), rows in by_point(branch_rows(points), ("point", "branch")).items():
        cells = [mean_and_range([row[column] for row in rows], percent) for column in columns if column in rows[0]]
        if branch == BASELINE:
            baseline = ["", branch, *cells]
        else:
            lines.append([point, branch, *cells])
    titles = ["point", "branch", *(f"P@{name[-1]}" for name in columns if name in branch_rows(points[:1])[0])]
    return markdown_table(titles, [*lines, baseline])


def band_table(points: Sequence[MeasuredPoint]) -> str:
    """Macro precision, recall and F1 in percent of the final ranking by band; `bands.csv` has every branch."""
    finals = {measured.point.name: final_branch(measured) for measured in points}
    rows = [row for row in band_rows(points) if row["branch"] == finals[row["point"]]]
    k = largest_rank(points[0])
    metrics = [f"macro_{name}@{k}" for name in ("precision", "recall", "f1")]
    lines = [
        [point, band, *(mean_and_range([row[metric] for row in group], percent) for metric in metrics)]
        for (point, band), group in by_point(rows, ("point", "band")).items()
    ]
    return markdown_table(["point", "labels", f"macro P@{k}", f"macro R@{k}", f"macro F@{k}"], lines)


def divergence_table(points: Sequence[MeasuredPoint]) -> str:
    """Divergences in nats of every point and pair of branches; empty where models have one branch."""
    lines = [
        [*key, *(mean_and_range([row[name] for row in rows], "{:.4g}".format) for name in _DIVERGENCES)]
        for key, rows in by_point(divergence_rows(points), ("point", "first", "second")).items()
    ]
    return markdown_table(["point", "first", "second", *_DIVERGENCES.values()], lines) if lines else ""


_DIVERGENCES = {"jsd": "JSD", "kl_per_text": "KL per text", "kl_per_positive": "KL per true label"}
