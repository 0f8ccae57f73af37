"""The results of a run and the card made of them: two files of its folder."""

import os
from pathlib import Path
from typing import Any

from glocal_xml.atomic_file import write_atomically
from glocal_xml.json_text import json_text

# The row of results that no model made.
BASELINE = "label frequency"
RESULTS_FILE = "results.json"
CARD_FILE = "README.md"
# Tells the card of a run from a file that a person wrote.
CARD_MARK = "<!-- Written by glocal-xml from the results of the run. -->"


def holds_card(folder: str | os.PathLike) -> bool:
    """Whether a folder holds the model card of a run."""
    path = Path(folder, CARD_FILE)
    return path.is_file() and CARD_MARK in path.read_text(encoding="utf-8", errors="replace")


def write_card(folder: str | os.PathLike, card: str) -> Path | None:
    """Writes the model card, whole or not at all, unless its place is taken by a file that a person wrote."""
    path = Path(folder, CARD_FILE)
    if path.exists() and not holds_card(folder):
        return None
    write_atomically(path, card)
    return path


def write_results(folder: str | os.PathLike, results: dict[str, Any]) -> Path:
    """Writes `results.json`, whole or not at all."""
    path = Path(folder, RESULTS_FILE)
    write_atomically(path, json_text(results, indent=2, default=str) + "\n")
    return path
