"""
The best labels of texts, by a trained model. Rows are written in their order, with all that they hold and their
`predictions`: as JSON lines, or as CSV or TSV with the columns label_1, score_1, label_2, ... or all labels in one
column. A text with nothing in it gets no labels. Cells that a spreadsheet would take for a formula get a ' in front.
Several processes share the texts of a file, each on an accelerator where there are some; the output is the same:
`torchrun --nproc_per_node 4 -m glocal_xml predict ...`, or by `accelerate launch`.

examples:
  glocal-xml predict outputs/tags new.jsonl --output tagged.jsonl
  glocal-xml predict outputs/tags new.csv --text_column abstract --top_k 3 --output tagged.csv
  glocal-xml predict outputs/tags new.csv --threshold calibrated --label_delimiter ';' --output tagged.csv
  glocal-xml predict outputs/tags --text 'a small text editor for GNOME'
  glocal-xml predict user/model --threshold calibrated < lines.txt | jq -r '.predictions[].label'
  glocal-xml predict outputs/tags long.jsonl.gz --windows max --candidate_labels some_labels.txt
"""

import argparse
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from typing import Any

from .command_parser import add_model, add_texts, command_parser, input_rows, open_model, show_warnings


def main(argv: list[str]) -> None:
    """Reads texts, and writes each row with the labels that the model gives it; in as many processes as there are."""
    parser = command_parser("predict", __doc__)
    add_model(parser)
    add_texts(parser)
    parser.add_argument(
        "--format", choices=["jsonl", "csv", "tsv"], help="of the output; by default what its name says, else jsonl"
    )
    parser.add_argument("--top_k", type=positive, help="most labels of a text (default: 5; with --threshold 100)")
    parser.add_argument(
        "--threshold",
        type=threshold,
        help="leave out labels that score less; `calibrated`: the threshold that was fitted on held-out texts",
    )
    parser.add_argument(
        "--label_delimiter", help="CSV and TSV: write the labels into one column, best first, joined by this"
    )
    parser.add_argument(
        "--labels_column", default="labels", help="its name; replaces such a column of the input (default: labels)"
    )
    parser.add_argument("--candidate_labels", metavar="FILE", help="only these labels, one per line")
    parser.add_argument("--branch_scores", action="store_true", help="also the score of each branch or expert")
    parser.add_argument(
        "--windows", choices=["max", "mean"], help="read long texts to their end, by windows, and join their scores so"
    )
    parser.add_argument("--batch_size", type=positive, default=32, help="texts in the model at once (default: 32)")
    args = parser.parse_intermixed_args(argv)
    from glocal_xml.tagged_rows import launched_processes

    with launched_processes() as processes:
        _predict(args, processes)


def _predict(args: argparse.Namespace, processes: Any) -> None:
    from tqdm.auto import tqdm

    from glocal_xml.data.text_files import read_names
    from glocal_xml.data.text_rows import row_format, write_rows
    from glocal_xml.tagged_rows import joined, own_device, spread, tagged_rows

    show_warnings()
    file_format = row_format(args.output, args.format)
    if args.threshold is None and args.top_k is None:
        args.top_k = 5
    if args.label_delimiter is not None and file_format == "jsonl":
        raise ValueError("--label_delimiter is for CSV and TSV: name such an --output, or give --format csv")
    if args.label_delimiter is not None and args.branch_scores:
        raise ValueError("a column of label names has no place for scores: leave out --branch_scores")
    if args.top_k is None and file_format != "jsonl" and args.label_delimiter is None:
        raise ValueError(
            "a table has columns for each label of a text: say how many at most by --top_k, or write all of them into "
            "one column by --label_delimiter"
        )
    if processes.number > 1 and args.text is None and args.file in (None, "-"):
        raise ValueError(f"{processes.number} processes cannot share standard input: give a file of texts")
    rows = input_rows(args)
    # Each once.
    candidates = None if args.candidate_labels is None else list(dict.fromkeys(read_names(args.candidate_labels)))
    options = {
        "top_k": args.top_k,
        "threshold": args.threshold,
        "candidate_labels": candidates,
        "branch_scores": args.branch_scores,
        "windows": args.windows,
    }
    pipe = open_model(args, own_device())
    if args.text is None and args.file in (None, "-") and sys.stdin.isatty():
        print("Reading texts from the terminal, one per line, up to Ctrl-D.", file=sys.stderr)
    # A bar between rows on the same terminal would garble both.
    has_bar = (
        sys.stderr.isatty()
        and processes.is_first
        and args.text is None
        and not (args.output == "-" and sys.stdout.isatty())
    )
    tagged = tagged_rows(pipe, rows, args.text_column, args.batch_size, processes, **options)
    tagged = tqdm(tagged, desc="texts", unit="", disable=not has_bar)
    if args.label_delimiter is not None:
        inside = next((name for name in pipe.model.label_names or () if args.label_delimiter in name), None)
        if not args.label_delimiter or inside is not None:
            reason = f"occurs in the label {inside!r}" if args.label_delimiter else "is empty"
            raise ValueError(f"--label_delimiter {args.label_delimiter!r} {reason}: give another one, such as '|'")
        tagged = _told_of_columns(tagged, re.escape(args.labels_column))
        tagged = (joined(row, args.labels_column, args.label_delimiter) for row in tagged)
    elif file_format != "jsonl":
        limits = (args.top_k, pipe.model.config.num_labels, len(candidates or []) or args.top_k)
        branches = pipe.model.branch_names if args.branch_scores else []
        tagged = _told_of_columns(tagged, r"(label|score)_\d+")
        tagged = (spread(row, min(limits), branches) for row in tagged)
    # In the other processes there is nothing to write, but texts to tag.
    write_rows(tagged, args.output if processes.is_first else os.devnull, file_format=file_format)


def _told_of_columns(rows: Iterable[dict[str, Any]], names: str) -> Iterator[dict[str, Any]]:
    """The rows; warns where the input has columns of labels, as a table has that was tagged before."""
    for number, row in enumerate(rows):
        found = [name for name in row if re.fullmatch(names, name)]
        if number == 0 and found:
            logging.warning(
                "the input has columns of labels already: %s; those that are written anew are replaced in the output, "
                "others stay as they were: rename or remove them if you do not want that",
                ", ".join(found),
            )
        yield row


def positive(value: str) -> int:
    """A whole number of at least 1."""
    if not value.isdecimal() or int(value) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, got {value!r}")
    return int(value)


def threshold(value: str) -> float | str:
    """A probability, or `calibrated`."""
    if value == "calibrated":
        return value
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1, or calibrated, got {value!r}")
    return number
