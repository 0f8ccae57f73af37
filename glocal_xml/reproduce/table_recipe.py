"""Recipes of tables: the runs of a table of a paper, what they share, their data, and the published numbers."""

from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

_SHIPPED = Path(__file__).parent / "recipes"
# What the ensemble of all members is called beside them.
ENSEMBLE = "ensemble"


@dataclass(frozen=True)
class PublishedData:
    """A data set as the paper describes it, with labels of a training text, and the folder it is looked for in."""

    name: str
    folder: str
    train_texts: int
    test_texts: int
    labels: int
    labels_per_text: float


@dataclass(frozen=True)
class Published:
    """Published numbers of a run in percent, by the names that `results.json` has for them, and where they stand."""

    run: str
    where: str
    metrics: dict[str, float]
    branch: str | None = None


@dataclass(frozen=True)
class TableRecipe:
    """A table of a paper: its runs, their data, and the published numbers."""

    name: str
    # The paper, and what of it this reproduces.
    paper: str
    data: PublishedData
    # Arguments of `glocal-xml train` that all runs have, and those that each run has besides, by its name.
    shared: dict[str, Any]
    members: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Instead of members: the study of `glocal-xml analyse` whose points are the runs.
    study: str | None = None
    # Whether the mean of all members is a row of the table too.
    ensemble: bool = False
    published: list[Published] = field(default_factory=list)

    def settings(self, member: str) -> dict[str, Any]:
        """Arguments of a run; those of a study are the shared ones."""
        return merged(self.shared, self.members.get(member) or {})


def recipe_names() -> list[str]:
    """Names of the recipes that come with the package."""
    return sorted(path.relative_to(_SHIPPED).with_suffix("").as_posix() for path in _SHIPPED.glob("*/*.yaml"))


def read_table(name: str) -> TableRecipe:
    """A recipe that comes with the package by its name, or one of your own by the path of its `.yaml` file."""
    given = _read(name)
    known = [each.name for each in fields(TableRecipe)][1:]
    if not set(known[:3]) <= given.keys() <= set(known):
        raise ValueError(
            f"{name}: a recipe of a table has {', '.join(known[:3])} and some of {', '.join(known[3:])} and like; got "
            f"{', '.join(given)}."
        )
    if ("members" in given) == ("study" in given):
        raise ValueError(f"{name} must have either `members` or a `study`.")
    if given["data"].keys() != (wanted := {each.name for each in fields(PublishedData)}):
        raise ValueError(f"{name}: `data` must have {', '.join(sorted(wanted))}, got {', '.join(given['data'])}.")
    published = []
    for entry in given.get("published", []):
        metrics = {key: value for key, value in entry.items() if "@" in key}
        rest = {key: value for key, value in entry.items() if key not in metrics}
        if not {"run", "where"} <= rest.keys() <= {"run", "where", "branch"} or not metrics:
            raise ValueError(
                f"{name}: published numbers have `run`, `where`, perhaps `branch`, and metrics, got {entry}."
            )
        published.append(Published(**rest, metrics=metrics))
    runs = [*given.get("members", [entry.run for entry in published]), ENSEMBLE]
    if strange := [entry.run for entry in published if entry.run not in runs]:
        raise ValueError(f"{name}: published numbers of {strange[0]!r}, but the runs are {', '.join(runs)}.")
    called = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    return TableRecipe(called, **given | {"data": PublishedData(**given["data"]), "published": published})


def merged(settings: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """
    Settings with changes: of a mapping, such as `model_config`, only the fields that the change names. A field that
    becomes null is left out.
    """
    both = dict(settings)
    for name, value in changes.items():
        nested = isinstance(value, dict) and isinstance(settings.get(name), dict)
        both[name] = merged(settings[name], value) if nested else value
    return {name: value for name, value in both.items() if value is not None}


def _read(name: str) -> dict[str, Any]:
    # Transformers, which reading recipes needs, takes seconds, and the help lists their names.
    from glocal_xml.training.run_parser import read_recipe

    path = Path(name) if name.endswith((".yaml", ".yml")) else _SHIPPED / f"{name}.yaml"
    if not path.is_file():
        close = get_close_matches(name, recipe_names(), n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise ValueError(
            f"There is no recipe {name}: {meant}`glocal-xml reproduce --help` lists those that come with the package; "
            "the path of one of your own ends in .yaml."
        )
    given = read_recipe(str(path))
    if "like" not in given:
        return given
    # Another table of the same models and data.
    base = _read(given.pop("like"))
    return {"data": base["data"], **given, "shared": merged(base["shared"], given.get("shared", {}))}
