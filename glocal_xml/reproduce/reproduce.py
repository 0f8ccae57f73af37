"""A table of a paper again: runs that are trained where they are not done, and measured beside published numbers."""

import copy
import json
import logging
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from glocal_xml.analysis.run_study import plan_study, run_study
from glocal_xml.atomic_file import write_atomically
from glocal_xml.ensembles import run_ensemble
from glocal_xml.estimate import estimate_run, in_words, planned_config
from glocal_xml.estimate.planned_model import check_encoder, described_workload
from glocal_xml.hub.run_files import RESULTS_FILE
from glocal_xml.plain_errors import mendable, one_line
from glocal_xml.runs.prepare import load_tokenizer
from glocal_xml.runs.run import quieten
from glocal_xml.runs.run_once import Arguments, claim_folder, read_json, train_or_resume
from glocal_xml.training.run_facts import environment, run_settings
from glocal_xml.training.run_parser import recipe_arguments

from .data_check import check_data
from .table_recipe import ENSEMBLE, TableRecipe

logger = logging.getLogger(__name__)

COMPARISON_FILE = "comparison.md"
_TITLES = ["run", "branch", "metric", "measured", "published", "difference", "published where"]

# A run of the table: metrics of each branch, the final ranking first.
Results = dict[str, dict[str, float]]


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
        numbers = zip((self.measured, self.published, difference), ("", "", "+"), strict=True)
        written = ["-" if value is None else f"{value:{sign}.2f}" for value, sign in numbers]
        return [self.run, self.branch, self.metric, *written, self.where]


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
            folder, make = Path(arguments[2].output_dir), partial(train_or_resume, arguments)
            measured[name] = _made_once(folder, run_settings(*arguments), overwrite, make)
        if recipe.ensemble and len(runs) == len(recipe.members):
            joined = [arguments for _, arguments in runs.values()]
            measured[ENSEMBLE] = _join_members(joined, output_dir, overwrite)
    rows = compare(recipe, measured)
    facts += [*warnings, ", ".join(f"{name} {value}" for name, value in environment(args).items())]
    parts = [
        f"# {recipe.name} on {recipe.data.name}",
        f"{recipe.paper}. Percent on the test texts; *measured*: by the runs here; *published*: in the paper, "
        "not by us.",
        comparison_table(rows),
        "\n".join(f"- {fact}" for fact in facts),
    ]
    write_atomically(Path(output_dir, COMPARISON_FILE), "\n\n".join(parts) + "\n")
    return rows


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


def command_line(command: str, settings: dict[str, Any], flags: list[str]) -> str:
    """The command that does the same as settings and flags, for people to read and copy."""
    words = []
    for name, value in settings.items():
        word = json.dumps(value) if isinstance(value, dict | bool) else str(value)
        words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [word])]
    return f"glocal-xml {command} {shlex.join([*words, *flags])}"


def _join_members(members: list[Arguments], output_dir: str, overwrite: bool) -> Results:
    """Metrics of the mean of all members, as far as that was not measured before."""
    folders = [arguments[2].output_dir for arguments in members]
    settings = {Path(folder).name: run_settings(*member) for folder, member in zip(folders, members, strict=True)}
    _, data_args, args = members[0]
    # Each member reads as much of a text as it was trained on.
    test = replace(data_args, train_file=None, validation_file=None, validation_size=None, max_length=None)
    args, folder = copy.copy(args), Path(output_dir, ENSEMBLE)
    args.output_dir, args.overwrite_output, args.resume_from_checkpoint = str(folder), True, None
    return _made_once(folder, {"members": settings}, overwrite, partial(run_ensemble, folders, test, args))


def _made_once(
    folder: Path, settings: dict[str, dict[str, Any]], overwrite: bool, make: Callable[[], dict[str, Any]]
) -> Results:
    """Metrics on the test texts, made unless that was done before with the same settings."""
    claim_folder(folder, settings, overwrite=overwrite)
    if (results := read_json(folder / RESULTS_FILE)) is None:
        return make()["test"]
    logger.info("done before: %s", folder)
    return results["test"]


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


def dry_run(
    recipe: TableRecipe, files: dict[str, str], output_dir: str, flags: list[str], members: list[str] | None = None
) -> list[str]:
    """Lines to print: the command that each run equals, with its memory and time, and that of the ensemble."""
    runs = runs_of_table(recipe, files, output_dir, flags, members)
    lines = [f"{recipe.name}: {recipe.paper}"]
    command = "train" if recipe.study is None else f"analyse {recipe.study}"
    for name, (settings, arguments) in runs.items():
        lines += ["", f"{name}: {_expected(recipe, arguments)}", command_line(command, settings, flags)]
    if recipe.ensemble and len(runs) == len(recipe.members):
        folders = shlex.join(arguments[2].output_dir for _, arguments in runs.values())
        names = ("test_file", "label_map", "propensity_a", "propensity_b")
        options = {name: settings[name] for name in names if name in settings}
        options["output_dir"] = f"{output_dir}/{ENSEMBLE}"
        lines += ["", f"{ENSEMBLE}: the mean of all", command_line(f"ensemble {folders}", options, [])]
    return lines


def _expected(recipe: TableRecipe, arguments: Arguments) -> str:
    """Memory and time of a run on this machine, for the published sizes of the data; or why they are not known."""
    data, memory, number, points = recipe.data, psutil.Process().memory_info().rss, 1, ""
    try:
        if recipe.study is not None:
            planned = plan_study(recipe.study, arguments)
            arguments, number, points = planned[0][1], len(planned), f"{len(planned)} points, "
        model_args, data_args, args = arguments
        check_encoder(model_args.encoder)
        workload = described_workload(
            load_tokenizer(model_args, data_args.max_length, {}),
            num_labels=data.labels,
            num_texts=data.train_texts,
            labels_per_text=data.labels_per_text,
            num_evaluated=(0, data.test_texts),
        )
        estimate = estimate_run(planned_config(model_args, data.labels), workload, args, memory)
    except Exception as error:
        if (reason := mendable(error)) is None:
            raise
        return f"memory and time are not known ({one_line(reason)})"
    available = psutil.virtual_memory().available + memory
    return (
        f"{points}{estimate.memory_bytes['peak'] / 1e9:.1f} GB of memory ({available / 1e9:.1f} GB are free), about "
        f"{in_words(number * estimate.run_seconds)} on the CPUs of this machine, for the published sizes of the data"
    )
