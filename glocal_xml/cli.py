"""The command `glocal-xml`."""

import sys
from collections.abc import Callable

from glocal_xml.atomic_file import write_atomically
from glocal_xml.version import __version__

USAGE = """usage: glocal-xml COMMAND [ARGUMENTS]

Extreme multi-label text classification.

commands:
  train [RECIPE.yaml] [OPTIONS]          train, evaluate and predict in one run
  estimate [RECIPE.yaml] [OPTIONS]       memory and time of such a run, before anything is allocated
  evaluate MODEL TEST_FILE [OPTIONS]     metrics of a trained model on texts with labels
  predict MODEL TEXT_FILE [OPTIONS]      names and scores of the best labels of each text
  ensemble MODEL MODEL ... [OPTIONS]     metrics and best labels of several trained models together
  card RUN [--output FILE]               model card of a trained run, from its folder or its results.json
  analyse STUDY [RECIPE.yaml] [OPTIONS]  figures and tables of the papers; `analyse --help` lists the studies

examples:
  glocal-xml train --encoder minilm --train_file train.jsonl --test_file test.jsonl --output_dir outputs/tags
  glocal-xml train examples/recipes/debtags/glocal_xml.yaml --num_train_epochs 1
  glocal-xml estimate examples/recipes/debtags/glocal_xml.yaml --memory_gb 8
  glocal-xml evaluate outputs/tags other.jsonl --output_dir outputs/tags-other
  glocal-xml predict outputs/tags new.jsonl --output_dir outputs/tags-new
  glocal-xml ensemble outputs/tree-0 outputs/tree-1 --test_file test.jsonl --output_dir outputs/both-trees
  glocal-xml card outputs/tags
  glocal-xml analyse layers examples/recipes/debtags/demo.yaml --output_dir outputs/analysis

`glocal-xml train --help` lists the options, which train, estimate, evaluate, predict, ensemble and analyse share.
"""


def main(argv: list[str] | None = None) -> int:
    """Runs a command; a user's mistake ends in one line on standard error and exit code 2."""
    argv = sys.argv[1:] if argv is None else argv
    if not argv or argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if argv else 2
    if argv[0] == "--version":
        print(__version__)
        return 0
    command, *rest = argv
    try:
        if command not in COMMANDS:
            raise ValueError(f"there is no command {command!r}; the commands are {', '.join(COMMANDS)}")
        COMMANDS[command](rest)
    except (ValueError, OSError) as error:
        print(f"glocal-xml: error: {error}", file=sys.stderr)
        return 2
    return 0


def _train(arguments: list[str]) -> None:
    # Only here, since it takes seconds that `--help` need not.
    from glocal_xml.training import main as run

    run(arguments)


def _estimate(arguments: list[str]) -> None:
    from glocal_xml.estimate import main as estimate

    estimate(arguments)


def _analyse(arguments: list[str]) -> None:
    from glocal_xml.analysis import main as analyse

    analyse(arguments)


def _ensemble(arguments: list[str]) -> None:
    from glocal_xml.training.ensemble import main as ensemble

    ensemble(arguments)


def _with_model(command: str, file_option: str) -> Callable[[list[str]], None]:
    def start(arguments: list[str]) -> None:
        if any(argument in ("-h", "--help") for argument in arguments):
            return _train(["--help"])
        if len(arguments) < 2 or any(argument.startswith("-") for argument in arguments[:2]):
            raise ValueError(f"{command} needs a model and a file: `glocal-xml {command} MODEL FILE [OPTIONS]`")
        model, file, *rest = arguments
        return _train(["--model", model, file_option, file, "--output_dir", f"outputs/{command}", *rest])

    return start


def _card(arguments: list[str]) -> None:
    match arguments:
        case ["-h" | "--help"]:
            print(USAGE, end="")
            return
        case [source] if not source.startswith("-"):
            output = None
        case [source, "--output", output]:
            pass
        case _:
            raise ValueError("card needs a run: `glocal-xml card RUN_FOLDER [--output FILE]`")
    from glocal_xml.training import card_of_run

    _, card = card_of_run(source)
    if output is None:
        print(card, end="")
    else:
        write_atomically(output, card)


COMMANDS: dict[str, Callable[[list[str]], None]] = {
    "train": _train,
    "estimate": _estimate,
    "evaluate": _with_model("evaluate", "--test_file"),
    "predict": _with_model("predict", "--predict_file"),
    "ensemble": _ensemble,
    "card": _card,
    "analyse": _analyse,
}
