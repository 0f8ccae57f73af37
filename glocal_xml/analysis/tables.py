"""What a study leaves behind: its numbers as CSV and Markdown, its figures, and one page about them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Template

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import band_limits, percent, ranks
from glocal_xml.hub.run_files import BASELINE

from .figures import write_figures
from .studies import MeasuredPoint, Study

Row = dict[str, Any]
_TEMPLATE = Path(__file__).with_name("summary.md.jinja")
_DIVERGENCES = {"jsd": "JSD", "kl_per_text": "KL per text", "kl_per_positive": "KL per true label"}


def write_study(folder: Path, study: Study, points: Sequence[MeasuredPoint], command: str, data: str) -> str:
    """Writes figures, tables and `summary.md` of a study; returns what of it is worth a line in the log."""
    folder.mkdir(parents=True, exist_ok=True)
    k = ranks(points[0].results["test"][BASELINE])[-1]
    macro = {f"macro_{name}@{k}": f"macro {name[0].upper()}@{k}" for name in ("precision", "recall", "f1")}
    rows = _rows(points, list(macro))
    for name, own in rows.items():
        write_atomically(folder / f"{name}.csv", pd.DataFrame(own).to_csv(index=False, lineterminator="\n"))
    # The label frequency is the same in all runs; the study is about the others.
    branches = [row for row in rows["branches"] if row["branch"] != BASELINE]
    branches.append({**points[0].head, "point": "", "branch": BASELINE, **points[0].results["test"][BASELINE]})
    precision = _markdown(branches, ("point", "branch"), {f"precision@{k}": f"P@{k}" for k in (1, 3, 5)}, percent)
    finals = {measured.point.name: measured.final_branch for measured in points}
    bands = [{**row, "labels": row["band"]} for row in rows["bands"] if row["branch"] == finals[row["point"]]]
    by_band = _markdown(bands, ("point", "labels"), macro, percent)
    # Models of one branch have none.
    pairs = rows["divergences"]
    divergences = pairs and _markdown(pairs, ("point", "first", "second"), _DIVERGENCES, "{:.4g}".format)
    about = _subtitle(points, data)
    template = Template(_TEMPLATE.read_text(encoding="utf-8"), trim_blocks=True, keep_trailing_newline=True)
    page = template.render(
        study=study,
        data=data,
        command=command,
        about=about,
        figures=write_figures(folder, study, points, about),
        precision=precision,
        limits=[f"{band} {band_limits(band)}" for band in BAND_LIMITS],
        by_band=by_band,
        divergences=divergences,
        machines=dict.fromkeys(", ".join(f"{k} {v}" for k, v in m.results["environment"].items()) for m in points),
    )
    write_atomically(folder / "summary.md", page)
    return f"{study.reproduces}\n\n{precision}\n\n{by_band}"


def _rows(points: Sequence[MeasuredPoint], macro_averages: list[str]) -> dict[str, list[Row]]:
    """Rows of every run by the file that they go to; those of bands are macro averages, as in table 3 of ME-XML."""
    rows: dict[str, list[Row]] = {"branches": [], "divergences": [], "bands": []}
    for measured in points:
        rows["divergences"] += [measured.head | pair for pair in measured.divergences["pairs"]]
        for branch, values in measured.results["test"].items():
            head = {**measured.head, "branch": branch}
            rows["branches"].append(head | values)
            for band in reversed(BAND_LIMITS):
                # A band without labels has no metrics.
                if own := {name: values[f"{name}_{band}"] for name in macro_averages if f"{name}_{band}" in values}:
                    rows["bands"].append({**head, "band": band, **own})
    return rows


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
