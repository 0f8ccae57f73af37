"""`glocal-xml calibrate`: scores of a trained model made usable."""

import json
import logging
import sys
from pathlib import Path

from .command_parser import command_parser


def main(argv: list[str]) -> None:
    """Fits temperature and threshold on the texts of a file, keeps them with the model, and reports."""
    parser = command_parser(
        "calibrate",
        "Makes the scores of a trained model usable: one temperature brings them close to probabilities, and one\n"
        "threshold decides which labels are given. Both are fitted on texts that the model was not trained on and\n"
        "kept in its config.json; rankings stay as they are. The other options for data and the device are those of\n"
        "`glocal-xml train`, such as --text_column, --label_delimiter and --per_device_eval_batch_size.",
        [
            "calibrate outputs/tags validation.jsonl",
            "calibrate outputs/tags validation.jsonl --f macro --figure reliability.png",
            "calibrate outputs/tags validation.csv --text_column title --label_delimiter ';' --json",
        ],
    )
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("file", help="texts with labels; none that the model was trained on")
    parser.add_argument(
        "--f", default="micro", help="which mean of F to maximise: micro, macro or samples (default: %(default)s)"
    )
    parser.add_argument(
        "--beta", type=float, default=1.0, help="recall counts this much more than precision (default: %(default)s)"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=100,
        help="best labels of each text to look at; other true labels count as missed (default: %(default)s)",
    )
    parser.add_argument("--figure", help="picture of the scores before and after, such as reliability.png")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    options, further = parser.parse_known_args(argv)
    # What follows takes seconds, which the help need not.
    from glocal_xml.calibration import (
        ScoredLabels,
        fit_calibration,
        judge_calibration,
        keep_calibration,
        report_lines,
        write_figure,
    )
    from glocal_xml.calibration.figure import check_figure
    from glocal_xml.calibration.threshold import check_average
    from glocal_xml.training import parse_arguments
    from glocal_xml.training.calibration_of_run import rank_texts
    from glocal_xml.training.prepare import load_texts, trained_label_space
    from glocal_xml.training.run import quieten
    from glocal_xml.training.windows_of_run import check_windows

    logging.basicConfig(format="glocal-xml: %(message)s", level=logging.WARNING, stream=sys.stderr)
    model, file = Path(options.model), options.file
    check_average(options.f, options.beta)
    if options.candidates < 1:
        raise ValueError(f"`candidates` must be at least 1, got {options.candidates}.")
    if options.figure is not None:
        check_figure(options.figure)
    if not model.is_dir():
        raise ValueError(f"There is no folder {model}: a calibration is kept with the model, so download that first.")
    flags = ["--model", str(model), "--test_file", file, "--output_dir", str(model), *further]
    _, data_args, args = parse_arguments(flags, prog=parser.prog)
    if data_args.train_file is not None:
        raise ValueError("calibrate trains nothing: leave out `--train_file`, or use `glocal-xml train --calibrate`.")
    quieten(args)
    check_windows(data_args)
    texts, label_space = load_texts(data_args, trained_label_space(str(model)), args.seed)
    ids, scores = rank_texts(
        str(model), texts["test"], label_space, args, data_args=data_args, candidates=options.candidates
    )
    num_labels = label_space.num_labels + len(label_space.unseen)
    pairs = ScoredLabels.from_rankings(ids, scores, list(texts["test"]["labels"]), num_labels)
    calibration = fit_calibration(pairs, options.f, options.beta)
    judged = judge_calibration(pairs, calibration)
    keep_calibration(model, calibration)
    if options.figure is not None:
        write_figure(options.figure, pairs, calibration, f"{model.name}, fitted on {Path(file).name}")
    if options.json:
        print(json.dumps({**calibration, "candidates": ids.shape[1], "fitted_on": judged}, indent=2))
    else:
        print("\n".join([*report_lines(calibration, judged), f"kept in {model / 'config.json'}"]))
