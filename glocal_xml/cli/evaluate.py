"""`glocal-xml evaluate`: metrics of a trained model on texts with labels."""

import json
import logging
import sys
from contextlib import nullcontext
from tempfile import TemporaryDirectory

from .command_parser import command_parser


def main(argv: list[str]) -> None:
    """Prints the metrics of a model on the texts of a file."""
    parser = command_parser(
        "evaluate",
        "Metrics of a trained model on texts with labels: of all branches together, of each, and of the most\n"
        "frequent labels for comparison. The other options for data, metrics and the device are those of\n"
        "`glocal-xml train`, such as --metrics_at, --max_length, --max_test_texts and --per_device_eval_batch_size.",
        [
            "evaluate outputs/tags test.jsonl",
            "evaluate user/model test.csv --text_column abstract --labels_column subjects --label_delimiter ';'",
            "evaluate outputs/tags test.jsonl --metrics_at 1 5 10 --json > metrics.json",
            "evaluate outputs/tags other.jsonl --output_dir outputs/tags-other",
        ],
    )
    parser.add_argument("model", help="folder or Hub id of the model")
    parser.add_argument("test_file", help="texts with labels, in any format that `train --test_file` takes")
    parser.add_argument(
        "--json", action="store_true", help="all metrics as JSON on standard output, instead of a table"
    )
    parser.add_argument("--output_dir", help="also keep results.json and predictions.jsonl in this folder")
    args, further = parser.parse_known_args(argv)
    # What follows takes seconds, which the help need not.
    from glocal_xml.runs.report import results_table
    from glocal_xml.runs.run import quieten, run
    from glocal_xml.training import parse_arguments

    logging.basicConfig(format="glocal-xml: %(message)s", level=logging.WARNING, stream=sys.stderr)
    with TemporaryDirectory() if args.output_dir is None else nullcontext(args.output_dir) as folder:
        given = ["--model", args.model, "--test_file", args.test_file, "--output_dir", folder]
        model_args, data_args, run_args = parse_arguments([*given, *further], prog=parser.prog)
        if data_args.train_file is not None:
            raise ValueError("evaluate trains nothing: leave out `--train_file`, or use `glocal-xml train`")
        quieten(run_args)
        results = run(model_args, data_args, run_args)
    number = results["data"]["texts"]["test"]
    if args.json:
        print(json.dumps({"texts": number, **results["test"]}, indent=2))
    else:
        print(f"{args.test_file}, {number} texts\n{results_table(results['test'], run_args)}")
