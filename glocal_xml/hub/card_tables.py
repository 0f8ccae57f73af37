"""The tables of results in a model card."""

from typing import Any

from glocal_xml.data import BAND_LIMITS

from .run_files import BASELINE

PARTS = ("train", "validation", "test")
# Title, metric and lowest rank; nDCG@1 is P@1.
_COLUMNS = (("P", "precision", 1), ("nDCG", "ndcg", 2), ("PSP", "psp", 1), ("R", "recall", 1))

Rows = dict[str, dict[str, float]]


def result_tables(results: dict[str, Any], settings: dict[str, Any]) -> str:
    """The metrics of every branch on every part, and the macro averages by band on the last part."""
    training = settings["training"]
    parts = [part for part in PARTS if part in results]
    if not parts:
        return "None: the run had neither validation nor test texts."
    lines = [f"In percent. PSP with A = {training['propensity_a']}, B = {training['propensity_b']}."]
    for part in parts:
        columns = result_columns(results[part])
        lines += ["", *table([f"{part} texts", *columns])]
        for row, metrics in results[part].items():
            lines.append(table_row([row, *(percent(metrics.get(metric)) for metric in columns.values())]))
    rows = results[parts[-1]]
    k = ranks(rows)[-1]
    lines += [
        "",
        f"Macro precision / recall / F1 at {k} on the {parts[-1]} texts, over labels by their number of training "
        "texts; a label that is neither predicted nor true counts 0:",
        "",
        *table(["training texts of the label", *rows]),
    ]
    for band in (*BAND_LIMITS, None):
        suffix = f"@{k}" if band is None else f"@{k}_{band}"
        if f"macro_f1{suffix}" in next(iter(rows.values())):
            cells = [
                " / ".join(percent(m.get(f"macro_{n}{suffix}")) for n in ("precision", "recall", "f1"))
                for m in rows.values()
            ]
            lines.append(table_row(["all labels" if band is None else band_limits(band), *cells]))
    return "\n".join(lines)


def result_columns(rows: Rows) -> dict[str, str]:
    """Titles of the columns of a table of results, and the metrics below them."""
    final = next(iter(rows.values()))
    columns = {f"{t}@{k}": f"{m}@{k}" for t, m, lowest in _COLUMNS for k in ranks(rows) if k >= lowest}
    return {title: metric for title, metric in columns.items() if metric in final}


def ranks(rows: Rows) -> list[int]:
    """The k of P@k and the others, ascending."""
    final = next(iter(rows.values()))
    return sorted(int(name.removeprefix("precision@")) for name in final if name.startswith("precision@"))


def percent(value: float | None) -> str:
    """A share as people read it."""
    return "-" if value is None else f"{100 * value:.2f}"


def table_row(cells: list[str]) -> str:
    """One row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def table(titles: list[str], first: str = "---") -> list[str]:
    """The head of a table in Markdown, and how its first column and the others are aligned."""
    return [table_row(titles), table_row([first, *["---:"] * (len(titles) - 1)])]


def band_limits(band: str) -> str:
    """Training texts of the labels of a band, in words."""
    lowest, highest = BAND_LIMITS[band]
    if lowest == highest:
        return f"{lowest}"
    return f"{lowest}-{highest}" if highest < float("inf") else f"{lowest} or more"


def measured_branches(results: dict[str, Any]) -> list[str]:
    """The rankings of the model that were measured, the final one first."""
    return [name for name in results.get("test", results.get("validation", {})) if name != BASELINE]
