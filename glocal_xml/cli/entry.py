"""The command `glocal-xml`."""

import logging
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from glocal_xml.interruption import terminated_like_ctrl_c
from glocal_xml.plain_errors import mendable, one_line
from glocal_xml.version import __version__

# Arguments of each command and what the overview says of it; `glocal_xml.cli.<name>` is imported when it runs.
COMMANDS = {
    "train": ("[RECIPE.yaml] [OPTIONS]", "train, evaluate and predict in one run"),
    "estimate": ("[RECIPE.yaml] [OPTIONS]", "memory and time of such a run, before it starts"),
    "evaluate": ("MODEL TEST_FILE [OPTIONS]", "metrics of a trained model on other texts"),
    "predict": ("MODEL [TEXT_FILE] [OPTIONS]", "names and scores of the best labels"),
    "explain": ("MODEL [TEXT_FILE] [OPTIONS]", "which words count for or against each label"),
    "calibrate": ("MODEL FILE [OPTIONS]", "calibrated probabilities, and a threshold"),
    "ensemble": ("MEMBER MEMBER ... [OPTIONS]", "models or prediction files together"),
    "labels": ("MODEL --output_dir FOLDER [OPTIONS]", "labels added, removed or renamed"),
    "memory": ("MODEL [--output_dir FOLDER] [OPTIONS]", "texts to find labels by, added or removed"),
    "export": ("MODEL --output_dir FOLDER [OPTIONS]", "a program that needs torch alone"),
    "publish": ("RUN USER/NAME [OPTIONS]", "a trained model on the Hub, with its card"),
    "demo": ("MODEL [OPTIONS]", "a web demo of a model"),
    "card": ("RUN [--output FILE]", "model card of a trained run"),
    "reproduce": ("RECIPE [OPTIONS]", "train the models of a table of a paper, and compare"),
    "analyse": ("STUDY [RECIPE.yaml] [OPTIONS]", "figures and tables of the papers"),
}
EXAMPLES = """examples:
  glocal-xml train --encoder minilm --minutes 10 --train_file train.jsonl --test_file test.jsonl
  glocal-xml train --encoder minilm --num_train_epochs 3 --train_file train.jsonl --output_dir outputs/tags
  glocal-xml train --encoder none --train_file train.jsonl --output_dir outputs/linear
  glocal-xml train examples/recipes/debtags/glocal_xml.yaml --num_train_epochs 1
  glocal-xml estimate examples/recipes/debtags/glocal_xml.yaml --memory_gb 8
  glocal-xml evaluate outputs/tags other.jsonl
  glocal-xml predict outputs/tags new.jsonl --output tagged.csv
  cat new.txt | glocal-xml predict outputs/tags --threshold 0.5 | jq .predictions
  glocal-xml explain outputs/tags --text "a text editor for GNOME" --format html --output words.html
  glocal-xml calibrate outputs/tags validation.jsonl
  glocal-xml publish outputs/tags user/tags --dry-run
  glocal-xml demo outputs/tags --open
  glocal-xml ensemble outputs/tree-0 outputs/tree-1 --test_file test.jsonl --output_dir outputs/both-trees
  glocal-xml labels outputs/tags --add new.txt --output_dir outputs/more-tags
  glocal-xml memory outputs/tags --add corrected.jsonl --output_dir outputs/tags-2
  glocal-xml export outputs/tags --output_dir outputs/tags-program
  glocal-xml card outputs/tags
  glocal-xml reproduce glocal_xml/eurlex4k --data_dir data/eurlex4k
  glocal-xml analyse layers examples/recipes/debtags/glocal_xml_part.yaml --output_dir outputs/analysis
"""
EXIT_CODES = """exit codes:
  0    done
  1    a bug, with its traceback
  2    invalid input, or no disk space, no network and the like, in one line
  130  interrupted (Ctrl-C)
  141  the reader of the output closed it (`| head`)
"""


def usage() -> str:
    """All commands, and examples."""
    starts = {f"  {name} {arguments}": summary for name, (arguments, summary) in COMMANDS.items()}
    width = max(map(len, starts)) + 2
    lines = [f"{start:{width}}{summary}" for start, summary in starts.items()]
    parts = [
        "usage: glocal-xml COMMAND [ARGUMENTS]",
        "Extreme multi-label text classification.",
        "commands:\n" + "\n".join(lines),
        EXAMPLES.rstrip(),
        EXIT_CODES.rstrip(),
        "`glocal-xml COMMAND --help` tells more.",
    ]
    return "\n\n".join(parts) + "\n"


def main(argv: list[str] | None = None) -> int:
    """Runs a command; a user's mistake ends in one line on standard error and exit code 2."""
    argv = [_home(argument) for argument in (sys.argv[1:] if argv is None else argv)]
    try:
        with terminated_like_ctrl_c(), _flags_in_logs(argv):
            code = _run(argv)
        sys.stdout.flush()
    except Exception as error:
        reason = mendable(error)
        if reason is None:
            raise
        if isinstance(reason, BrokenPipeError) and _output_is_closed():
            return 141
        from .command_parser import with_flags

        print(f"glocal-xml: error: {with_flags(one_line(reason), argv)}", file=sys.stderr)
        return 2
    except SystemExit as stop:
        # Of argparse, after a help text.
        if stop.code:
            raise
        return 0
    except KeyboardInterrupt:
        print("glocal-xml: interrupted", file=sys.stderr)
        return 130
    return code


def _run(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help"):
        print(usage(), end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(__version__)
        return 0
    command, *rest = argv
    if command not in COMMANDS:
        raise ValueError(f"there is no command {command!r}; the commands are {', '.join(COMMANDS)}")
    import_module(f"glocal_xml.cli.{command}").main(rest)
    return 0


def _home(argument: str) -> str:
    """`--name=~/path` with the path of the home folder, which shells put in only behind a blank."""
    name, _, value = argument.partition("=")
    return f"{name}={os.path.expanduser(value)}" if name.startswith("--") and value.startswith("~/") else argument


@contextmanager
def _flags_in_logs(argv: list[str]) -> Iterator[None]:
    """Warnings of the package call arguments by their flags, as errors do."""
    make = logging.getLogRecordFactory()

    def flagged(name: str, level: int, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make(name, level, *args, **kwargs)
        if level >= logging.WARNING and name.startswith("glocal_xml") and isinstance(record.msg, str):
            from .command_parser import with_flags

            record.msg = with_flags(record.msg, argv)
        return record

    logging.setLogRecordFactory(flagged)
    try:
        yield
    finally:
        logging.setLogRecordFactory(make)


def _output_is_closed() -> bool:
    """Whether nobody reads standard output any more; if so, what is left of it goes nowhere."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    closed = any(event & (select.POLLERR | select.POLLHUP) for _, event in output.poll(0))
    if closed:
        # Or Python would complain when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed
