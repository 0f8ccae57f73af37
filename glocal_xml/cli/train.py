"""
Train, evaluate and predict; what is done follows from the files that are given. A recipe is a YAML file with the names
of these options; flags override it. All other arguments of Transformers' TrainingArguments are options too, such as
--max_steps or --gradient_accumulation_steps: `glocal-xml train --help_all` lists them.

examples:
  glocal-xml train --encoder minilm --minutes 10 --train_file train.jsonl --test_file test.jsonl
  glocal-xml train --encoder minilm --num_train_epochs 3 --train_file train.jsonl --output_dir outputs/three-epochs
  glocal-xml train --encoder none --train_file train.jsonl --output_dir outputs/linear
  glocal-xml train examples/recipes/debtags/glocal_xml.yaml --num_train_epochs 1 --output_dir outputs/one-epoch
  glocal-xml train --model outputs/tags --train_file more.jsonl --output_dir outputs/tags-further
  glocal-xml train recipe.yaml --resume_from_checkpoint last
"""

import sys
from typing import Any

from glocal_xml.arguments import DataArguments, ModelArguments, TrainingOptions

from .command_parser import CommandParser, add_fields, command_parser


def main(argv: list[str] | None = None) -> dict[str, Any] | None:
    """Runs what the arguments ask for and returns what `results.json` holds."""
    argv = sys.argv[1:] if argv is None else argv
    if {"-h", "--help"} & set(argv):
        _parser().print_help()
        return None
    from glocal_xml.runs.run import run, start_logging
    from glocal_xml.training import parse_arguments

    # Before arguments are read, since reading them may warn.
    start_logging()
    argv = ["--help"] if "--help_all" in argv else argv
    model_args, data_args, args = parse_arguments(argv, prog="glocal-xml train")
    return run(model_args, data_args, args)


def _parser() -> CommandParser:
    """For the help alone: a run also takes a recipe, and all arguments of Trainer."""
    parser = command_parser("train", __doc__, usage="%(prog)s [RECIPE.yaml] [OPTIONS]")
    parser.add_argument("--help_all", action="store_true", help="show the arguments of Trainer too, and exit")
    for kind in (ModelArguments, DataArguments, TrainingOptions):
        add_fields(parser.add_argument_group(kind._argument_group_name), kind)
    return parser
