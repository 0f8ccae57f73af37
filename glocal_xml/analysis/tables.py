"""What a study leaves behind: its numbers as CSV and Markdown, its figures, and one page about them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import band_limits, percent, ranks
from glocal_xml.hub.run_files import BASELINE

from .figures import write_csv, write_figures
from .points import MeasuredPoint
from .studies import Study

Row = dict[str, Any]
_DIVERGENCES = {"jsd": "JSD", "kl_per_text": "KL per text", "kl_per_positive": "KL per true label"}
_DEFINITIONS = (
    "P@k on the test texts, in percent. JSD is the mean over texts and labels of the Jensen-Shannon divergence of the "
    "two branches' probabilities of a label. KL is KL(first || second) of these probabilities on the true labels of a "
    "text, summed (per text) or averaged (per true label); all in nats."
)


def write_study(folder: Path, study: Study, points: Sequence[MeasuredPoint], command: str, data: str) -> str:
    """Writes figures, tables and `summary.md` of a study; returns what of it is worth a line in the log."""
    folder.mkdir(parents=True, exist_ok=True)
    macro, rows = _macro_columns(points), _rows(points)
    for name, own in rows.items():
        write_csv(folder / f"{name}.csv", pd.DataFrame(own))
    # The label frequency is the same in all runs; the study is about the others.
    branches = [row for row in rows["branches"] if row["branch"] != BASELINE]
    branches.append({**points[0].head, "point": "", "branch": BASELINE, **points[0].results["test"][BASELINE]})
    precision = _markdown(branches, ("point", "branch"), {f"precision@{k}": f"P@{k}" for k in (1, 3, 5)}, percent)
    finals = {measured.point.name: measured.final_branch for measured in points}
    bands = [{**row, "labels": row["band"]} for row in rows["bands"] if row["branch"] == finals[row["point"]]]
    by_band = _markdown(bands, ("point", "labels"), macro, percent)
    limits, about = ", ".join(f"{band} {band_limits(band)}" for band in BAND_LIMITS), _subtitle(points, data)
    parts = [
        f"# {study.name}: {study.model_type} on {data}",
        f"Reproduces {study.reproduces}.",
        f"```\n{command}\n```",
        about.replace("\n", "; ") + ".",
        f"**In the paper**: {study.found}",
        write_figures(folder, study, points, about),
        f"## Precision\n\n{precision}",
        f"## Labels by frequency\n\nTraining texts: {limits}. "
        f"Percent, final ranking; `bands.csv` has every branch.\n\n{by_band}",
    ]
    # Models of one branch have none.
    if rows["divergences"]:
        table = _markdown(rows["divergences"], ("point", "first", "second"), _DIVERGENCES, "{:.4g}".format)
        parts.append(f"## Divergence of the branches\n\n{table}")
    machines = [", ".join(f"{k} {v}" for k, v in measured.results["environment"].items()) for measured in points]
    machine = "\n".join(f"- {one}" for one in dict.fromkeys(machines))
    parts.append(f"## How it was measured\n\n{_DEFINITIONS}\n\n{machine}")
    write_atomically(folder / "summary.md", "\n\n".join(parts) + "\n")
    return f"{study.reproduces}\n\n{precision}\n\n{by_band}"


def _rows(points: Sequence[MeasuredPoint]) -> dict[str, list[Row]]:
    """
    Rows of every run by the file that they go to: the metrics of each branch and the divergences of each pair, as the
    runs have them, and the macro averages of each branch by band of labels (table 3 of ME-XML).
    """
    heads = [{**m.head, "branch": branch} for m in points for branch in m.results["test"]]
    metrics = [values for measured in points for values in measured.results["test"].values()]
    bands = [
        {**head, "band": band, **macro}
        for head, values in zip(heads, metrics, strict=True)
        for band in reversed(BAND_LIMITS)
        # A band without labels has no metrics.
        if (macro := {x: values[f"{x}_{band}"] for x in _macro_columns(points) if f"{x}_{band}" in values})
    ]
    return {
        "branches": [head | values for head, values in zip(heads, metrics, strict=True)],
        "divergences": [m.head | pair for m in points for pair in m.divergences["pairs"]],
        "bands": bands,
    }


def _macro_columns(points: Sequence[MeasuredPoint]) -> dict[str, str]:
    """Columns of the macro averages at the largest k, and their titles."""
    k = ranks(points[0].results["test"][BASELINE])[-1]
    return {f"macro_{name}@{k}": f"macro {name[0].upper()}@{k}" for name in ("precision", "recall", "f1")}


def _subtitle(points: Sequence[MeasuredPoint], data: str) -> str:
    """One line on data, encoder and size, and one on what the most frequent labels alone reach."""
    results, divergences = points[0].results, points[0].divergences
    encoder, metrics = Path(results["settings"]["model"]["encoder"]).name, results["test"][BASELINE]
    baseline = ", ".join(f"P@{k} {percent(metrics[f'precision@{k}'])}" for k in (1, 5) if f"precision@{k}" in metrics)
    seeds = len({measured.seed for measured in points})
    sizes = f"{divergences['train_texts']:,} training and {divergences['texts']:,} test texts"
    return f"{data}, {encoder}; {sizes}; {seeds} seed{'s' * (seeds > 1)}\nlabel frequency alone: {baseline}"


def _markdown(rows: list[Row], keys: Sequence[str], columns: dict[str, str], write: Callable[[float], str]) -> str:
    """A table over rows that differ in their seeds alone: `49.28`, or with several `49.28 (49.01 to 49.60)`."""

    def cell(values: pd.Series) -> str:
        mean = write(values.mean())
        return mean if len(values) == 1 else f"{mean} ({write(values.min())} to {write(values.max())})"

    cells = pd.DataFrame(rows).groupby(list(keys), sort=False)[list(columns)].agg(cell).reset_index()
    lines = [[*keys, *columns.values()], ["---"] * cells.shape[1], *cells.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
