"""A study of a recipe: every point an ordinary training run, in a folder named by what differs; figures and tables."""

import copy
import json
import logging
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import AutoModel, AutoTokenizer

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import XMTCCollator, tokenize
from glocal_xml.hub.run_files import CARD_FILE, RESULTS_FILE, holds_card
from glocal_xml.matplotlib_extra import check_matplotlib
from glocal_xml.modeling import FAMILIES
from glocal_xml.runs.model import config_class, encoder_config, late_loss, recipe_config
from glocal_xml.runs.prepare import load_texts, trained_label_space
from glocal_xml.runs.run_once import Arguments, claim_folder, read_json, train_or_resume
from glocal_xml.training import ModelArguments
from glocal_xml.training.optimizer import deciding_patterns
from glocal_xml.training.run_facts import run_settings

from .divergences import branch_divergences
from .studies import MeasuredPoint, Point, find_study, study_points
from .tables import write_study

logger = logging.getLogger(__name__)

DIVERGENCES_FILE = "divergences.json"
# What tables and figures need, whatever else the recipe asks for.
_RANKS = (1, 3, 5)
# Enough for any partition; names and shapes of the other parameters do not depend on it.
_TRIAL_LABELS = 1000


def run_study(
    name: str,
    arguments: Arguments,
    *,
    command: str,
    layers: Sequence[int] | None = None,
    seeds: Sequence[int] | None = None,
    overwrite: bool = False,
    keep_models: bool = False,
) -> list[MeasuredPoint]:
    """
    Trains and measures the points of [`plan_study`], as far as that was not done before; writes figures and tables,
    with the command on their page. Runs with other settings in the folders of points are an error, or deleted by
    `overwrite`; weights are deleted once they are measured, unless `keep_models`.
    """
    planned = plan_study(name, arguments, layers=layers, seeds=seeds)
    check_matplotlib()
    points = []
    for number, (point, own) in enumerate(planned, start=1):
        logger.info("point %d of %d: %s, seed %d", number, len(planned), point.name, own[2].seed)
        points.append(measure_point(point, own, overwrite=overwrite, keep_model=keep_models))
    model_args, data_args, args = arguments
    file, folder = Path(data_args.train_file or ""), Path(args.output_dir, name)
    data = data_args.dataset_name or file.parent.name or file.name.split(".")[0]
    logger.info(write_study(folder, find_study(name, model_args.model_type), points, command, data))
    logger.info("figures and tables: %s", folder)
    return points


def real_changes(point: Point, model_args: ModelArguments) -> dict[str, Any]:
    """The changes of a point that do not hold in the recipe anyway: equal points of two studies are one run."""
    family = fields(config_class(model_args.model_type))
    defaults = {f.name: f.default if f.default_factory is MISSING else f.default_factory() for f in family}
    recipe = defaults | model_args.model_config
    return {name: value for name, value in point.changes.items() if name not in recipe or recipe[name] != value}


def run_name(changes: dict[str, Any]) -> str:
    """Folder name of a run: `local_layer=0`, `experts=A-1,D-6--training_loss=collaborative`, or `as_recipe`."""

    def written(value: Any) -> str:
        if isinstance(value, list):
            return ",".join(map(written, value))
        return f"{value:g}" if isinstance(value, float) else str(value)

    return "--".join(f"{name}={written(value)}" for name, value in changes.items()) or "as_recipe"


def rates_of_points(rates: dict[str, float], names_of_points: Iterable[list[str]]) -> list[dict[str, float]]:
    """
    For each point the learning rates that decide a parameter of it: a model without a local branch has no use for the
    rate of one, which a single run would take for a slip. A pattern that decides nothing in any of the points is one.
    """
    deciding = [deciding_patterns(names, rates) for names in names_of_points]
    if useless := set(rates).difference(*deciding):
        raise ValueError(
            f"The learning rate patterns {', '.join(map(repr, sorted(useless)))} decide no parameter of any model of "
            "this study: correct or remove them in `module_learning_rates`."
        )
    return [{pattern: rate for pattern, rate in rates.items() if pattern in patterns} for patterns in deciding]


def plan_study(
    name: str, arguments: Arguments, *, layers: Sequence[int] | None = None, seeds: Sequence[int] | None = None
) -> list[tuple[Point, Arguments]]:
    """
    The points of a study (of `layers`, for a sweep; all by default) and the arguments of their runs, with each of the
    seeds; whatever can be refused is refused here, before any training.
    """
    model_args, data_args, args = arguments
    study = find_study(name, model_args.model_type)
    if model_args.encoder is None:
        raise ValueError("A study trains its models: pass a recipe with an `encoder`, not a trained `model`.")
    if data_args.dataset_name is None and (data_args.train_file is None or data_args.test_file is None):
        raise ValueError("A study needs texts to train on and to judge by: pass `--train_file` and `--test_file`.")
    if args.world_size > 1:
        raise ValueError(f"A study runs in one process, not in {args.world_size}: start it by `glocal-xml analyse`.")
    if args.resume_from_checkpoint not in (None, "last"):
        raise ValueError("A study resumes by itself: leave out `--resume_from_checkpoint`.")
    points = study_points(study, encoder_config(model_args).num_hidden_layers, layers)
    changes = [real_changes(point, model_args) for point in points]
    # The studies are of the heads.
    models = [replace(model_args, model_config=model_args.model_config | change, experts=[]) for change in changes]
    configs = [recipe_config(model, _TRIAL_LABELS) for model in models]
    # It would make two equal rows of a table, and look like a finding.
    for late in filter(None, (late_loss(config, args) for config in configs)):
        raise ValueError(late)
    with torch.device("meta"):
        names = [[name for name, _ in FAMILIES[type(config)](config).named_parameters()] for config in configs]
    rates = rates_of_points(args.module_learning_rates, names)
    planned = []
    for point, change, model, rate in zip(points, changes, models, rates, strict=True):
        for seed in [args.seed] if seeds is None else seeds:
            # Copies: a run writes into its arguments what it found out.
            own = copy.copy(args)
            own.seed, own.module_learning_rates, own.blend = seed, rate, False
            own.output_dir = f"{args.output_dir}/runs/{run_name(change)}/seed-{seed}"
            own.metrics_at = sorted({*args.metrics_at, *_RANKS})
            planned.append((point, (copy.copy(model), copy.copy(data_args), own)))
    return planned


def measure_point(point: Point, arguments: Arguments, *, overwrite: bool, keep_model: bool) -> MeasuredPoint:
    """Trains, evaluates and measures a point, as far as that was not done before; its weights are deleted then."""
    folder, seed = Path(arguments[2].output_dir), arguments[2].seed
    claim_folder(folder, run_settings(*arguments), overwrite=overwrite, further_files=[DIVERGENCES_FILE])
    results, divergences = read_json(folder / RESULTS_FILE), read_json(folder / DIVERGENCES_FILE)
    if results is not None and divergences is not None:
        logger.info("done before: %s", folder)
        return MeasuredPoint(point, seed, folder, results, divergences)
    if results is None or not (folder / "model.safetensors").is_file():
        results = train_or_resume(arguments)
    if "test" not in results:
        raise ValueError(f"The run {folder} judged no test texts: pass `--test_file`, or a dataset with a test part.")
    if any(f"precision@{k}" not in metrics for metrics in results["test"].values() for k in _RANKS):
        raise ValueError(f"A study ranks {max(_RANKS)} labels, and {folder} has fewer: use data with more.")
    divergences = _measure(arguments, folder)
    write_atomically(folder / DIVERGENCES_FILE, json.dumps(divergences, indent=2) + "\n")
    if not keep_model:
        (folder / "model.safetensors").unlink()
        # The card tells how to use a model that is no longer there; `glocal-xml card` renders it again.
        if holds_card(folder):
            (folder / CARD_FILE).unlink()
        for checkpoint in folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    return MeasuredPoint(point, seed, folder, results, divergences)


def _measure(arguments: Arguments, folder: Path) -> dict[str, Any]:
    _, data_args, args = arguments
    label_space = trained_label_space(str(folder))
    # The same test texts as the run judged, and no others.
    test_only = replace(data_args, train_file=None, validation_file=None, validation_size=None, predict_file=None)
    texts, _ = load_texts(test_only, label_space, args.seed)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenize(texts["test"], tokenizer, tokenizer.model_max_length)
    batches = DataLoader(tokens, batch_size=args.per_device_eval_batch_size, collate_fn=XMTCCollator(tokenizer))
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).to(args.device)
    return {"train_texts": label_space.num_texts, **branch_divergences(model, batches)}
