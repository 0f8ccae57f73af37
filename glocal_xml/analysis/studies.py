"""The studies as tables to read: which models each one trains, what it reproduces, and what the paper found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Point:
    """One model of a study: its name in tables, and the fields of its configuration that differ from the recipe."""

    name: str
    # Where it stands on the horizontal axis; `None` where a study is a table.
    x: int | None
    changes: dict[str, Any]
    # The line of the figure that it belongs to, where there are several.
    line: str = ""


@dataclass(frozen=True)
class Panel:
    """A column of the results as curves, each of the rows that a query finds; `zero` draws a line at zero."""

    y_name: str
    column: str
    curves: dict[str, str]
    # Below two points of precision a single run tells little; the axis does not blow such differences up.
    least_span: float = 2.0
    zero: bool = False


@dataclass(frozen=True)
class Figure:
    """A figure: its title, its horizontal axis, its panels, one above the other, and the name of its files."""

    title: str
    x_name: str
    panels: list[Panel]
    name: str = "precision"


@dataclass(frozen=True)
class Study:
    """A set of trainings of one family: what of its paper it reproduces, and what the paper found."""

    name: str
    model_type: str
    reproduces: str
    found: str
    # Its models, from the depth of the encoder and the layers that were asked for.
    points: Callable[[int, Sequence[int]], list[Point]]
    # What it draws; {last} is the expert on the last layer.
    figures: list[Figure]
    # The first of its default layers; `None` where there is no choice of layers.
    first_layer: int | None = None


def local_layers(depth: int, layers: Sequence[int]) -> list[Point]:
    """The local branch on each layer; 0 is the embedding output."""
    return [Point(f"local layer {m}", m, {"branches": "both", "local_layer": m}) for m in layers]


def second_experts(depth: int, layers: Sequence[int]) -> list[Point]:
    """The document token of the last layer, and a second expert of either kind on each layer."""
    last = f"D-{depth}"
    attention = [Point(f"A-{m} + {last}", m, {"experts": [f"A-{m}", last]}, "A-m") for m in layers]
    document = [Point(f"D-{m} + {last}", m, {"experts": [f"D-{m}", last]}, "D-m") for m in layers if m != depth]
    return attention + document


def even_clusters(depth: int, layers: Sequence[int]) -> list[Point]:
    """Two to six clusters of equal size."""
    return [Point(f"{n} clusters", n, {"cluster_proportions": [1 / n] * n}) for n in range(2, 7)]


def three_partitions(depth: int, layers: Sequence[int]) -> list[Point]:
    """Three clusters, from a large head to a small one."""
    partitions = ([0.7, 0.2, 0.1], [0.33, 0.33, 0.34], [0.1, 0.2, 0.7])
    return [Point(" / ".join(map(str, p)), None, {"cluster_proportions": p}) for p in partitions]


def glocal_ablations(depth: int, layers: Sequence[int]) -> list[Point]:
    """Both branches trained together, with one thing changed; either branch trained alone."""
    return [
        Point("both branches", None, {"branches": "both", "detach_local": False, "use_pooler": False}),
        Point("stop gradient below local", None, {"branches": "both", "detach_local": True, "use_pooler": False}),
        Point("pooler", None, {"branches": "both", "detach_local": False, "use_pooler": True}),
        # A shortlist takes both branches.
        Point("global trained alone", None, {"branches": "global", "use_pooler": False, "shortlist": None}),
        Point("local trained alone", None, {"branches": "local", "detach_local": False, "shortlist": None}),
    ]


def expert_ablations(depth: int, layers: Sequence[int]) -> list[Point]:
    """Table 4 of the paper, whose encoder has 12 layers, with 12 and 6 taken as the last layer and the middle one."""
    last, middle = depth, (depth + 1) // 2
    alone = {"training_loss": "individual", "diversity_weight": 0.0}
    diverse = {"training_loss": "individual", "diversity_weight": 0.01}
    rows = [
        ([f"D-{last}"], "", alone),
        (["A-1"], "", alone),
        ([f"A-{last}"], "", alone),
        ([f"D-{last}+1"], "", alone),
        (["A-1", f"D-{last}"], ", L_col", {"training_loss": "collaborative", "diversity_weight": 0.0}),
        (["A-1", f"D-{last}"], ", L_ind", alone),
        (["A-1", f"D-{last}"], ", L_ind + L_div", diverse),
        (["D-1", f"D-{last}"], ", L_ind + L_div", diverse),
        ([f"A-{last}", f"D-{last}"], ", L_ind + L_div", diverse),
        (["A-1", f"A-{middle}", f"D-{last}"], ", L_ind + L_div", diverse),
        (["A-1", f"D-{middle}", f"D-{last}"], ", L_ind + L_div", diverse),
    ]
    # In a shallow encoder the middle layer is the first or the last.
    return [
        Point(f"{len(experts)}E ({' + '.join(experts)}){losses}", None, {"experts": experts, **changes})
        for experts, losses, changes in rows
        if len(set(experts)) == len(experts)
    ]


_BRANCHES = {branch: f"branch == '{branch}'" for branch in ("both", "global", "local")}
_LINES = {
    "A-m: label-to-word attention on layer m": "is_final and line == 'A-m'",
    "D-m: document token of layer m": "is_final and line == 'D-m'",
}
_LAYER, _SECOND = "layer that the local branch reads (0: embeddings)", "layer m of the second expert"
_P5 = Panel("P@5 (percent)", "precision@5", _BRANCHES)
_P5_OF_TWO = Panel("P@5 of both experts (percent)", "precision@5", _LINES)
_P5_OF_ALL = Panel("P@5 of all experts (percent)", "precision@5", {"ME-XML": "is_final"})
_P1 = Panel("P@1 (percent)", "precision@1", {"APLC-XLNet": "is_final"})
_GAIN = Panel("P@5 of both over global\n(percent of global)", "gain", {"relative gain": "is_final"}, zero=True)
_CURVE = {"Jensen-Shannon divergence": "is_final"}
_JSD = Panel("JSD of global and local\n(nats, mean over labels)", "jsd", _CURVE, 0.0)
_KL = Panel("KL(second || {last})\n(nats per text, sum over its true labels)", "kl_per_text", _LINES, 0.0)

STUDIES = [
    Study(
        "layers",
        "glocal_xml",
        "P@5 of global, local and both, relative gain and Jensen-Shannon divergence against the local layer: "
        "figures 1 and 2 of GlocalXML (arXiv:2204.00933)",
        "With RoBERTa and 256 tokens on EURLex-4K and Wiki10-31K (sections 4.1 and 4.2) global alone is fairly stable "
        "over the layers and above local alone; both together are best, peak with the local branch at or near layer "
        "1, and lose with higher layers. On EURLex-4K, with the global classifier fixed and not trained anew for each "
        "layer as here, the divergence of the two branches falls as the layer rises, and the relative gain with it.",
        local_layers,
        [
            Figure("P@5 against the local layer", _LAYER, [_P5]),
            Figure(
                "Gain of both branches and their divergence against the local layer",
                _LAYER,
                [_GAIN, _JSD],
                "gain_and_divergence",
            ),
        ],
        first_layer=0,
    ),
    Study(
        "experts",
        "me_xml",
        "P@5 and divergence on the positive labels against the layer of the second expert: figure 2 of ME-XML",
        "With RoBERTa on EUR-Lex (section 4.4) label-to-word attention on an early layer as the second expert raises "
        "P@5 most, and the divergence of the two experts is correlated with P@5.",
        second_experts,
        [
            Figure("P@5 of two experts, {last} and a second one, against its layer", _SECOND, [_P5_OF_TWO]),
            Figure("Divergence of the second expert from {last} on true labels", _SECOND, [_KL], "divergence"),
        ],
        first_layer=1,
    ),
    Study(
        "clusters",
        "aplc_xlnet",
        "P@1 against the number of equal clusters: figure 4 of APLC-XLNet (arXiv:2007.02439)",
        "On EURLex P@1 is highest, 87.72, with two clusters and falls gradually to 85.72 with six; on Wiki10 it falls "
        "slightly (section 5).",
        even_clusters,
        [Figure("P@1 against the number of equal clusters", "number of clusters", [_P1])],
    ),
    Study(
        "partitions",
        "aplc_xlnet",
        "P@1 of three partitions into three clusters: figure 5 of APLC-XLNet (arXiv:2007.02439)",
        "The more labels the head cluster holds the higher is P@1 on EURLex and Wiki10; on EURLex (0.7, 0.2, 0.1) is "
        "about 3 points above (0.1, 0.2, 0.7), on Wiki10 the difference is relatively small (section 5).",
        three_partitions,
        [Figure("P@1 of three partitions of the labels", "head / tail 1 / tail 2", [_P1])],
    ),
    Study(
        "ablations",
        "glocal_xml",
        "P@1, P@3 and P@5 of the branches trained together, without the gradient of the local branch below it, with "
        "a pooler, and trained alone: table 3 of GlocalXML (arXiv:2204.00933), table 4 of its longer version",
        "With RoBERTa on EURLex-4K P@1/3/5 is 87.27 / 75.09 / 62.97 (global), 85.98 / 73.36 / 60.76 (local) and 88.93 "
        "/ 76.90 / 64.22 (both), branches of one model. With a stop gradient it is 87.12 / 75.04 / 62.94, 85.96 / "
        "72.68 / 59.56 and 88.51 / 76.73 / 64.27. The paper has no table with a pooler or of branches trained alone.",
        glocal_ablations,
        [Figure("P@5 of GlocalXML and its ablations", "model", [_P5])],
    ),
    Study(
        "ablations",
        "me_xml",
        "P@1, P@3 and P@5 of one to three experts and of the losses: table 4 of ME-XML, with its layers 12 and 6 "
        "taken as the last and the middle one of the encoder",
        "With RoBERTa on EUR-Lex P@5 is 62.33 for 1E (D-12), 57.75 for 1E (A-1), 59.05 for 1E (A-12), 62.35 for 1E "
        "(D-12+1); for 2E (A-1 + D-12) 63.22 with L_col, 64.14 with L_ind, 64.38 with L_ind + L_div; with L_ind + "
        "L_div 62.96 for 2E (D-1 + D-12), 63.76 for 2E (A-12 + D-12), 64.85 for 3E (A-1 + A-6 + D-12) and 63.51 for "
        "3E (A-1 + D-6 + D-12).",
        expert_ablations,
        [Figure("P@5 of ME-XML and its ablations", "experts and losses", [_P5_OF_ALL])],
    ),
]


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
    if study.first_layer is None:
        if layers is not None:
            raise ValueError(f"The study {study.name} has no choice of layers: leave `--layers` out.")
        return study.points(depth, ())
    return study.points(depth, range(study.first_layer, depth + 1) if layers is None else sorted(set(layers)))
