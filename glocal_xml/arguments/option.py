"""What the fields of arguments are made of."""

from dataclasses import field
from typing import Any


def option(default: Any, text: str) -> Any:
    """A field of a dataclass with the text that help shows of its flag."""
    value = {"default_factory": lambda: list(default)} if isinstance(default, list) else {"default": default}
    return field(**value, metadata={"help": text})
