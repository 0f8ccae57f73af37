"""
Makes the scores of a trained model probabilities: heads and experts, the frequency of a label and a bias are weighed
by a logistic regression (the blend), and one threshold decides which labels are given. All of it is fitted on texts
that the model has not seen: neither training texts nor those that its run held out, since the experts are fitted on
these in the end. It is kept with the model, in place of what was there.

examples:
  glocal-xml calibrate outputs/tags validation.jsonl
  glocal-xml calibrate outputs/tags validation.jsonl --f macro --figure reliability.png
  glocal-xml calibrate outputs/tags validation.csv --text_column title --label_delimiter ';' --json
"""

import json
from pathlib import Path

from glocal_xml.arguments import DataArguments, ModelArguments

from .command_parser import add_evaluation, command_parser, given, show_warnings


def main(argv: list[str]) -> None:
    """Fits the blend and its threshold on the texts of a file, keeps them with the model, and reports."""
    parser = command_parser("calibrate", __doc__)
    parser.add_argument("model", help="folder of the model")
    parser.add_argument("file", help="texts with labels, at least 50; none that the model was trained on")
    parser.add_argument(
        "--f",
        default="micro",
        help="which mean of F the threshold maximises: micro, macro or samples (default: %(default)s)",
    )
    parser.add_argument(
        "--beta", type=float, default=1.0, help="recall counts this much more than precision (default: %(default)s)"
    )
    parser.add_argument(
        "--candidates",
        type=int,
        default=15,
        help="best labels of each head and expert to look at, for each text; other true labels count as missed "
        "(default: %(default)s)",
    )
    parser.add_argument("--figure", help="picture of the probabilities before and after, such as reliability.png")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_evaluation(parser)
    options = parser.parse_args(argv)
    from glocal_xml.calibration import check_average, check_figure, report_lines, write_figure
    from glocal_xml.runs.blend import keep_blend, refit_blend
    from glocal_xml.runs.model import check_length
    from glocal_xml.runs.prepare import load_texts, load_tokenizer, trained_label_space
    from glocal_xml.runs.run import quieten
    from glocal_xml.trained_model import load_trained_model
    from glocal_xml.training import XMTCTrainingArguments

    show_warnings()
    folder = Path(options.model)
    check_average(options.f, options.beta)
    if options.candidates < 1:
        raise ValueError(f"`candidates` must be at least 1, got {options.candidates}.")
    if options.figure is not None:
        check_figure(options.figure)
    if not folder.is_dir():
        raise ValueError(f"There is no folder {folder}: a blend is kept with the model, so download that first.")
    data_args = given(DataArguments, options, test_file=options.file)
    args = given(XMTCTrainingArguments, options, output_dir=str(folder))
    quieten(args)
    texts, label_space = load_texts(data_args, trained_label_space(str(folder)), args.seed)
    tokenizer = load_tokenizer(ModelArguments(model=str(folder)), data_args.max_length, {})
    model = load_trained_model(str(folder), tokenizer).to(args.device)
    check_length(model, tokenizer.model_max_length)
    refitted = refit_blend(
        model,
        texts["test"],
        label_space,
        tokenizer,
        f=options.f,
        beta=options.beta,
        candidates=options.candidates,
        batch_size=args.per_device_eval_batch_size,
    )
    keep_blend(folder, model)
    blend, before, after = model.config.blend, refitted.judged_before, refitted.judged_after
    if options.figure is not None:
        title = f"{folder.resolve().name}, fitted on {Path(options.file).name}"
        write_figure(options.figure, refitted.before, refitted.after, blend, title)
    if options.json:
        print(json.dumps({**blend, "candidates": options.candidates, "before": before, "after": after}, indent=2))
        return
    print(f"before, with the threshold {before['threshold']:.4f}", *report_lines(blend, before)[1:], sep="\n  ")
    print("after, on the texts that it was fitted on", *report_lines(blend, after), sep="\n  ")
    print(f"kept in {folder}")
