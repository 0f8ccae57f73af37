"""Checkpoints that are whole: a manifest with the size and hash of every file, written last and checked first."""

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import torch

from glocal_xml.atomic_file import write_atomically
from glocal_xml.json_text import json_text, read_json_object

logger = logging.getLogger(__name__)

MANIFEST = "manifest.json"
# What training needs besides the weights to continue as if nothing had happened, by parts of the names.
_STATE = ("trainer_state.json", "optim", "scheduler", "rng_state")


def write_manifest(folder: str | os.PathLike) -> None:
    """Notes size and hash of every file of a folder, which is whole from then on."""
    files = {name: _facts(path) for name, path in _files(Path(folder)).items()}
    write_atomically(Path(folder, MANIFEST), json_text({"files": files}, indent=2) + "\n")


def why_not_whole(folder: str | os.PathLike, needed: tuple[str, ...] = _STATE) -> str | None:
    """What keeps training from continuing from a checkpoint, such as missing files of the names that are needed."""
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        return f"{MANIFEST} is missing, which is written last"
    try:
        noted: dict[str, Any] = read_json_object(folder / MANIFEST)["files"]
        files = _files(folder)
        for name in sorted(noted):
            if name not in files:
                return f"{name} is missing"
            if files[name].stat().st_size != noted[name]["size"] or _facts(files[name]) != noted[name]:
                return f"{name} was changed or is damaged"
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        return f"{MANIFEST} is damaged ({error})"
    missing = [part for part in needed if not any(part in name for name in noted)]
    return f"it holds no {missing[0]} file" if missing else None


def last_good_checkpoint(folder: str | os.PathLike) -> str | None:
    """The newest whole checkpoint of a run; a warning names newer ones that are not."""
    checkpoints = [path for path in Path(folder).glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    for path in sorted(checkpoints, key=lambda path: int(path.name.split("-")[1]), reverse=True):
        if (reason := why_not_whole(path)) is None:
            return str(path)
        logger.warning("%s is skipped: %s.", path, reason)
    return None


def check_loss(loss: torch.Tensor, step: int, folder: str | os.PathLike) -> None:
    """
    Stops a run whose loss, of one or several batches, is not finite. A checkpoint of the step before in its folder has
    the weights that this loss comes from: training must not continue from it.
    """
    if bool(torch.isfinite(loss.detach()).all()):
        return
    for number in (step, step - 1):
        Path(folder, f"checkpoint-{number}", MANIFEST).unlink(missing_ok=True)
    last = last_good_checkpoint(folder)
    remedy = f"The last good checkpoint is {last}" if last else "No checkpoint had been written before"
    raise ValueError(
        f"The loss is {loss.detach().float().mean().item()} at step {step}: training stops, since no later loss would "
        f"be finite. {remedy}; lower `learning_rate` or `module_learning_rates`, and clip gradients by "
        "`max_grad_norm`."
    )


def _files(folder: Path) -> dict[str, Path]:
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in files.items() if name != MANIFEST and not path.name.startswith(".")}


def _facts(path: Path) -> dict[str, Any]:
    with open(path, "rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
