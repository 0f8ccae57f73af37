"""The picture of the house holds: arrows point down, and what travels to the Hub imports only its siblings."""

import ast
import re
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "glocal_xml"
# What each package may import from the others; one that is not listed is a missing decision.
ALLOWED = {
    "modeling": set(),
    "loading": {"modeling"},
    # `ModelArguments` names families and experts when it is made, not when it is imported.
    "arguments": {"experts", "modeling"},
    "data": {"atomic_file", "json_text"},
    "metrics": set(),
    "calibration": {"atomic_file", "matplotlib_extra", "metrics", "modeling"},
    "experts": {"calibration", "data", "metrics", "modeling"},
    "hub": {"atomic_file", "data", "json_text", "modeling", "version"},
    "training": {"arguments", "atomic_file", "data", "experts", "hub", "json_text", "loading", "metrics", "modeling"},
    "runs": {
        *("arguments", "atomic_file", "calibration", "data", "experts", "hub", "interruption", "json_text", "loading"),
        *("metrics", "modeling", "plain_errors", "pretrained", "trained_model", "training"),
    },
    "ensembles": {"data", "hub", "metrics", "modeling", "runs", "trained_model", "training"},
    "analysis": {"atomic_file", "data", "hub", "matplotlib_extra", "modeling", "runs", "training"},
    "estimate": {"arguments", "data", "modeling", "runs", "trained_model", "training"},
    "reproduce": {
        *("analysis", "atomic_file", "data", "ensembles", "estimate", "hub", "plain_errors", "runs", "training"),
    },
    "labels": {"data", "experts", "modeling"},
    "export": {"modeling"},
    "atomic_file": set(),
    "interruption": set(),
    "plain_errors": set(),
    "json_text": set(),
    "matplotlib_extra": set(),
    "pretrained": set(),
    "tagged_rows": set(),
    "trained_model": {"modeling"},
    "version": set(),
    "explain": {"matplotlib_extra", "modeling"},
    "demo": {"data", "explain", "modeling", "tagged_rows", "trained_model"},
    "__main__": {"cli"},
    "cli": {
        *("analysis", "arguments", "estimate"),
        *("atomic_file", "calibration", "data", "demo", "ensembles", "experts", "explain", "export", "hub"),
        *("interruption", "labels", "matplotlib_extra", "metrics", "modeling", "runs"),
        *("plain_errors", "reproduce", "tagged_rows", "trained_model", "training", "version"),
    },
    "__init__": {"data", "explain", "loading", "metrics", "modeling", "pretrained", "runs", "version"},
}
# Rooms whose files may only import these packages: they are copied to the Hub, or must stay light.
THIRD_PARTY = {
    "modeling": {"torch", "transformers", "huggingface_hub"},
    "metrics": {"numpy", "evaluate", "datasets"},
    "arguments": {"glocal_xml"},
}
FILES = sorted(PACKAGE.rglob("*.py"))


def package_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path):
    """Every import of a file as (number of dots, dotted name)."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((0, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.level, node.module or ""


def packages_imported(path):
    for dots, name in imports(path):
        if dots == 0 and name.split(".")[0] == "glocal_xml":
            yield (name.split(".") + ["__init__"])[1]
        elif dots == 2 or (dots == 1 and path.parent == PACKAGE):
            yield name.split(".")[0]
        else:
            assert dots < 3, f"{path.name} climbs out of the package"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_point_down(path):
    assert package_of(path) in ALLOWED
    assert set(packages_imported(path)) - {package_of(path)} <= ALLOWED[package_of(path)]


@pytest.mark.parametrize(
    "path", [path for path in FILES if package_of(path) in THIRD_PARTY], ids=lambda path: path.name
)
def test_packages_import_only_what_they_may(path):
    allowed = THIRD_PARTY[package_of(path)] | sys.stdlib_module_names
    assert {name.split(".")[0] for dots, name in imports(path) if dots == 0} <= allowed


@pytest.mark.parametrize("path", sorted((PACKAGE / "modeling").glob("*.py")), ids=lambda path: path.name)
def test_modeling_is_flat_and_imports_siblings_with_one_dot(path):
    """Transformers copies the files of `from .file import name` beside the weights, and no others."""
    siblings = {sibling.stem for sibling in path.parent.glob("*.py")}
    for dots, name in imports(path):
        assert dots <= 1
        if dots == 1:
            assert name in siblings, f"`from . import` and `from .a.b import` are not copied: {name!r}"
    # The copying reads text, not code: such a line in a docstring would be taken for an import.
    code = {line for line in path.read_text(encoding="utf-8").splitlines() if re.match(r"\s*(from|import)\s+\.", line)}
    assert len(code) == sum(dots == 1 for dots, _ in imports(path))


def test_modeling_has_no_folders():
    assert [path for path in (PACKAGE / "modeling").iterdir() if path.is_dir() and path.name != "__pycache__"] == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_file_is_much_over_300_lines(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def test_no_room_for_odds_and_ends():
    assert [path for path in FILES if path.stem in ("utils", "helpers", "common", "misc")] == []
