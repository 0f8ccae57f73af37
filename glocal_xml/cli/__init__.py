"""What stands behind `glocal-xml`: one file per command."""

from .entry import COMMANDS, main

__all__ = ["COMMANDS", "main"]
