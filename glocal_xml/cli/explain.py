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
from typing import Any

from glocal_xml.atomic_file import write_atomically

from .command_parser import add_model, add_texts, command_parser, input_rows, open_model

STANDARD_OUTPUT = "-"


def main(argv: list[str]) -> None:
    """Explains the labels of one text or of the texts of a file."""
    parser = command_parser("explain", __doc__)
    add_model(parser, "folder or Hub id of a model with a blend or label-word attention")
    add_texts(parser)
    parser.add_argument(
        "--format", choices=["text", "json", "html", "figure"], help="of the output; by default what its name says"
    )
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="labels to explain; by default the best ones")
    parser.add_argument("--top_k", type=int, default=5, help="how many of the best labels to explain (default: 5)")
    parser.add_argument("--num_words", type=int, default=5, help="how many words to name for a label (default: 5)")
    parser.add_argument("--max_length", type=int, help="most tokens for the encoder; by default as in training")
    parser.add_argument(
        "--branch", help="whose words to show, such as A-6, or all; by default the blend, or the first"
    )
    args = parser.parse_intermixed_args(argv)
    rows = input_rows(args)
    suffix = "" if args.output == STANDARD_OUTPUT else Path(args.output).suffix.lower()
    if args.format is None and suffix not in FORMATS:
        known = ", ".join(filter(None, FORMATS))
        raise ValueError(f"{args.output}: explanations are written as {known}; name the file so")
    args.format = args.format or FORMATS[suffix]
    if args.format == "figure" and args.output == STANDARD_OUTPUT:
        raise ValueError("a figure needs a file: name one by --output, such as --output words.png")
    if args.output != STANDARD_OUTPUT and not Path(args.output).absolute().parent.is_dir():
        raise ValueError(f"the folder of {args.output} does not exist; make it first")
    _write(_explanations(args, (row[args.text_column] for row in rows)), args.format, args.output)


def _explanations(args: argparse.Namespace, texts: Iterable[str]) -> Iterator[Any]:
    """Explains one text after the other."""
    from tqdm.auto import tqdm

    from glocal_xml.explain import explain

    pipe = open_model(args)
    options = {name: getattr(args, name) for name in ("labels", "top_k", "num_words", "max_length", "branch")}
    # A bar between lines on the same terminal would garble both.
    has_bar = sys.stderr.isatty() and args.text is None and args.output != STANDARD_OUTPUT
    for text in tqdm(texts, desc="texts", unit="", disable=not has_bar):
        yield explain(pipe.model, pipe.tokenizer, text, **options)


def _write(explanations: Iterator[Any], kind: str, output: str) -> None:
    """Writes lines for people or of JSON, text after text, or one page of all texts, or the picture of one."""
    from glocal_xml.data.text_rows import write_rows
    from glocal_xml.explain import html_page

    content: str | bytes
    if kind == "json":
        write_rows((one.to_dict() for one in explanations), output, file_format="jsonl")
        return
    if kind == "text":
        # With colours on a terminal alone: https://no-color.org. The first text says what the numbers are.
        color = output == STANDARD_OUTPUT and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        texts = (one.to_text(color, legend=number == 0) for number, one in enumerate(explanations))
        if output == STANDARD_OUTPUT:
            for number, text in enumerate(texts):
                print("\n" * (number > 0) + text, end="", flush=True)
            return
        content = "\n".join(texts)
    elif kind == "html":
        content = html_page(list(explanations))
    else:
        shown, picture = list(explanations), io.BytesIO()
        if len(shown) != 1:
            raise ValueError(
                f"a figure shows one text, got {len(shown)}: give one by --text, or ask for --format html"
            )
        shown[0].figure().savefig(picture, format=Path(output).suffix.removeprefix(".") or "png", dpi=150)
        content = picture.getvalue()
    if output == STANDARD_OUTPUT:
        print(content, end="")
    else:
        write_atomically(output, content)


FORMATS = {
    **{"": "text", ".txt": "text", ".json": "json", ".jsonl": "json", ".html": "html", ".htm": "html"},
    **dict.fromkeys((".png", ".svg", ".pdf"), "figure"),
}
