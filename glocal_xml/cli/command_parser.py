"""What commands share: errors of one line in terms of flags, examples, flags that are fields, models and texts."""

import argparse
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from textwrap import fill
from types import NoneType
from typing import Any, NoReturn, get_args, get_origin

from glocal_xml.arguments import DataArguments, ModelArguments, TrainingOptions

_READING = (
    *("file_format", "text_column", "labels_column", "label_delimiter", "label_map", "bad_rows", "allow_no_labels"),
    *("max_length", "max_test_texts"),
)
_DEVICE = ("per_device_eval_batch_size", "use_cpu", "seed", "disable_tqdm")
# Not parts of paths, of code such as `name=value`, or of quoted values.
_WORD = re.compile(r"(?<![\w./'\"-])[a-z]\w*(?![\w/=('\"-]|\.\w)")


class CommandParser(argparse.ArgumentParser):
    """A parser whose errors are one line like all others; `--top-k` will do for `--top_k`, as in `train`."""

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> tuple[Any, list[str]]:
        return super().parse_known_args(
            [self._spelled(x) for x in (sys.argv[1:] if args is None else args)], namespace
        )

    def _spelled(self, argument: str) -> str:
        name, equals, value = argument.partition("=")
        other = f"--{name[2:].replace('-', '_')}" if name.startswith("--") else name
        # A parser has no public list of its options.
        known = self._option_string_actions
        return f"{other}{equals}{value}" if name not in known and other in known else argument

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments: "):
            wrong = message.split()[2].split("=")[0]
            close = get_close_matches(wrong, self._option_string_actions, n=1)
            message += f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"{message}; see `{self.prog} --help`")


def command_parser(command: str, text: str | None, **options: Any) -> CommandParser:
    """
    A parser with the help that a text holds (none where Python drops docstrings): paragraphs, then lines of examples
    below `examples:`. Flags are not abbreviated, so that a new one breaks no script.
    """
    description, _, examples = (text or "").partition("\n\nexamples:\n")
    return CommandParser(
        prog=f"glocal-xml {command}",
        description="\n\n".join(fill(part.strip(), 110, break_on_hyphens=False) for part in description.split("\n\n")),
        epilog=f"examples:\n{examples.rstrip()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **options,
    )


def add_fields(parser: argparse.ArgumentParser, arguments: type, names: Iterable[str] | None = None) -> None:
    """Adds flags for all fields of a dataclass, or for some; one that is not given is no part of what is parsed."""
    for field in fields(arguments):
        if names is not None and field.name not in names:
            continue
        # The first of what a field may be; `list[int] | None` is a list.
        kind = next((part for part in get_args(field.type) if part is not NoneType), field.type)
        kind = field.type if get_origin(field.type) is list else kind
        options: dict[str, Any] = {"type": kind, "metavar": "N" if kind in (int, float) else "VALUE"}
        if kind is bool:
            options = {"type": boolean, "nargs": "?", "const": True, "metavar": "true|false"}
        elif kind is dict:
            options = {"type": str, "metavar": "JSON"}
        elif get_origin(kind) is list:
            (item,) = get_args(kind)
            options = {"type": item, "nargs": "+", "metavar": "N" if item is int else "VALUE"}
        elif field.name.endswith("_file"):
            options["metavar"] = "FILE"
        default = field.default if field.default_factory is MISSING else field.default_factory()
        shown = " ".join(map(str, default)) if isinstance(default, list) else default
        told = "" if shown in (None, False) else f" (default: {shown})"
        parser.add_argument(
            f"--{field.name}", default=argparse.SUPPRESS, help=field.metadata["help"].rstrip(".") + told, **options
        )


def add_evaluation(parser: argparse.ArgumentParser, data: Sequence[str] = (), training: Sequence[str] = ()) -> None:
    """Adds the flags to read texts with labels and to run a model on them, and more fields of either kind."""
    add_fields(parser.add_argument_group("data"), DataArguments, (*_READING, *data))
    add_fields(parser.add_argument_group("evaluation"), TrainingOptions, (*_DEVICE, *training))


def given(kind: type, args: argparse.Namespace, **further: Any) -> Any:
    """A dataclass of the flags that were given."""
    names = {field.name for field in fields(kind) if field.init}
    return kind(**{name: value for name, value in vars(args).items() if name in names} | further)


def add_model(parser: argparse.ArgumentParser, what: str = "folder or Hub id of the model") -> None:
    """Adds a model, and the flags to open it."""
    parser.add_argument("model", help=what)
    parser.add_argument("--device", help="cpu, cuda:1, ...; by default the accelerator where there is one")
    parser.add_argument("--revision", help="branch, tag or commit of a model on the Hub")
    parser.add_argument("--token", help="for a private model; by default HF_TOKEN or that of `hf auth login`")


def add_texts(parser: argparse.ArgumentParser) -> None:
    """Adds texts to read, a file to write and the flags for both."""
    parser.add_argument(
        "file",
        nargs="?",
        help="JSON lines, CSV, TSV, or plain text with one text per line, gzipped or not; default: standard input",
    )
    parser.add_argument("--text", help="one text, instead of a file")
    parser.add_argument(
        "--input_format",
        choices=["jsonl", "csv", "tsv", "lines"],
        help="of the texts; by default what the name says, else jsonl where they begin with a brace, else lines",
    )
    parser.add_argument("--text_column", default="text", help="field or column of the text (default: text)")
    parser.add_argument("--output", default="-", help="file to write, whole or not at all; standard output by default")


def add_overwrite(parser: argparse.ArgumentParser, what: str) -> None:
    """Adds the flag that allows a command to delete runs with other settings."""
    parser.add_argument(
        "--overwrite_output", type=boolean, nargs="?", const=True, default=False, metavar="true|false", help=what
    )


def show_warnings() -> None:
    """Shows warnings as lines on standard error, where results go to standard output."""
    logging.basicConfig(format="glocal-xml: %(message)s", level=logging.WARNING, stream=sys.stderr)


def open_model(args: argparse.Namespace, device: str | None = None) -> Any:
    """The pipeline of a model, by the flags that were given; without progress bars where nobody watches them."""
    from transformers.utils import logging as transformers_logging

    from glocal_xml.trained_model import open_pipeline

    if not sys.stderr.isatty():
        transformers_logging.disable_progress_bar()
    hub = {name: getattr(args, name, None) for name in ("revision", "token")}
    return open_pipeline(args.model, device=getattr(args, "device", None) or device, **hub)


def input_rows(args: argparse.Namespace) -> Iterable[dict[str, Any]]:
    """The text that was given as a row, or the rows of the file."""
    from glocal_xml.data.text_rows import read_text_rows

    if args.text is not None and args.file is not None:
        raise ValueError(f"either `--text` or a file of texts, not both: leave out {args.file} or the option")
    if args.text is not None:
        return [{args.text_column: args.text}]
    return read_text_rows(args.file or "-", file_format=args.input_format, text_column=args.text_column)


def boolean(value: str) -> bool:
    """`true` or `false`, or what else says so."""
    known = {**dict.fromkeys(("true", "yes", "1"), True), **dict.fromkeys(("false", "no", "0"), False)}
    if value.lower() not in known:
        raise argparse.ArgumentTypeError(f"must be true or false, got {value!r}")
    return known[value.lower()]


def with_flags(message: str, argv: Sequence[str]) -> str:
    """A message that calls arguments, also those in `argv`, by their flags: `--max_length` for `max_length`."""
    if "see `glocal-xml " in message:
        # Of the parser of the command line, where arguments without flags have names, too.
        return message
    names = {field.name for kind in (DataArguments, ModelArguments, TrainingOptions) for field in fields(kind)}
    names |= {word[2:].split("=")[0] for word in argv if word.startswith("--")}

    def flag(found: re.Match[str]) -> str:
        word = found.group()
        # Without an underscore or a mark it may be a plain word, such as `model`.
        is_name = word in names and ("_" in word or message[: found.start()].endswith("`"))
        return f"--{word}" if is_name else word

    return _WORD.sub(flag, message)
