"""
The best labels of texts, or given ones, each with the words that speak for it (+) or against it (-): what they add to
its logit. Models with a blend also show what the whole text, similar training texts and the frequency of the label
add, so that all numbers sum to the logit of the score. Models without one, with attention_scoring=mlp, show the words
that a label read instead. A page (html) shows whole texts with these words marked, JSON has the place of every word.

examples:
  glocal-xml explain outputs/tags --text "a text editor for GNOME"
  glocal-xml explain outputs/tags new.jsonl --labels uitoolkit::gtk role::program --num_words 8
  glocal-xml explain outputs/tags new.csv --text_column abstract --output words.html
  glocal-xml explain user/model --format json < lines.txt | jq '.labels[].words'
  glocal-xml explain outputs/tags --text "a text editor for GNOME" --output words.png
"""

import argparse
import io
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from glocal_xml.atomic_file import write_atomically

from .command_parser import add_model, add_texts, command_parser, hide_bars_off_terminal, input_rows

if TYPE_CHECKING:
    from glocal_xml.explain import Explanation

STANDARD_OUTPUT = "-"


def main(argv: list[str]) -> None:
    """Explains the labels of one text or of the texts of a file."""
    args = _parser().parse_intermixed_args(argv)
    rows = input_rows(args)
    if args.format is None:
        args.format = _format_by_name(args.output)
    if args.format == "figure" and args.output == STANDARD_OUTPUT:
        raise ValueError("a figure needs a file: name one by --output, such as --output words.png")
    if args.output != STANDARD_OUTPUT and not Path(args.output).absolute().parent.is_dir():
        raise ValueError(f"the folder of {args.output} does not exist; make it first")
    WRITERS[args.format](_explanations(args, (row[args.text_column] for row in rows)), args.output)


def _format_by_name(output: str) -> str:
    suffix = "" if output == STANDARD_OUTPUT else Path(output).suffix.lower()
    if suffix not in FORMATS:
        raise ValueError(f"{output}: explanations are written as {', '.join(filter(None, FORMATS))}; name the file so")
    return FORMATS[suffix]


def _explanations(args: argparse.Namespace, texts: Iterable[str]) -> Iterator["Explanation"]:
    """Explains one text after the other."""
    # What follows takes seconds, which the help need not.
    from tqdm.auto import tqdm

    from glocal_xml.explain import explain
    from glocal_xml.trained_model import open_pipeline

    on_terminal = sys.stderr.isatty()
    hide_bars_off_terminal()
    pipe = open_pipeline(args.model, device=args.device, revision=args.revision, token=args.token)
    options = {name: getattr(args, name) for name in ("labels", "top_k", "num_words", "max_length", "branch")}
    # A bar between lines on the same terminal would garble both.
    has_bar = on_terminal and args.text is None and args.output != STANDARD_OUTPUT
    for text in tqdm(texts, desc="texts", unit="", disable=not has_bar):
        yield explain(pipe.model, pipe.tokenizer, text, **options)


def write_text(explanations: Iterator["Explanation"], output: str) -> None:
    """Lines for people, with colours on a terminal alone; the first text says what the numbers are."""
    # https://no-color.org
    color = output == STANDARD_OUTPUT and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    texts = (one.to_text(color, legend=number == 0) for number, one in enumerate(explanations))
    if output != STANDARD_OUTPUT:
        write_atomically(output, "\n".join(texts))
        return
    for number, text in enumerate(texts):
        print("\n" * (number > 0) + text, end="", flush=True)


def write_json(explanations: Iterator["Explanation"], output: str) -> None:
    """One object per line."""
    from glocal_xml.data.text_rows import write_rows

    write_rows((explanation.to_dict() for explanation in explanations), output, file_format="jsonl")


def write_html(explanations: Iterator["Explanation"], output: str) -> None:
    """One page of all texts."""
    from glocal_xml.explain import html_page

    page = html_page(list(explanations))
    if output == STANDARD_OUTPUT:
        print(page, end="")
    else:
        write_atomically(output, page)


def write_figure(explanations: Iterator["Explanation"], output: str) -> None:
    """The picture of one text, in the format that the name of the file says."""
    shown = list(explanations)
    if len(shown) != 1:
        raise ValueError(f"a figure shows one text, got {len(shown)}: give one by --text, or ask for --format html")
    picture = io.BytesIO()
    shown[0].figure().savefig(picture, format=Path(output).suffix.removeprefix(".") or "png", dpi=150)
    write_atomically(output, picture.getvalue())


WRITERS = {"text": write_text, "json": write_json, "html": write_html, "figure": write_figure}
FORMATS = {
    **{"": "text", ".txt": "text", ".json": "json", ".jsonl": "json", ".html": "html", ".htm": "html"},
    **dict.fromkeys((".png", ".svg", ".pdf"), "figure"),
}


def _parser() -> argparse.ArgumentParser:
    parser = command_parser("explain", __doc__)
    add_model(parser, "folder or Hub id of a model with a blend or label-word attention")
    add_texts(parser)
    parser.add_argument("--format", choices=list(WRITERS), help="of the output; by default what its name says")
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="labels to explain; by default the best ones")
    parser.add_argument("--top_k", type=int, default=5, help="how many of the best labels to explain (default: 5)")
    parser.add_argument("--num_words", type=int, default=5, help="how many words to name for a label (default: 5)")
    parser.add_argument("--max_length", type=int, help="most tokens for the encoder; by default as in training")
    parser.add_argument(
        "--branch", help="whose words to show, such as A-6, or all; by default the blend, or the first"
    )
    return parser
