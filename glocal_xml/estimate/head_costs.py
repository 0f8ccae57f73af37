"""What the losses over labels compute and need: products and memory of every kind of head."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from glocal_xml.modeling import AdaptiveLabelClusters, AttentionHead, EvidenceHead, LinearHead
from glocal_xml.modeling.fused_loss import CPU_CHUNK_BYTES, plan_blocks

_FLOAT = 4


@dataclass(frozen=True)
class LossShape:
    """
    What a loss over labels goes over.

    Args:
        texts: Texts of a batch.
        tokens: Tokens that a text is padded to.
        real_tokens: Tokens of a text on average, padding left out.
        candidates: Labels or nodes that are scored for a text; None where all are.
        visited: Share of the texts that go into each tail of adaptive clusters.
        twice: Whether all are scored once more: the first level of a tree, to be ranked, and a collaborative loss.
    """

    texts: int
    tokens: int
    real_tokens: float
    candidates: float | None = None
    visited: tuple[float, ...] = ()
    twice: bool = False


@dataclass(frozen=True)
class HeadCost:
    """
    What one head takes in a training step.

    Args:
        flops: Floating-point operations of its products.
        forward_flops: Those that scores alone would need.
        bytes: Memory beyond weights, what the head reads and the dense gradients of label tables.
    """

    flops: float
    forward_flops: float
    bytes: float


def head_cost(head: nn.Module, shape: LossShape) -> HeadCost:
    """The cost of a training step in one head; all labels, or candidates."""
    kind = next((kind for kind in COSTS if isinstance(head, kind)), None)
    if kind is None:
        known = ", ".join(kind.__name__ for kind in COSTS)
        raise ValueError(f"The cost of {type(head).__name__} is not known; those of {known} are.")
    loss = COSTS[kind](head, shape)
    flops, forward, size = loss.flops, loss.forward_flops, loss.bytes
    if shape.twice:
        # What is left is the logits, copies of them and their order.
        flops, size = flops + forward, size + 4 * _FLOAT * shape.texts * head.label_embeddings.weight.shape[0]
    # Layers that come before the labels; padding goes through them too.
    layers = [getattr(head, name, None) for name in ("key", "value", "mlp_hidden")]
    layers = [layer for layer in layers if isinstance(layer, nn.Linear)]
    rows = shape.texts * (shape.tokens if reads_tokens(head) else 1)
    projected = 2 * rows * sum(layer.weight.numel() for layer in layers)
    kept = _FLOAT * rows * sum(layer.out_features for layer in layers)
    return HeadCost(flops + 3 * projected, forward + projected, size + kept)


def reads_tokens(head: nn.Module) -> bool:
    """Whether a head reads all tokens of a text, or one vector."""
    return hasattr(head, "key")


def head_inputs(head: nn.Module, texts: int, tokens: int) -> tuple[torch.Tensor, ...]:
    """Random token states with their mask, or a vector per text: what the head is called with."""
    first = getattr(head, "mlp_hidden", None) or getattr(head, "key", None)
    size = head.label_embeddings.weight.shape[1] if first is None else first.in_features
    if not reads_tokens(head):
        return (torch.randn(texts, size).requires_grad_(),)
    return torch.randn(texts, tokens, size).requires_grad_(), torch.ones(texts, tokens, dtype=torch.bool)


def _linear_cost(head: LinearHead, shape: LossShape) -> HeadCost:
    labels, size = head.label_embeddings.weight.shape
    if shape.candidates is not None:
        chosen = shape.texts * shape.candidates
        # The rows that were looked up, and their gradients.
        return HeadCost(6 * chosen * size, 2 * chosen * size, 2 * _FLOAT * chosen * size)
    forward = 2 * shape.texts * labels * size
    # Logits, softplus, sigmoid and a copy; rows and their gradients.
    return HeadCost(3 * forward, forward, _chunk_bytes(head, labels * (4 * shape.texts + 2 * size)))


def _attention_cost(head: AttentionHead, shape: LossShape) -> HeadCost:
    widths = [head.mlp_hidden.out_features, *(layer.out_features for layer in head.mlp_further), 1]
    behind = sum(before * after for before, after in itertools.pairwise(widths))
    # Scores and weights; what was read, its gradient and a copy.
    chunk = 3 * shape.tokens + 3 * sum(widths)
    return _words_cost(head, shape, widths[0], behind, chunk, sum(widths))


def _evidence_cost(head: EvidenceHead, shape: LossShape) -> HeadCost:
    size = head.value.out_features
    # Weights, evidence and shares; candidates have output rows besides queries.
    return _words_cost(head, shape, size, 0, 3 * shape.tokens, size)


def _words_cost(
    head: AttentionHead | EvidenceHead, shape: LossShape, value_size: int, behind: int, chunk: int, kept: int
) -> HeadCost:
    """
    The cost of a head whose labels read the words: a product with keys and one with values for each word, and two
    more of the same size for the gradients of each.

    Args:
        value_size: Size of the values.
        behind: Products of a label with what it read.
        chunk: Numbers that a label has for a text in the loss over all labels.
        kept: Numbers that a candidate keeps besides its query and weights; all of these have gradients too.
    """
    labels, size = head.label_embeddings.weight.shape
    tokens, read = shape.texts * shape.tokens, size + value_size
    if shape.candidates is not None:
        chosen = shape.texts * shape.candidates
        forward = 2 * chosen * (shape.tokens * read + behind)
        numbers = 2 * chosen * (size + shape.tokens + kept) + tokens * read
        return HeadCost(3 * forward, forward, _FLOAT * numbers)
    # Keys by the temperature, and gradients of keys and values, padding included.
    of_tokens = _FLOAT * tokens * (size + read)
    mask = torch.ones(shape.texts, shape.tokens, dtype=torch.bool)
    if len(plan_blocks(labels, _FLOAT * chunk, head.chunk_bytes, mask).texts) > 1:
        # Padding is left out where texts are read one by one.
        tokens = shape.texts * shape.real_tokens
    forward = 2 * labels * (tokens * read + shape.texts * behind)
    return HeadCost(3 * forward, forward, _chunk_bytes(head, labels * shape.texts * chunk) + of_tokens)


def _chunk_bytes(head: nn.Module, numbers: int) -> int:
    """Bytes of a chunk of labels, from the numbers of all of them."""
    return min(head.chunk_bytes or CPU_CHUNK_BYTES, _FLOAT * numbers)


def _clusters_cost(head: AdaptiveLabelClusters, shape: LossShape) -> HeadCost:
    hidden = head.label_embeddings.in_features
    forward = 2 * shape.texts * hidden * (head.sizes[0] + len(head.tails))
    for tail, share in zip(head.tails, shape.visited, strict=True):
        labels, width = tail.label_embeddings.weight.shape
        forward += 2 * shape.texts * share * width * (hidden + labels)
    return HeadCost(3 * forward, forward, _chunk_bytes(head, max(head.sizes) * (6 * shape.texts + 2 * hidden)))


# A new kind of head is one more row.
COSTS: dict[type[nn.Module], Callable[[nn.Module, LossShape], HeadCost]] = {
    AttentionHead: _attention_cost,
    EvidenceHead: _evidence_cost,
    AdaptiveLabelClusters: _clusters_cost,
    LinearHead: _linear_cost,
}
