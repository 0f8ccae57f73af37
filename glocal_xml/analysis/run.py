"""The command `glocal-xml analyse`: a study of a recipe, from training every point to figures and tables."""

import argparse
import logging
import shlex
from pathlib import Path

from glocal_xml.matplotlib_extra import check_matplotlib
from glocal_xml.training import DataArguments, ModelArguments, parse_arguments
from glocal_xml.training.run import quieten, start_logging

from .points import MeasuredPoint, encoder_config, measure_point, plan_runs
from .studies import STUDIES, find_study, study_points
from .summary import write_study
from .tables import band_table, precision_table

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> list[MeasuredPoint]:
    """Runs the study that the arguments ask for; returns its measured points."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), end="")
        return []
    name, *rest = argv
    own, train_argv = _parser().parse_known_args(rest)
    start_logging()
    model_args, data_args, args = parse_arguments(train_argv)
    quieten(args)
    study = find_study(name, model_args.model_type)
    _check(model_args, data_args, args.world_size, args.resume_from_checkpoint)
    check_matplotlib()
    sweep = study_points(study, encoder_config(model_args).num_hidden_layers, own.layers)
    planned = plan_runs((model_args, data_args, args), sweep, own.seeds)
    points = []
    for number, (point, arguments) in enumerate(planned, start=1):
        logger.info("point %d of %d: %s, seed %d", number, len(planned), point.name, arguments[2].seed)
        points.append(
            measure_point(point, arguments, overwrite=own.overwrite_output == "true", keep_model=own.keep_models)
        )
    folder = Path(args.output_dir, study.name)
    write_study(folder, study, points, f"glocal-xml analyse {shlex.join(argv)}", _data_name(data_args))
    logger.info("%s\n\n%s\n\n%s", study.reproduces, precision_table(points), band_table(points))
    logger.info("figures and tables: %s", folder)
    return points


def usage() -> str:
    """What `glocal-xml analyse --help` prints."""
    studies = "\n".join(f"  {study.name:11} {study.model_type:11} {study.reproduces}" for study in STUDIES)
    return f"""usage: glocal-xml analyse STUDY [RECIPE.yaml] [OPTIONS]

Trains every model of a study, measures it on the test texts, and writes figures (PNG, SVG) and tables (CSV, Markdown).

studies, their family, and what they reproduce (each also gives macro P/R/F by label frequency: table 3 of ME-XML):
{studies}

options:
  --layers N ...   layers and experts: only these layers
  --seeds N ...    train every point with each of these seeds; figures show mean, least and greatest value
  --keep_models    keep the weights of every point, which are deleted once it is measured
  --overwrite_output true
                   train points anew whose settings have changed; counts only on the command line, not in a recipe
  --output_dir     folder of the analysis: <study>/ holds figures and tables, runs/ a training run per point

All other options are those of `glocal-xml train --help`. An interrupted analysis resumes with the same
command; a point that is done is not trained again, nor by another study with the same folder.

example:
  glocal-xml analyse layers examples/recipes/debtags/glocal_xml_part.yaml --layers 0 1 6 --output_dir outputs/layers
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="glocal-xml analyse", usage="%(prog)s STUDY [RECIPE.yaml] [OPTIONS]", add_help=False, allow_abbrev=False
    )
    parser.add_argument("--layers", type=int, nargs="+")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--keep_models", action="store_true")
    # Not the recipe's: one that replaces its own run each time must not delete hours of others.
    parser.add_argument("--overwrite_output", choices=["true", "false"], nargs="?", const="true", default="false")
    return parser


def _check(model_args: ModelArguments, data_args: DataArguments, processes: int, resume: str | None) -> None:
    if model_args.encoder is None:
        raise ValueError("A study trains its models: pass a recipe with an `encoder`, not a trained `model`.")
    if data_args.dataset_name is None and (data_args.train_file is None or data_args.test_file is None):
        raise ValueError("A study needs texts to train on and to judge by: pass `--train_file` and `--test_file`.")
    if processes > 1:
        raise ValueError(f"A study runs in one process, this is one of {processes}: start it by `glocal-xml analyse`.")
    if resume not in (None, "last"):
        raise ValueError("A study resumes by itself: leave out `--resume_from_checkpoint`.")


def _data_name(data_args: DataArguments) -> str:
    """What to call the data: the dataset, or the folder of the training file."""
    if data_args.dataset_name is not None:
        return data_args.dataset_name
    path = Path(data_args.train_file)
    return path.parent.name or path.name.split(".")[0]
