"""What reproducing a table would do: its commands, and their memory and time on this machine."""

import json
import shlex
from typing import Any

import psutil

from glocal_xml.analysis.run_study import plan_study
from glocal_xml.estimate import estimate_run, in_words, planned_config
from glocal_xml.estimate.planned_model import check_encoder, described_workload
from glocal_xml.plain_errors import mendable, one_line
from glocal_xml.runs.prepare import load_tokenizer
from glocal_xml.runs.run_once import Arguments

from .table_recipe import ENSEMBLE, PublishedData, TableRecipe
from .table_runs import runs_of_table


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


def command_line(command: str, settings: dict[str, Any], flags: list[str]) -> str:
    """The command that does the same as settings and flags, for people to read and copy."""
    words = []
    for name, value in settings.items():
        word = json.dumps(value) if isinstance(value, dict | bool) else str(value)
        words += [f"--{name}", *(map(str, value) if isinstance(value, list) else [word])]
    return f"glocal-xml {command} {shlex.join([*words, *flags])}"


def _expected(recipe: TableRecipe, arguments: Arguments) -> str:
    """Memory and time of a run, or why they are not known."""
    try:
        if recipe.study is None:
            return _estimated(arguments, recipe.data, 1)
        points = plan_study(recipe.study, arguments)
        return f"{len(points)} points, {_estimated(points[0][1], recipe.data, len(points))}"
    except Exception as error:
        if (reason := mendable(error)) is None:
            raise
        return f"memory and time are not known ({one_line(reason)})"


def _estimated(arguments: Arguments, data: PublishedData, number: int) -> str:
    model_args, data_args, args = arguments
    check_encoder(model_args.encoder)
    workload = described_workload(
        load_tokenizer(model_args, data_args.max_length, {}),
        num_labels=data.labels,
        num_texts=data.train_texts,
        labels_per_text=data.labels_per_text,
        num_evaluated=(0, data.test_texts),
    )
    memory = psutil.Process().memory_info().rss
    estimate = estimate_run(planned_config(model_args, data.labels), workload, args, memory)
    available = psutil.virtual_memory().available + memory
    return (
        f"{estimate.memory_bytes['peak'] / 1e9:.1f} GB of memory ({available / 1e9:.1f} GB are free), about "
        f"{in_words(number * estimate.run_seconds)} on the CPUs of this machine, for the published sizes of the data"
    )
