"""Error messages in the terms of the command line."""

import re
from collections.abc import Sequence
from dataclasses import fields

from glocal_xml.arguments import DataArguments, ModelArguments, TrainingOptions

# Not parts of paths, of code such as `name=value`, or of quoted values.
_WORD = re.compile(r"(?<![\w./'\"-])[a-z]\w*(?![\w/=('\"-]|\.\w)")


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
