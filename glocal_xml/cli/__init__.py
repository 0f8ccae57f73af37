"""What stands behind `glocal-xml`: one file per command."""

from .entry import COMMANDS, Command, main

__all__ = ["COMMANDS", "Command", "main"]
