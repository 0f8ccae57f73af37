"""Runs that are made once: the same command finds what is done, resumes what is not, and mixes no settings."""

import gc
import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from glocal_xml.atomic_file import write_atomically
from glocal_xml.hub.run_files import RESULTS_FILE
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.whole_checkpoints import last_good_checkpoint

from .run import run
from .run_folder import clear_run_folder, holds_run

logger = logging.getLogger(__name__)

_SETTINGS_FILE = "settings.json"

Arguments = tuple[ModelArguments, DataArguments, XMTCTrainingArguments]


def claim_folder(
    folder: Path, settings: dict[str, dict[str, Any]], *, overwrite: bool, further_files: Iterable[str] = ()
) -> None:
    """
    Makes a folder that of a run with these settings: results in it are theirs from now on. A run with other settings
    is an error, or is deleted by `overwrite`, with the `further_files` of it that not all runs have.
    """
    # As it reads back from JSON.
    settings = json.loads(json.dumps(settings, default=str))
    known = read_json(folder / _SETTINGS_FILE)
    if known != settings and holds_run(folder):
        difference = "it was started by another command"
        if known is not None:
            earlier, new = (
                {name: value for part in given.values() for name, value in part.items()} for given in (known, settings)
            )
            difference = ", ".join(name for name in new if earlier.get(name) != new[name])
        if not overwrite:
            raise ValueError(
                f"{folder} holds a run with other settings ({difference}): delete it by `--overwrite_output true`, or "
                "choose another `--output_dir`."
            )
        logger.info("deletes %s, a run with other settings (%s)", folder, difference)
        clear_run_folder(folder)
        for name in further_files:
            (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / _SETTINGS_FILE, json.dumps(settings, indent=2) + "\n")


def train_or_resume(arguments: Arguments) -> dict[str, Any]:
    """Makes a run in a folder that was claimed, from its newest checkpoint where there is one; returns its results."""
    args = arguments[2]
    checkpoint = last_good_checkpoint(args.output_dir)
    args.overwrite_output, args.resume_from_checkpoint = True, checkpoint
    if checkpoint is not None:
        logger.info("resuming from %s", checkpoint)
    try:
        run(*arguments)
    except SystemExit:
        logger.warning("Run the same command again to resume.")
        raise
    # Optimiser and activations of one run must not stay beside the next.
    gc.collect()
    # What later calls will read, not what was in memory.
    return read_json(Path(args.output_dir, RESULTS_FILE))


def read_json(path: Path) -> Any:
    """What a JSON file holds; nothing where it is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
