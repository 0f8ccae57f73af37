"""A study of a recipe, from training every point to figures and tables."""

import logging
from collections.abc import Sequence
from pathlib import Path

from glocal_xml.matplotlib_extra import check_matplotlib
from glocal_xml.runs.model import encoder_config
from glocal_xml.runs.run_once import Arguments

from .points import MeasuredPoint, measure_point, plan_runs
from .studies import Point, find_study, study_points
from .tables import write_study

logger = logging.getLogger(__name__)


def plan_study(
    name: str, arguments: Arguments, *, layers: Sequence[int] | None = None, seeds: Sequence[int] | None = None
) -> list[tuple[Point, Arguments]]:
    """
    The points of a study (of `layers`, for a sweep; all by default) and the arguments of their runs, with each of the
    seeds; whatever can be refused is refused here.
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
    depth = encoder_config(model_args).num_hidden_layers
    return plan_runs(arguments, study_points(study, depth, layers), seeds)


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
