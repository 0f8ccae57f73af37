"""Measured numbers beside published ones."""

from collections.abc import Sequence
from dataclasses import dataclass

from .table_recipe import TableRecipe
from .table_runs import Results

_TITLES = ["run", "branch", "metric", "measured", "published", "difference", "published where"]


@dataclass(frozen=True)
class ComparedNumber:
    """A metric of a run in percent, as measured and as published; either may be missing."""

    run: str
    branch: str
    metric: str
    measured: float | None
    published: float | None
    where: str = ""

    def cells(self) -> list[str]:
        """As cells of a table."""
        difference = None if None in (self.measured, self.published) else self.measured - self.published
        numbers = [*map(_written, (self.measured, self.published)), _written(difference, "+")]
        return [self.run, self.branch, self.metric, *numbers, self.where]


def compare(recipe: TableRecipe, measured: dict[str, Results]) -> list[ComparedNumber]:
    """All published numbers of a table, then P@k of the runs that the paper says nothing of."""
    rows = []
    for entry in recipe.published:
        results = measured.get(entry.run, {})
        branch = entry.branch or next(iter(results), "")
        for metric, value in entry.metrics.items():
            share = results.get(branch, {}).get(metric)
            found = None if share is None else 100 * share
            rows.append(ComparedNumber(entry.run, branch, metric, found, value, entry.where))
    known = {entry.run for entry in recipe.published}
    for run, results in measured.items():
        branch, metrics = next(iter(results.items()))
        names = [name for name in metrics if name.startswith("precision@") and run not in known]
        rows += [ComparedNumber(run, branch, name, 100 * metrics[name], None) for name in names]
    return rows


def comparison_table(rows: Sequence[ComparedNumber]) -> str:
    """A table in Markdown whose columns are aligned, so that it can be read as text."""
    cells = [_TITLES, *(row.cells() for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells)


def comparison_page(recipe: TableRecipe, rows: Sequence[ComparedNumber], facts: Sequence[str]) -> str:
    """A page in Markdown: the table, and what it was measured with."""
    parts = [
        f"# {recipe.name} on {recipe.data.name}",
        f"{recipe.paper}. Percent on the test texts; *measured*: by the runs here; *published*: in the paper, "
        "not by us.",
        comparison_table(rows),
        "\n".join(f"- {fact}" for fact in facts),
    ]
    return "\n\n".join(parts) + "\n"


def _written(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.2f}"
