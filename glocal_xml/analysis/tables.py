"""Numbers of a study as rows: CSV files, and the same in Markdown."""

import os
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import percent, ranks
from glocal_xml.hub.run_files import BASELINE

from .points import MeasuredPoint

Row = dict[str, Any]
_DIVERGENCES = {"jsd": "JSD", "kl_per_text": "KL per text", "kl_per_positive": "KL per true label"}


def branch_rows(points: Sequence[MeasuredPoint]) -> list[Row]:
    """All metrics on the test texts of every run and branch, as `results.json` has them."""
    return [{**m.head, "branch": branch, **metrics} for m in points for branch, metrics in m.results["test"].items()]


def divergence_rows(points: Sequence[MeasuredPoint]) -> list[Row]:
    """The divergences of every run and pair of branches, as `divergences.json` has them."""
    return [{**measured.head, **pair} for measured in points for pair in measured.divergences["pairs"]]


def band_rows(points: Sequence[MeasuredPoint]) -> list[Row]:
    """Macro precision, recall and F1 at the largest k by branch and band of labels: table 3 of ME-XML."""
    return [
        {**measured.head, "branch": branch, "band": band, **values}
        for measured in points
        for branch, metrics in measured.results["test"].items()
        for band in reversed(BAND_LIMITS)
        # A band without labels has no metrics.
        if (values := {x: metrics[f"{x}_{band}"] for x in _macro_columns(points) if f"{x}_{band}" in metrics})
    ]


def _macro_columns(points: Sequence[MeasuredPoint]) -> dict[str, str]:
    """Columns of the macro averages, and their titles."""
    k = ranks(points[0].results["test"][BASELINE])[-1]
    return {f"macro_{name}@{k}": f"macro {name[0].upper()}@{k}" for name in ("precision", "recall", "f1")}


def write_csv(path: str | os.PathLike, rows: Sequence[Row] | pd.DataFrame) -> None:
    """Writes rows with all columns that any of them has; numbers as Python reads them back."""
    write_atomically(path, pd.DataFrame(rows).to_csv(index=False, lineterminator="\n"))


def precision_table(points: Sequence[MeasuredPoint]) -> str:
    """P@1, P@3 and P@5 in percent of every point and branch; the label frequency once."""
    # The label frequency is the same in all runs; the study is about the others.
    rows = [row for row in branch_rows(points) if row["branch"] != BASELINE]
    rows += [{**row, "point": ""} for row in branch_rows(points[:1]) if row["branch"] == BASELINE]
    return _markdown(rows, ("point", "branch"), {f"precision@{k}": f"P@{k}" for k in (1, 3, 5)}, percent)


def band_table(points: Sequence[MeasuredPoint]) -> str:
    """Macro precision, recall and F1 in percent of the final ranking by band; `bands.csv` has every branch."""
    finals = {measured.point.name: measured.final_branch for measured in points}
    rows = [{**row, "labels": row["band"]} for row in band_rows(points) if row["branch"] == finals[row["point"]]]
    return _markdown(rows, ("point", "labels"), _macro_columns(points), percent)


def divergence_table(points: Sequence[MeasuredPoint]) -> str:
    """Divergences in nats of every point and pair of branches; empty where models have one branch."""
    rows = divergence_rows(points)
    return _markdown(rows, ("point", "first", "second"), _DIVERGENCES, "{:.4g}".format) if rows else ""


def _markdown(rows: list[Row], keys: Sequence[str], columns: dict[str, str], write: Callable[[float], str]) -> str:
    """A table over rows that differ in their seeds alone: `49.28`, or with several `49.28 (49.01 to 49.60)`."""

    def cell(values: pd.Series) -> str:
        mean = write(values.mean())
        return mean if len(values) == 1 else f"{mean} ({write(values.min())} to {write(values.max())})"

    cells = pd.DataFrame(rows).groupby(list(keys), sort=False)[list(columns)].agg(cell).reset_index()
    lines = [[*keys, *columns.values()], ["---"] * cells.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
