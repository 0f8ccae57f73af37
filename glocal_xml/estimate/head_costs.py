"""What the losses over labels compute and need: products and memory of every kind of head."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from glocal_xml.modeling import AdaptiveLabelClusters
from glocal_xml.modeling.label_attention import LabelAttention
from glocal_xml.modeling.label_classifier import LabelClassifier
from glocal_xml.modeling.label_scorer import LabelScorer

_FLOAT = 4


@dataclass(frozen=True)
class LossShape:
    """
    What a loss over labels goes over.

    Args:
        texts: Texts of a batch.
        tokens: Tokens of a text, padding left out, where the head reads them.
        candidates: Labels or nodes that are scored for a text; None where all are.
        visited: Share of the texts that go into each tail of adaptive clusters.
        first_level: Whether it is the head over the first level of a label tree, which is asked twice.
    """

    texts: int
    tokens: float
    candidates: float | None = None
    visited: tuple[float, ...] = ()
    first_level: bool = False


@dataclass(frozen=True)
class HeadCost:
    """
    What the loss of one head takes, gradients included.

    Args:
        flops: Floating-point operations of its products.
        forward_flops: Those that scores alone would need.
        bytes: Memory beyond weights, features and the dense gradients of label tables.
    """

    flops: float
    forward_flops: float
    bytes: float


def head_cost(head: LabelScorer, shape: LossShape) -> HeadCost:
    """The cost of a training step in one head; all labels, or candidates."""
    kind = next((kind for kind in COSTS if isinstance(head, kind)), None)
    if kind is None:
        raise ValueError(f"The cost of {type(head).__name__} is not known; those of {', '.join(map(str, COSTS))} are.")
    return COSTS[kind](head, shape)


def _classifier_cost(head: LabelClassifier, shape: LossShape) -> HeadCost:
    labels, size = head.label_embeddings.weight.shape
    if shape.candidates is not None:
        chosen = shape.texts * shape.candidates
        # The rows that were looked up; then their gradients text by text, and put together.
        return HeadCost(6 * chosen * size, 2 * chosen * size, 3 * _FLOAT * chosen * size)
    forward = 2 * shape.texts * labels * size
    # Scores of all nodes, ranked with and without those that are forced.
    scores = 4 * _FLOAT * shape.texts * labels if shape.first_level else 0
    chunk = min(head.chunk_bytes, labels * _FLOAT * (4 * shape.texts + 2 * size))
    return HeadCost((4 if shape.first_level else 3) * forward, forward, chunk + scores)


def _attention_cost(head: LabelAttention, shape: LossShape) -> HeadCost:
    labels, size = head.label_embeddings.weight.shape
    widths = [head.mlp_hidden.out_features, *(layer.out_features for layer in head.mlp_further)]
    width, last, all_widths = widths[0], widths[-1], sum(widths)
    # Products of a label in the layers between what it read and the last one.
    between = sum(before * after for before, after in itertools.pairwise(widths))
    tokens = shape.texts * shape.tokens
    if shape.candidates is not None:
        chosen = shape.texts * shape.candidates
        forward = 2 * chosen * (shape.tokens * (size + width) + between + last)
        # Keys and values of real tokens with their gradients; weights and what was read are kept for all texts.
        kept = 4 * tokens * (size + width) + chosen * (3 * size + shape.tokens + all_widths)
        return HeadCost(3 * forward, forward, _FLOAT * kept)
    forward = 2 * labels * (tokens * (size + width) + shape.texts * (between + last))
    chunk = min(head.chunk_bytes, labels * _FLOAT * (2 * shape.tokens + 3 * all_widths + size))
    # Keys and values of real tokens, their gradients, and these padded again.
    kept = 3 * tokens * (size + width)
    # The weight of the last layer has a product of its own only forward and for its gradient.
    flops = 3 * forward - 2 * labels * shape.texts * last
    if not shape.first_level:
        return HeadCost(flops, forward, _FLOAT * kept + chunk)
    # All nodes are scored once more, all at a time: a layer, its ReLU and the next layer.
    scores = shape.texts * labels * max(2 * before + after for before, after in itertools.pairwise([*widths, 1]))
    return HeadCost(flops + forward, forward, _FLOAT * (kept + scores) + chunk)


def _clusters_cost(head: AdaptiveLabelClusters, shape: LossShape) -> HeadCost:
    hidden = head.label_embeddings.in_features
    forward = 2 * shape.texts * hidden * (head.sizes[0] + len(head.tails))
    for tail, share in zip(head.tails, shape.visited, strict=True):
        labels, width = tail.label_embeddings.weight.shape
        forward += 2 * shape.texts * share * width * (hidden + labels)
    chunk = min(head.chunk_bytes, max(head.sizes) * _FLOAT * (6 * shape.texts + 2 * hidden))
    return HeadCost(3 * forward, forward, chunk)


# A new kind of head is one more row.
COSTS: dict[type[LabelScorer], Callable[[LabelScorer, LossShape], HeadCost]] = {
    LabelAttention: _attention_cost,
    AdaptiveLabelClusters: _clusters_cost,
    LabelClassifier: _classifier_cost,
}
