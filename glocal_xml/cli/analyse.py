"""
Trains every model of a study, measures it on the test texts, and writes figures (PNG, SVG) and tables (CSV, Markdown).
An interrupted analysis resumes with the same command; a point that is done is not trained again, nor by another study
with the same folder. All other options are those of `glocal-xml train --help`; of --output_dir, <study>/ holds figures
and tables, runs/ a training run per point.

Studies, their family, and what they reproduce (each also gives table 3 of ME-XML: macro P/R/F by label frequency):

{studies}

examples:
  glocal-xml analyse layers examples/recipes/debtags/glocal_xml_part.yaml --layers 0 1 6 --output_dir outputs/layers
"""

import shlex
from typing import Any

from glocal_xml.analysis.studies import STUDIES

from .command_parser import add_overwrite, command_parser


def main(argv: list[str]) -> list[Any]:
    """Runs the study that the arguments ask for; returns its measured points."""
    studies = "\n\n".join(f"{study.name} ({study.model_type}): {study.reproduces}" for study in STUDIES)
    parser = command_parser(
        "analyse", (__doc__ or "").format(studies=studies), usage="%(prog)s STUDY [RECIPE.yaml] [OPTIONS]"
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
    add_overwrite(
        parser, "train points anew whose settings have changed; counts only on the command line, not in a recipe"
    )
    if not argv:
        parser.print_help()
        return []
    own, train_argv = parser.parse_known_args(argv)
    from glocal_xml.analysis.run_study import run_study
    from glocal_xml.runs.run import quieten, start_logging
    from glocal_xml.training import parse_arguments

    start_logging()
    arguments = parse_arguments(train_argv, prog=parser.prog)
    quieten(arguments[2])
    return run_study(
        own.study,
        arguments,
        command=f"glocal-xml analyse {shlex.join(argv)}",
        layers=own.layers,
        seeds=own.seeds,
        overwrite=own.overwrite_output,
        keep_models=own.keep_models,
    )
