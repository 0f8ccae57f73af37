"""What a study leaves behind: tables, figures, and one page about them."""

from collections.abc import Sequence
from pathlib import Path

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import BAND_LIMITS
from glocal_xml.hub.model_card import band_limits, percent
from glocal_xml.hub.run_files import BASELINE

from .figures import write_figures
from .points import MeasuredPoint
from .studies import Study
from .tables import (
    band_rows,
    band_table,
    branch_rows,
    divergence_rows,
    divergence_table,
    precision_table,
    write_csv,
)

_DEFINITIONS = (
    "P@k on the test texts, in percent. JSD is the mean over texts and labels of the Jensen-Shannon divergence of the "
    "two branches' probabilities of a label. KL is KL(first || second) of these probabilities on the true labels of a "
    "text, summed (per text) or averaged (per true label); all in nats."
)


def write_study(folder: Path, study: Study, points: Sequence[MeasuredPoint], command: str, data: str) -> None:
    """Writes figures, tables and `summary.md` of a study."""
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "branches.csv", branch_rows(points))
    write_csv(folder / "divergences.csv", divergence_rows(points))
    write_csv(folder / "bands.csv", band_rows(points))
    pictures = write_figures(folder, study, points, subtitle(points, data))
    write_atomically(folder / "summary.md", summary(study, points, pictures, command, data))


def subtitle(points: Sequence[MeasuredPoint], data: str) -> str:
    """One line on data, encoder and size, and what the most frequent labels alone reach."""
    first = points[0]
    encoder = Path(first.results["settings"]["model"]["encoder"]).name
    metrics = first.results["test"][BASELINE]
    baseline = ", ".join(f"P@{k} {percent(metrics[f'precision@{k}'])}" for k in (1, 5) if f"precision@{k}" in metrics)
    seeds = len({measured.seed for measured in points})
    sizes = f"{first.divergences['train_texts']:,} training and {first.divergences['texts']:,} test texts"
    return f"{data}, {encoder}; {sizes}; {seeds} seed{'s' * (seeds > 1)}\nlabel frequency alone: {baseline}"


def summary(study: Study, points: Sequence[MeasuredPoint], pictures: str, command: str, data: str) -> str:
    """The study on one page: command, what the paper found, figures, tables, versions and machine."""
    machines = [", ".join(f"{k} {v}" for k, v in measured.results["environment"].items()) for measured in points]
    machine = "\n".join(f"- {one}" for one in dict.fromkeys(machines))
    bands = ", ".join(f"{band} {band_limits(band)}" for band in BAND_LIMITS)
    parts = [
        f"# {study.name}: {study.model_type} on {data}",
        f"Reproduces {study.reproduces}.",
        f"```\n{command}\n```",
        subtitle(points, data).replace("\n", "; ") + ".",
        f"**In the paper**: {study.found}",
        pictures,
        f"## Precision\n\n{precision_table(points)}",
        f"## Labels by frequency\n\nTraining texts: {bands}. "
        f"Percent, final ranking; `bands.csv` has every branch.\n\n{band_table(points)}",
    ]
    if table := divergence_table(points):
        parts.append(f"## Divergence of the branches\n\n{table}")
    parts += [f"## How it was measured\n\n{_DEFINITIONS}\n\n{machine}"]
    return "\n\n".join(parts) + "\n"
