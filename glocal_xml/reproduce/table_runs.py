"""The runs of a table: their arguments, training what is not done yet, and the ensemble of all."""

import copy
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from glocal_xml.ensembles import run_ensemble
from glocal_xml.hub.run_files import RESULTS_FILE
from glocal_xml.runs.run_once import Arguments, claim_folder, read_json, train_or_resume
from glocal_xml.training.run_facts import run_settings
from glocal_xml.training.run_parser import recipe_arguments

from .table_recipe import ENSEMBLE, TableRecipe

logger = logging.getLogger(__name__)

# A run of the table: metrics of each branch, the final ranking first.
Results = dict[str, dict[str, float]]


def runs_of_table(
    recipe: TableRecipe, files: dict[str, str], output_dir: str, flags: list[str], members: list[str] | None = None
) -> dict[str, tuple[dict[str, Any], Arguments]]:
    """Settings and arguments of every run, or of some members, by name; a study is one. The rest as in `reproduce`."""
    known = list(recipe.members) or [recipe.study]
    if unknown := [name for name in members or [] if name not in known]:
        raise ValueError(f"{recipe.name} has no member {unknown[0]!r}; the members are {', '.join(known)}.")
    runs = {}
    for name in members or known:
        folder = output_dir if recipe.study else str(Path(output_dir, name))
        settings = recipe.settings(name) | files | {"output_dir": folder}
        runs[name] = settings, recipe_arguments(settings, flags, source=f"{recipe.name}, {name}")
    return runs


def train_member(arguments: Arguments, *, overwrite: bool) -> Results:
    """Metrics of a member on the test texts; it is trained unless that was done before with the same settings."""
    folder, settings = Path(arguments[2].output_dir), run_settings(*arguments)
    return _made_once(folder, settings, overwrite, lambda: train_or_resume(arguments))


def join_members(members: list[Arguments], output_dir: str, *, overwrite: bool) -> Results:
    """Metrics of the mean of all members, as far as that was not measured before."""
    folders = [arguments[2].output_dir for arguments in members]
    settings = {Path(folder).name: run_settings(*member) for folder, member in zip(folders, members, strict=True)}
    _, data_args, args = members[0]
    # Each member reads as much of a text as it was trained on.
    test = replace(data_args, train_file=None, validation_file=None, validation_size=None, max_length=None)
    args, folder = copy.copy(args), Path(output_dir, ENSEMBLE)
    args.output_dir, args.overwrite_output, args.resume_from_checkpoint = str(folder), True, None
    return _made_once(folder, {"members": settings}, overwrite, lambda: run_ensemble(folders, test, args))


def _made_once(
    folder: Path, settings: dict[str, dict[str, Any]], overwrite: bool, make: Callable[[], dict[str, Any]]
) -> Results:
    claim_folder(folder, settings, overwrite=overwrite)
    if (results := read_json(folder / RESULTS_FILE)) is None:
        return make()["test"]
    logger.info("done before: %s", folder)
    return results["test"]
