"""The look that the help texts of commands share."""

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn


class CommandParser(argparse.ArgumentParser):
    """A parser whose complaints are one line like all others; `--top-k` will do for `--top_k`, as in `train`."""

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
        raise ValueError(f"{message}; see `{self.prog} --help`")


def command_parser(command: str, description: str, examples: Sequence[str]) -> argparse.ArgumentParser:
    """
    A parser whose help ends with examples; flags are not abbreviated, so that a new one breaks no script.

    Args:
        command: Name of the command.
        description: What it does, as the help tells it.
        examples: Whole command lines without the leading `glocal-xml`.
    """
    return CommandParser(
        prog=f"glocal-xml {command}",
        description=description,
        epilog="\n".join(["examples:", *(f"  glocal-xml {example}" for example in examples)]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
