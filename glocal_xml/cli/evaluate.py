"""
Metrics of a trained model on texts with labels: of all branches together, of each, and of the most frequent labels for
comparison.

examples:
  glocal-xml evaluate outputs/tags test.jsonl
  glocal-xml evaluate user/model test.csv --text_column abstract --labels_column subjects --label_delimiter ';'
  glocal-xml evaluate outputs/tags test.jsonl --metrics_at 1 5 10 --json > metrics.json
  glocal-xml evaluate outputs/tags other.jsonl --output_dir outputs/tags-other
"""

import json
from contextlib import nullcontext
from tempfile import TemporaryDirectory

from glocal_xml.arguments import DataArguments, ModelArguments

from .command_parser import add_evaluation, command_parser, given, show_warnings


def main(argv: list[str]) -> None:
    """Prints the metrics of a model on the texts of a file."""
    parser = command_parser("evaluate", __doc__)
    parser.add_argument("model", help="folder or Hub id of the model")
    parser.add_argument("test_file", help="texts with labels, in any format that `train --test_file` takes")
    parser.add_argument(
        "--json", action="store_true", help="all metrics as JSON on standard output, instead of a table"
    )
    parser.add_argument(
        "--output_dir", metavar="FOLDER", help="also keep results.json and predictions.jsonl in this folder"
    )
    add_evaluation(
        parser,
        ("windows", "window_overlap", "max_windows", "streaming"),
        ("metrics_at", "propensity_a", "propensity_b", "overwrite_output"),
    )
    args = parser.parse_args(argv)
    from glocal_xml.runs.report import results_table
    from glocal_xml.runs.run import run
    from glocal_xml.training import XMTCTrainingArguments

    show_warnings()
    with TemporaryDirectory() if args.output_dir is None else nullcontext(args.output_dir) as folder:
        run_args = given(XMTCTrainingArguments, args, output_dir=folder)
        results = run(ModelArguments(model=args.model), given(DataArguments, args), run_args)
    number = results["data"]["texts"]["test"]
    if args.json:
        print(json.dumps({"texts": number, **results["test"]}, indent=2))
    else:
        print(f"{args.test_file}, {number} texts\n{results_table(results['test'], run_args)}")
