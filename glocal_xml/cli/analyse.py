"""`glocal-xml analyse`: a study of a recipe, from training every point to figures and tables."""

import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from glocal_xml.analysis.studies import STUDIES, find_study, study_points

from .command_parser import CommandParser, boolean, command_parser

if TYPE_CHECKING:
    from glocal_xml.analysis.points import MeasuredPoint
    from glocal_xml.training import DataArguments, ModelArguments

logger = logging.getLogger(__name__)


def main(argv: list[str]) -> "list[MeasuredPoint]":
    """Runs the study that the arguments ask for; returns its measured points."""
    parser = _parser()
    if not argv:
        parser.print_help()
        return []
    own, train_argv = parser.parse_known_args(argv)
    # What follows takes seconds, which the help need not.
    from glocal_xml.analysis.points import measure_point, plan_runs
    from glocal_xml.analysis.summary import write_study
    from glocal_xml.analysis.tables import band_table, precision_table
    from glocal_xml.matplotlib_extra import check_matplotlib
    from glocal_xml.runs.model import encoder_config
    from glocal_xml.runs.run import quieten, start_logging
    from glocal_xml.training import parse_arguments

    start_logging()
    model_args, data_args, args = parse_arguments(train_argv, prog=parser.prog)
    quieten(args)
    study = find_study(own.study, model_args.model_type)
    _check(model_args, data_args, args.world_size, args.resume_from_checkpoint)
    check_matplotlib()
    sweep = study_points(study, encoder_config(model_args).num_hidden_layers, own.layers)
    planned = plan_runs((model_args, data_args, args), sweep, own.seeds)
    points = []
    for number, (point, arguments) in enumerate(planned, start=1):
        logger.info("point %d of %d: %s, seed %d", number, len(planned), point.name, arguments[2].seed)
        points.append(measure_point(point, arguments, overwrite=own.overwrite_output, keep_model=own.keep_models))
    folder = Path(args.output_dir, study.name)
    write_study(folder, study, points, f"glocal-xml analyse {shlex.join(argv)}", _data_name(data_args))
    logger.info("%s\n\n%s\n\n%s", study.reproduces, precision_table(points), band_table(points))
    logger.info("figures and tables: %s", folder)
    return points


def _parser() -> CommandParser:
    studies = "\n\n".join(f"{study.name} ({study.model_type}): {study.reproduces}" for study in STUDIES)
    parser = command_parser(
        "analyse",
        "Trains every model of a study, measures it on the test texts, and writes figures (PNG, SVG) and tables "
        "(CSV, Markdown). An interrupted analysis resumes with the same command; a point that is done is not "
        "trained again, nor by another study with the same folder. All other options are those of `glocal-xml "
        "train --help`; of --output_dir, <study>/ holds figures and tables, runs/ a training run per point.\n\n"
        "Studies, their family, and what they reproduce (each also gives table 3 of ME-XML: macro P/R/F by label "
        f"frequency):\n\n{studies}",
        ["analyse layers examples/recipes/debtags/glocal_xml_part.yaml --layers 0 1 6 --output_dir outputs/layers"],
        usage="%(prog)s STUDY [RECIPE.yaml] [OPTIONS]",
    )
    parser.add_argument("study", help="one of those above")
    parser.add_argument("--layers", type=int, nargs="+", metavar="N", help="layers and experts: only these layers")
    parser.add_argument(
        "--seeds",
        type=int,
        nargs="+",
        metavar="N",
        help="train every point with each of these seeds; figures show mean, least and greatest value",
    )
    parser.add_argument(
        "--keep_models", action="store_true", help="keep the weights of every point, which are deleted once measured"
    )
    # Not the recipe's: one that replaces its own run each time must not delete hours of others.
    parser.add_argument(
        "--overwrite_output",
        type=boolean,
        nargs="?",
        const=True,
        default=False,
        metavar="true|false",
        help="train points anew whose settings have changed; counts only on the command line, not in a recipe",
    )
    return parser


def _check(model_args: "ModelArguments", data_args: "DataArguments", processes: int, resume: str | None) -> None:
    if model_args.encoder is None:
        raise ValueError("A study trains its models: pass a recipe with an `encoder`, not a trained `model`.")
    if data_args.dataset_name is None and (data_args.train_file is None or data_args.test_file is None):
        raise ValueError("A study needs texts to train on and to judge by: pass `--train_file` and `--test_file`.")
    if processes > 1:
        raise ValueError(f"A study runs in one process, this is one of {processes}: start it by `glocal-xml analyse`.")
    if resume not in (None, "last"):
        raise ValueError("A study resumes by itself: leave out `--resume_from_checkpoint`.")


def _data_name(data_args: "DataArguments") -> str:
    """What to call the data: the dataset, or the folder of the training file."""
    if data_args.dataset_name is not None:
        return data_args.dataset_name
    path = Path(data_args.train_file)
    return path.parent.name or path.name.split(".")[0]
