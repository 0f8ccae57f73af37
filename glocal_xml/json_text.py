"""JSON as the standard has it: whole files, read with an error that names them, and no NaN written."""

import json
import math
import os
from pathlib import Path
from typing import Any


def read_json_object(path: str | os.PathLike) -> dict[str, Any]:
    """The object that a file holds; a `ValueError` that names the file where it holds none."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
    # A deep nest exhausts the stack of the parser.
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{os.fspath(path)} is damaged ({error}); restore it, or make it again.") from error
    if not isinstance(value, dict):
        raise ValueError(f"{os.fspath(path)} is damaged: it holds no JSON object; restore it, or make it again.")
    return value


def json_text(value: Any, **options: Any) -> str:
    """A value as JSON; numbers that are not finite become null, since JSON has no others."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, **options)
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=False, allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
