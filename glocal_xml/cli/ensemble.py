"""
Ranks labels by the mean of the probabilities of its members, which are all trained models or all files.

Models: families, encoders, tokenizers and label trees may differ, the labels and their order may not. One model is in
memory at a time.

Files: predictions for the same texts in the same order, by any system: JSON lines as `predict --output` writes them,
`omikuji test --out_path` (.txt), or the scores that PECOS saves (.npz). A label that a file does not have counts 0
there, so let each have many labels of a text. To join models with files, let the models predict first.

examples:
  glocal-xml ensemble outputs/tree-0 outputs/tree-1 outputs/tree-2 --test_file test.jsonl
  glocal-xml predict outputs/tags test.jsonl --top_k 50 --output ours.jsonl
  glocal-xml ensemble ours.jsonl omikuji.txt --label_names_file outputs/tags/labels.txt --test_file test.jsonl
"""

from typing import Any

from glocal_xml.arguments import DataArguments

from .command_parser import add_evaluation, command_parser, given


def main(argv: list[str]) -> dict[str, Any]:
    """Runs the ensemble that the arguments ask for and returns what `results.json` holds."""
    parser = command_parser("ensemble", __doc__)
    parser.add_argument("members", nargs="+", metavar="MEMBER", help="models (folders or Hub ids) or prediction files")
    parser.add_argument("--test_file", metavar="FILE", help="texts with labels: metrics of the ensemble and of each")
    parser.add_argument("--predict_file", metavar="FILE", help="models: texts to predict labels for; labels optional")
    parser.add_argument(
        "--output_dir",
        metavar="FOLDER",
        default="outputs/ensemble",
        help="where results.json and predictions.jsonl go (default: outputs/ensemble)",
    )
    parser.add_argument("--top_k", type=int, default=10, help="labels of each text in predictions.jsonl (default: 10)")
    parser.add_argument(
        "--candidates",
        type=int,
        default=50,
        help="models: best labels that each brings in; a label that none brings in cannot win (default: 50)",
    )
    parser.add_argument(
        "--label_names_file", metavar="FILE", help="files: names of the labels that have numbers there, from 0 on"
    )
    parser.add_argument("--train_file", metavar="FILE", help="files: training texts, for the counts behind PSP")
    add_evaluation(
        parser,
        ("dataset_name", "dataset_config"),
        ("metrics_at", "propensity_a", "propensity_b", "overwrite_output"),
    )
    options = parser.parse_args(argv)
    from glocal_xml.ensembles import run_ensemble, run_file_ensemble
    from glocal_xml.ensembles.files import is_prediction_file
    from glocal_xml.runs.run import quieten, start_logging
    from glocal_xml.training import XMTCTrainingArguments

    start_logging()
    data_args, args = given(DataArguments, options), given(XMTCTrainingArguments, options)
    quieten(args)
    models = [member for member in options.members if not is_prediction_file(member)]
    if len(models) == len(options.members):
        return run_ensemble(models, data_args, args, top_k=options.top_k, candidates=options.candidates)
    if models:
        raise ValueError(
            f"Models ({', '.join(models)}) cannot be joined with files as they are; let them predict first, by "
            f"`glocal-xml predict {models[0]} {data_args.test_file or 'TEST_FILE'} --top_k 50 --output FILE.jsonl`."
        )
    return run_file_ensemble(options.members, data_args, args, top_k=options.top_k)
