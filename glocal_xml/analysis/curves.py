"""Which curves each study draws, as numbers: a figure is a list of panels, a panel a list of curves."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .points import MeasuredPoint
from .studies import Study
from .tables import final_branch


@dataclass(frozen=True)
class Curve:
    """A line: its name, and at each place the value of every seed."""

    name: str
    values: dict[int | str, list[float]]


@dataclass(frozen=True)
class Panel:
    """Curves that share an axis; `zero` draws a line at zero, `least_span` keeps small differences looking small."""

    y_name: str
    curves: list[Curve]
    least_span: float = 0.0
    zero: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: the name of its files, its title, its horizontal axis and its panels, one above the other."""

    name: str
    title: str
    x_name: str
    panels: list[Panel]


def study_figures(study: Study, points: Sequence[MeasuredPoint]) -> list[Figure]:
    """The figures of a study."""
    return _FIGURES[study.name, study.model_type](points)


def _curve(name: str, points: Iterable[MeasuredPoint], value: Callable[[MeasuredPoint], float | None]) -> Curve:
    values: dict[int | str, list[float]] = {}
    for measured in points:
        number = value(measured)
        if number is not None:
            place = measured.point.name if measured.point.x is None else measured.point.x
            values.setdefault(place, []).append(number)
    return Curve(name, values)


def _precision(k: int, branch: str | None = None) -> Callable[[MeasuredPoint], float | None]:
    """P@k in percent of a branch, where a model has it, or of the final ranking."""

    def value(measured: MeasuredPoint) -> float | None:
        metrics = measured.results["test"].get(branch or final_branch(measured))
        return None if metrics is None else 100 * metrics[f"precision@{k}"]

    return value


def _divergence(name: str) -> Callable[[MeasuredPoint], float]:
    return lambda measured: measured.divergences["pairs"][0][name]


def _relative_gain(measured: MeasuredPoint) -> float | None:
    rows = measured.results["test"]
    both, alone = rows["both"]["precision@5"], rows["global"]["precision@5"]
    # Nothing found is nothing to gain on.
    return 100 * (both - alone) / alone if alone > 0 else None


# Below two points of precision a single run tells little; the axis does not blow such differences up.
_P = {"least_span": 2.0}


def _layer_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    axis = "layer that the local branch reads (0: embeddings)"
    precision = [_curve(branch, points, _precision(5, branch)) for branch in ("both", "global", "local")]
    gain = Curve("relative gain", _curve("", points, _relative_gain).values)
    divergence = _curve("Jensen-Shannon divergence", points, _divergence("jsd"))
    return [
        Figure("precision", "P@5 against the local layer", axis, [Panel("P@5 (percent)", precision, **_P)]),
        Figure(
            "gain_and_divergence",
            "Gain of both branches and their divergence against the local layer",
            axis,
            [
                Panel("P@5 of both over global\n(percent of global)", [gain], least_span=2.0, zero=True),
                Panel("JSD of global and local\n(nats, mean over labels)", [divergence]),
            ],
        ),
    ]


_EXPERT_LINES = {"A-m": "A-m: label-to-word attention on layer m", "D-m": "D-m: document token of layer m"}


def _expert_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    axis = "layer m of the second expert"

    def lines(value: Callable[[MeasuredPoint], Any]) -> list[Curve]:
        return [
            _curve(title, [measured for measured in points if measured.point.line == line], value)
            for line, title in _EXPERT_LINES.items()
        ]

    last = points[0].point.changes["experts"][-1]
    return [
        Figure(
            "precision",
            f"P@5 of two experts, {last} and a second one, against its layer",
            axis,
            [Panel("P@5 of both experts (percent)", lines(_precision(5)), **_P)],
        ),
        Figure(
            "divergence",
            f"Divergence of the second expert from {last} on true labels",
            axis,
            [
                Panel(
                    f"KL(second || {last})\n(nats per text, sum over its true labels)",
                    lines(_divergence("kl_per_text")),
                )
            ],
        ),
    ]


def _cluster_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    panel = Panel("P@1 (percent)", [_curve("APLC-XLNet", points, _precision(1))], **_P)
    return [Figure("precision", "P@1 against the number of equal clusters", "number of clusters", [panel])]


def _partition_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    panel = Panel("P@1 (percent)", [_curve("APLC-XLNet", points, _precision(1))], **_P)
    return [Figure("precision", "P@1 of three partitions of the labels", "head / tail 1 / tail 2", [panel])]


def _glocal_ablation_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    curves = [_curve(branch, points, _precision(5, branch)) for branch in ("both", "global", "local")]
    return [Figure("precision", "P@5 of GlocalXML and its ablations", "model", [Panel("P@5 (percent)", curves, **_P)])]


def _expert_ablation_figures(points: Sequence[MeasuredPoint]) -> list[Figure]:
    panel = Panel("P@5 of all experts (percent)", [_curve("ME-XML", points, _precision(5))], **_P)
    return [Figure("precision", "P@5 of ME-XML and its ablations", "experts and losses", [panel])]


_FIGURES: dict[tuple[str, str], Callable[[Sequence[MeasuredPoint]], list[Figure]]] = {
    ("layers", "glocal_xml"): _layer_figures,
    ("experts", "me_xml"): _expert_figures,
    ("clusters", "aplc_xlnet"): _cluster_figures,
    ("partitions", "aplc_xlnet"): _partition_figures,
    ("ablations", "glocal_xml"): _glocal_ablation_figures,
    ("ablations", "me_xml"): _expert_ablation_figures,
}
