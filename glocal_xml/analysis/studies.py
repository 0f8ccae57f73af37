"""The studies of `studies.yaml`: the models that each one trains, and the figures that it draws."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Point:
    """One model of a study, as `studies.yaml` describes it, with the numbers of layers."""

    name: str
    x: int | None
    changes: dict[str, Any]
    line: str = ""


@dataclass(frozen=True)
class Study:
    """A set of trainings of one family; `studies.yaml` says what each field is."""

    name: str
    model_type: str
    reproduces: str
    found: str
    points: list[dict[str, Any]]
    figures: list[dict[str, Any]]
    first_layer: int | None = None


@dataclass(frozen=True)
class MeasuredPoint:
    """A point trained with one seed: its `results.json` and `divergences.json`."""

    point: Point
    seed: int
    folder: Path
    results: dict[str, Any]
    divergences: dict[str, Any]

    @property
    def final_branch(self) -> str:
        """What the results call the final ranking, which they list first."""
        return next(iter(self.results["test"]))

    @property
    def head(self) -> dict[str, Any]:
        """The first columns of its rows in tables."""
        return {"point": self.point.name, "x": self.point.x, "line": self.point.line, "seed": self.seed}


_FILE = Path(__file__).with_name("studies.yaml")
STUDIES = [Study(**row) for row in yaml.safe_load(_FILE.read_text(encoding="utf-8"))]


def find_study(name: str, model_type: str) -> Study:
    """The study of that name for a family; an unknown name or family is an error that lists the known ones."""
    families = {study.model_type: study for study in STUDIES if study.name == name}
    if not families:
        names = ", ".join(dict.fromkeys(study.name for study in STUDIES))
        raise ValueError(f"There is no study {name!r}; the studies are {names}.")
    if model_type not in families:
        own = ", ".join(study.name for study in STUDIES if study.model_type == model_type) or "none"
        raise ValueError(
            f"The study {name} is about {' and '.join(families)}, but the recipe's `model_type` is {model_type}: "
            f"pass a recipe of that family, or choose a study of this one ({own})."
        )
    return families[model_type]


def study_points(study: Study, depth: int, layers: Sequence[int] | None = None) -> list[Point]:
    """The points of a study for an encoder of `depth` layers, all of its layers or the chosen ones."""
    places = {"last": depth, "middle": (depth + 1) // 2}
    if study.first_layer is not None:
        chosen = range(study.first_layer, depth + 1) if layers is None else sorted(set(layers))
        points = [_point(row, layer=layer, **places) for row in study.points for layer in chosen]
    elif layers is None:
        points = [_point(row, **places) for row in study.points]
    else:
        raise ValueError(f"The study {study.name} has no choice of layers: leave `--layers` out.")
    # Two equal experts are no pair.
    return [point for point in points if len(set(experts := point.changes.get("experts", []))) == len(experts)]


def _point(row: dict[str, Any], **places: int) -> Point:
    """A row of a study with the numbers of layers in their places."""
    text = json.dumps({"x": None, **row})
    for name, layer in places.items():
        text = text.replace(f'"{{{name}}}"', str(layer)).replace(f"{{{name}}}", str(layer))
    return Point(**json.loads(text))
