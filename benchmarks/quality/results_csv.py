"""One tidy table of results, a row for each value. `python results_csv.py FILE` prints it as Markdown."""

import csv
import io
import sys
from pathlib import Path

from glocal_xml.atomic_file import write_atomically

COLUMNS = (
    *("benchmark", "data", "part", "train_texts", "test_texts", "contender", "seed"),
    *("metric", "value", "cores", "note", "versions", "machine"),
)
# Rows that agree in these are of one run.
_RUN = COLUMNS[:7]
_SET = _RUN[1:5]
DATA_NAMES = {"eurlex57k": "EURLEX57K", "llms4subjects-en": "LLMs4Subjects"}
_SHOWN = {
    **{f"P@{k}": f"precision@{k}" for k in (1, 3, 5)},
    **{"nDCG@3": "ndcg@3", "nDCG@5": "ndcg@5"},
    **{f"PSP@{k}": f"psp@{k}" for k in (1, 3, 5)},
    **{f"F@5 {band}": f"macro_f1@5_{band}" for band in ("few", "medium", "many")},
    **{"ECE": "calibration_error", "train s": "train_seconds", "CPU s": "train_cpu_seconds"},
    **{"ms a text": "predict_ms", "CPU ms": "predict_cpu_ms"},
    **{"GB": "peak_memory_gb", "model MB": "model_mb"},
}  # fmt: skip


def read_rows(path: Path) -> list[dict[str, str]]:
    """All rows, or none where there is no file."""
    if not path.is_file():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def add_rows(path: Path, rows: list[dict]) -> None:
    """Adds the rows of runs; those of earlier runs of the same are replaced."""
    rows = [{name: str(row.get(name, "")) for name in COLUMNS} for row in rows]
    new = {run_of(row) for row in rows}
    written = io.StringIO()
    writer = csv.DictWriter(written, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows([row for row in read_rows(path) if run_of(row) not in new] + rows)
    write_atomically(path, written.getvalue())


def run_of(row: dict[str, str]) -> tuple[str, ...]:
    """What is equal in all rows of a run."""
    return tuple(row[name] for name in _RUN)


def values_by_run(rows: list[dict[str, str]]) -> dict[tuple, dict[tuple, dict[str, str]]]:
    """For each data set (data, part, training and test texts) and run (contender, seed) metrics, cores and note."""
    found: dict[tuple, dict[tuple, dict[str, str]]] = {}
    for row in rows:
        runs = found.setdefault(tuple(row[name] for name in _SET), {})
        values = runs.setdefault((row["contender"], row["seed"]), {"cores": row["cores"], "note": row["note"]})
        values[row["metric"]] = row["value"]
    return found


def markdown(rows: list[dict[str, str]]) -> str:
    """A table for each data set, in percent where metrics are shares; contenders without result with their reason."""
    lines = []
    for (data, part, train_texts, test_texts), runs in values_by_run(rows).items():
        lines += [f"**{DATA_NAMES.get(data, data)}**, {train_texts} training texts, {test_texts} {part} texts", ""]
        lines += ["| | " + " | ".join(_SHOWN) + " | cores, note |", "|---" * (len(_SHOWN) + 2) + "|"]
        for (contender, _), values in runs.items():
            cells = [_cell(values.get(metric, ""), metric) for metric in _SHOWN.values()]
            note = ", ".join(filter(None, (values["cores"], values["note"], "**failed**" * ("failed" in values))))
            lines.append(f"| {contender} | " + " | ".join(cells) + f" | {note} |")
        lines.append("")
    return "\n".join(lines)


def _cell(value: str, metric: str) -> str:
    if not value:
        return ""
    if metric in ("train_seconds", "train_cpu_seconds", "model_mb"):
        return f"{float(value):,.0f}"
    if metric == "calibration_error":
        return f"{float(value):.4f}"
    return (
        f"{float(value) if metric in ('predict_ms', 'predict_cpu_ms', 'peak_memory_gb') else 100 * float(value):.2f}"
    )


if __name__ == "__main__":
    print(markdown([row for row in read_rows(Path(sys.argv[1])) if row["benchmark"] == "quality"]))
