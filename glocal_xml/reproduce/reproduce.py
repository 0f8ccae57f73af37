"""A table of a paper again, from files to measured numbers beside published ones."""

import logging
import shlex
from pathlib import Path

from glocal_xml.analysis.run_study import run_study
from glocal_xml.atomic_file import write_atomically
from glocal_xml.runs.run import quieten
from glocal_xml.training.run_facts import environment

from .comparison import ComparedNumber, compare, comparison_page
from .data_check import check_data, find_files
from .dry_run import command_line
from .table_recipe import ENSEMBLE, TableRecipe
from .table_runs import Results, join_members, runs_of_table, train_member

logger = logging.getLogger(__name__)

COMPARISON_FILE = "comparison.md"


def reproduce(
    recipe: TableRecipe,
    files: dict[str, str],
    output_dir: str,
    *,
    flags: list[str],
    members: list[str] | None = None,
    overwrite: bool = False,
) -> list[ComparedNumber]:
    """
    Trains the runs of a table that are not done yet, joins them, and compares with what was published.

    Args:
        recipe, files: The table, and its training and test texts, from [`data_files`].
        output_dir: Folder with a folder for each run, and the comparison.
        flags: Flags of `glocal-xml train` that override the recipe in all runs.
        members: Only these; the ensemble then waits for a call without them.
        overwrite: Whether runs with other settings in the folders of this table are deleted.
    """
    runs = runs_of_table(recipe, files, output_dir, flags, members)
    settings, (_, data_args, args) = next(iter(runs.values()))
    if args.world_size > 1:
        raise ValueError(
            f"A table is reproduced in one process, this is one of {args.world_size}: start `glocal-xml reproduce` "
            "itself, or the commands of `--dry-run` by `torchrun`."
        )
    quieten(args)
    facts, warnings = check_data(data_args, recipe.data)
    logger.info("\n".join(facts))
    if flags:
        warnings.append(f"not the settings of the recipe: {shlex.join(flags)}")
    for line in warnings:
        logger.warning(line)
    measured: dict[str, Results] = {}
    if recipe.study is not None:
        command = command_line(f"analyse {recipe.study}", settings, flags)
        points = run_study(recipe.study, runs[recipe.study][1], command=command, overwrite=overwrite)
        measured = {each.point.name: each.results["test"] for each in points}
    else:
        for number, (name, (_, arguments)) in enumerate(runs.items(), start=1):
            logger.info("run %d of %d: %s", number, len(runs), name)
            measured[name] = train_member(arguments, overwrite=overwrite)
        if recipe.ensemble and len(runs) == len(recipe.members):
            joined = [arguments for _, arguments in runs.values()]
            measured[ENSEMBLE] = join_members(joined, output_dir, overwrite=overwrite)
    rows = compare(recipe, measured)
    machine = ", ".join(f"{name} {value}" for name, value in environment(args).items())
    page = comparison_page(recipe, rows, [*facts, *warnings, machine])
    write_atomically(Path(output_dir, COMPARISON_FILE), page)
    return rows


def data_files(
    recipe: TableRecipe, data_dir: str | None, train_file: str | None = None, test_file: str | None = None
) -> dict[str, str]:
    """Training and test texts: those that are given, those of the recipe, or those in a folder."""
    given = {"train_file": train_file, "test_file": test_file}
    files = {name: path or recipe.shared.get(name) for name, path in given.items()}
    if all(files.values()):
        return files
    if any(files.values()):
        raise ValueError("Pass both `--train_file` and `--test_file`, or a folder with both by `--data_dir`.")
    return find_files(data_dir or recipe.data.folder)
