"""Arguments of a run from flags, or from a recipe in YAML plus flags."""

import argparse
import re
from collections.abc import Iterable
from dataclasses import fields
from difflib import get_close_matches
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

import yaml
from transformers import HfArgumentParser

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments

# Levels of mappings and lists in a recipe.
_DEEPEST = 20


class _Loader(yaml.SafeLoader):
    """YAML takes 1e-4, without a point, for a string; here it is a number."""


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+\.?\d*[eE][-+]?\d+$"), "-+0123456789")


class _RunParser(HfArgumentParser):
    """Complains in one line; its help has all arguments of Trainer."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message}; see `{self.prog} --help`")


def parse_arguments(
    argv: list[str], *, prog: str | None = None
) -> tuple[ModelArguments, DataArguments, XMTCTrainingArguments]:
    """
    Reads flags, optionally after a recipe: `recipe.yaml --num_train_epochs 1`.

    A recipe is a flat mapping of the same names; flags override it. Paths in a recipe are relative to the current
    folder. Help and errors call the command `prog`, by default as the script.
    """
    source, recipe = None, {}
    if argv and argv[0].endswith((".yaml", ".yml")):
        source, *argv = argv
        recipe = read_recipe(source)
    return recipe_arguments(recipe, argv, source=source, prog=prog)


def recipe_arguments(
    recipe: dict[str, Any], argv: list[str], *, source: str | None, prog: str | None = None
) -> tuple[ModelArguments, DataArguments, XMTCTrainingArguments]:
    """The arguments of a recipe that was read, which errors call `source`, with flags that override it."""
    parser = _RunParser(
        (ModelArguments, DataArguments, XMTCTrainingArguments),
        prog=prog,
        usage="%(prog)s [RECIPE.yaml] [OPTIONS]",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        allow_abbrev=False,
    )
    known = [item.name for kind in parser.dataclass_types for item in fields(kind) if item.init]
    if wrong := sorted(set(recipe) - set(known)):
        raise ValueError(f"{source}: unknown names {', '.join(wrong)}{_meant(wrong[0], known)}")
    parser.set_defaults(**_with_types(source, recipe, parser.dataclass_types))
    *arguments, unknown = parser.parse_args_into_dataclasses(
        argv, look_for_args_file=False, return_remaining_strings=True
    )
    if unknown and Path(unknown[0]).is_file():
        raise ValueError(f"{unknown[0]} belongs to no option: give training texts, in one file, by `--train_file`")
    if unknown:
        raise ValueError(f"unknown arguments {' '.join(unknown)}{_meant(unknown[0], [f'--{name}' for name in known])}")
    return tuple(arguments)


def _meant(name: str, known: list[str]) -> str:
    close = get_close_matches(name.split("=")[0], known, n=1)
    return f"; did you mean {close[0]}?" if close else "; `glocal-xml train --help` lists all options"


def read_recipe(path: str) -> dict[str, Any]:
    """A recipe as a mapping from argument names to values."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        _check_nesting(path, text)
        recipe = yaml.load(text, _Loader)
    except FileNotFoundError:
        raise ValueError(f"There is no recipe {path}.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no UTF-8 text ({error}); save it as UTF-8.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{path}{place}: not valid YAML ({getattr(error, 'problem', error)}).") from None
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must be a mapping from argument names to values.")
    if wrong := [name for name in recipe if not isinstance(name, str)]:
        raise ValueError(f"{path}: {wrong[0]!r} is no argument name.")
    return recipe


def _with_types(source: str | None, recipe: dict[str, Any], kinds: Iterable[type]) -> dict[str, Any]:
    """The recipe with single values as lists where lists belong; other values of a wrong kind are refused."""
    hints = {name: hint for kind in kinds for name, hint in get_type_hints(kind).items()}
    typed = {}
    for name, value in recipe.items():
        choices = get_args(hints[name]) if get_origin(hints[name]) in (Union, UnionType) else (hints[name],)
        allowed = {get_origin(choice) or choice for choice in choices} - {NoneType}
        if isinstance(value, list | dict) and type(value) not in allowed:
            raise ValueError(f"{source}: `{name}` takes one value, got {value!r}.")
        if value is not None and not isinstance(value, str) and allowed == {str}:
            raise ValueError(f"{source}: `{name}` must be a text, got {value!r}: put it in quotes.")
        typed[name] = [value] if allowed == {list} and not isinstance(value, list | None) else value
    return typed


def _check_nesting(path: str, text: str) -> None:
    """Refuses what a few lines can make too large or too deep to be read."""
    depth = 0
    for event in yaml.parse(text):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{path}: aliases (*name) are not read; write each value where it belongs.")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST:
            raise ValueError(f"{path} is nested too deeply: it must be a mapping from argument names to values.")
