"""What stands behind `glocal-xml`: one file per command, which imports what takes seconds after the flags are read."""

from .entry import COMMANDS, main

__all__ = ["COMMANDS", "main"]
