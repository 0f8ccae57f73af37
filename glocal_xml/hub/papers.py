"""Families and experts, and the papers that they are from: what a model card says about them."""

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Paper:
    """A family or an expert, and the paper that it implements; `papers.yaml` says what each field is."""

    name: str
    summary: str
    title: str
    authors: list[str]
    venue: str
    year: int | None = None
    url: str | None = None
    proceedings: bool = False
    word_branches: str | None = None


def _read(group: str) -> dict[str, Paper]:
    rows = yaml.safe_load(Path(__file__).with_name("papers.yaml").read_text(encoding="utf-8"))[group]
    return {name: Paper(**fields) for name, fields in rows.items()}


# By `model_type`; a family without a row has no card.
FAMILY_PAPERS = _read("families")
# By the name of the expert.
EXPERT_PAPERS = _read("experts")
