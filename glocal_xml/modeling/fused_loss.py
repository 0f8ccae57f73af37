"""A loss over all labels whose gradients are made in the forward pass, label chunk by label chunk."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

# The loss, and its gradient by each input where one is needed.
LossAndGradients = tuple[Tensor, list[Tensor | None]]
# From the logits of a run of labels (texts, labels of the run), the padded ids of all positive labels and the first
# label of the run: the sum of the loss, and its derivative by each logit. Both in the precision of the logits.
LossPair = Callable[[Tensor, Tensor, int], tuple[Tensor, Tensor]]

# Chunks that stay in the cache are the fastest on a CPU; an accelerator wants few and large ones.
CPU_CHUNK_BYTES = 8 * 2**20
ACCELERATOR_CHUNK_BYTES = 256 * 2**20
# Products over fewer labels are slow on any device.
_ENOUGH_LABELS = 512


class Precisions(NamedTuple):
    """Of what heads read and of their products, of everything that is summed up, and of products of gradients."""

    low: torch.dtype
    high: torch.dtype
    backward: torch.dtype


# Tracing the loop over chunks would unroll it; compiled models call it as it is.
@torch.compiler.disable
def fused_loss(compute: Callable[..., LossAndGradients], inputs: Sequence[Tensor | None], scale: float) -> Tensor:
    """
    `scale` times the loss that `compute` gives, differentiable by `inputs`.

    The loss is a sum over labels, so the gradient of a chunk of labels is known as soon as the chunk is: `compute`
    accumulates gradients while it goes over the labels and forgets everything else. The backward pass multiplies them,
    in place, by `scale` and by the gradient that comes in. Under loss scaling this keeps the tiny gradients of
    negative labels: they are made without `scale` and in single precision at least.

    A graph can therefore be used for one backward pass only, and not be differentiated twice.

    Args:
        compute: Called with [`Precisions`], which inputs need a gradient, and the inputs; autocast is off there.
        inputs: The first one is in the precision of the products; None is a parameter that the head does not have.
        scale: What makes a mean of the sum.
    """
    if any(value is not None and value.is_meta > inputs[0].is_meta for value in inputs):
        raise ValueError("The weights of a head are offloaded, with which there is no loss: leave `labels` out.")
    needed = tuple(value is not None and value.requires_grad for value in inputs)
    # Decided here, since inside a Function gradients look wanted under `no_grad` too.
    if torch.is_grad_enabled() and any(needed):
        return _LossWithGradients.apply(compute, scale, *inputs)
    with torch.no_grad():
        return _compute(compute, (False,) * len(inputs), inputs)[0] * scale


def _compute(compute: Callable, needed: tuple[bool, ...], inputs: Sequence[Tensor | None]) -> LossAndGradients:
    low = inputs[0].dtype
    # The derivatives of negative labels underflow in float16.
    backward = torch.float32 if low == torch.float16 else low
    with torch.autocast(inputs[0].device.type, enabled=False):
        return compute(Precisions(low, torch.promote_types(low, torch.float32), backward), needed, *inputs)


class _LossWithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, compute, scale, *inputs):
        loss, ctx.gradients = _compute(compute, ctx.needs_input_grad[2:], inputs)
        ctx.scale = scale
        ctx.dtypes = [None if value is None else value.dtype for value in inputs]
        return loss * scale

    @staticmethod
    def backward(ctx, incoming):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The loss over labels cannot be differentiated twice, its gradients are made in the forward pass: "
                "leave out `create_graph=True`, or make a loss from `model(..., output_logits=True).logits`."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "The gradients of this loss over labels were used by an earlier backward pass and are gone: run the "
                "forward pass again, or add the losses up and call `backward` once."
            )
        # A second copy of the gradient of the label table would be as large as the table: scale in place, let go.
        gradients, ctx.gradients = ctx.gradients, None
        factor = incoming * ctx.scale
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                gradients[i] = gradient.mul_(factor).to(ctx.dtypes[i])
        return None, None, *gradients


def binary_cross_entropy_pair(
    logits: Tensor, labels: Tensor, first_label: int = 0, text_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """
    Sum of the binary cross-entropy over texts and labels, and its derivative by each logit: a `LossPair`.

    No multi-hot matrix is built: softplus over all labels, minus the logits of the positive ones. The terms of each
    text may have a weight, (texts,).
    """
    columns, last = labels - first_label, logits.shape[1] - 1
    inside = ((columns >= 0) & (columns <= last)).to(logits.dtype)
    # An id outside the run is moved to a column inside it, but takes nothing away there.
    columns = columns.clamp(0, last)
    positive = logits.gather(1, columns) * inside  # (texts, positives)
    loss = nn.functional.softplus(logits).sum(dim=1) - positive.sum(dim=1)  # (texts,)
    by_logits = logits.sigmoid().scatter_add_(1, columns, -inside)
    if text_weights is not None:
        text_weights = text_weights.to(logits.dtype)
        loss, by_logits = loss * text_weights, by_logits.mul_(text_weights.unsqueeze(1))
    return loss.sum(), by_logits


def add_product(total: Tensor, left: Tensor, right: Tensor, fresh: bool = False) -> Tensor:
    """Adds `left @ right` to `total`, which may be of higher precision; `fresh` overwrites what was there."""
    if left.dtype == total.dtype:
        add = total.addmm_ if total.dim() == 2 else total.baddbmm_
        return add(left, right, beta=0 if fresh else 1)
    product = finite(left @ right)
    return total.copy_(product) if fresh else total.add_(product)


def finite(values: Tensor) -> Tensor:
    """Values that overflowed in float16 become the largest there are: infinity would turn into NaN later."""
    return values.clamp(-65504, 65504) if values.dtype == torch.float16 else values


def at_least_float(values: Tensor) -> Tensor:
    """In single precision: half precision would make ties of close scores."""
    return finite(values).float() if values.dtype.itemsize < 4 else values


def chunk_size(num_labels: int, bytes_per_label: int, chunk_bytes: int | None, device: torch.device) -> int:
    """How many labels to score at a time, so that chunks are of about equal size and fit into `chunk_bytes`."""
    # An exported program knows neither the number of texts nor their lengths.
    if torch.compiler.is_exporting():
        return num_labels
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if device.type == "cpu" else ACCELERATOR_CHUNK_BYTES
    chunks = math.ceil(num_labels / max(1, chunk_bytes // bytes_per_label))
    return math.ceil(num_labels / chunks)


class Blocks(NamedTuple):
    """
    The order of the computation: so many labels at a time, and runs of texts, each with how many tokens to read
    of them and with the mask of the padding among these, if any.
    """

    num_labels: int
    texts: list[tuple[slice, int, Tensor | None]]


def plan_blocks(num_labels: int, bytes_per_score: int, chunk_bytes: int | None, mask: Tensor) -> Blocks:
    """
    All texts at a time where that leaves enough labels for fast products, and lengths are not read back from the
    device; else one text after the other, without its padding. In the mask, (texts, tokens), real tokens come first.
    """
    texts = [(slice(0, mask.shape[0]), mask.shape[1], ~mask)]
    size = chunk_size(num_labels, bytes_per_score * mask.shape[0], chunk_bytes, mask.device)
    if torch.compiler.is_exporting() or size >= min(_ENOUGH_LABELS, num_labels):
        return Blocks(size, texts)
    texts = [(slice(i, i + 1), length, None) for i, length in enumerate(mask.sum(dim=1).tolist())]
    return Blocks(chunk_size(num_labels, bytes_per_score, chunk_bytes, mask.device), texts)


def reading_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    keys: Tensor,
    values: Tensor,
    queries: Tensor,
    label_bias: Tensor | None,
    *parameters: Tensor | None,
    make_reader: Callable[..., Any],
    labels: Tensor,
    blocks: Blocks,
    loss_pair: LossPair,
) -> LossAndGradients:
    """
    Sum of the loss over all texts and labels of a head whose labels read tokens, and its gradients by all inputs
    before `make_reader` where `needed`. Softmax, loss and gradients are in single precision at least.

    Queries are shared by all texts, so the weights of a chunk of labels over the tokens of a block of texts are one
    matrix product and a softmax. What becomes of them is up to a reader, which is called with a chunk, their weights,
    (labels of the chunk, texts of the block, tokens), the values, (texts of the block, tokens, value), and a buffer of
    the shape of the weights. It gives the logits without bias, (texts of the block, labels of the chunk), and the way
    back: a function of the derivative by them and of the sum of the gradients by the values, which leaves the
    derivative by the scores before the softmax in the buffer.

    Args:
        make_reader: A reader from the precisions, the size of a buffer, queries and parameters, and their gradients.
    """
    low, high, backward = precisions
    gradients = [
        torch.zeros_like(value, dtype=high) if wanted else None
        for value, wanted in zip((keys, values, queries, label_bias, *parameters), needed, strict=True)
    ]
    by_keys, by_values, by_queries, by_bias, *by_parameters = gradients
    most = blocks.num_labels * max((texts.stop - texts.start) * tokens for texts, tokens, _ in blocks.texts)
    buffers = keys.new_empty((2, most), dtype=high)
    read = make_reader(precisions, most, (queries, *parameters), (by_queries, *by_parameters))
    total = keys.new_zeros((), dtype=high)
    for start in range(0, len(queries), blocks.num_labels):
        chunk = slice(start, start + blocks.num_labels)
        query = queries[chunk]  # (labels of the chunk, key)
        for texts, tokens, padding in blocks.texts:
            key = keys[texts, :tokens].view(-1, keys.shape[2])  # (tokens of the block, key)
            # Each (labels of the chunk, texts of the block, tokens).
            scores, weights = buffers[:, : len(query) * len(key)].view(2, len(query), -1, tokens)
            add_product(scores.flatten(1), query.to(low), key.T, fresh=True)
            if padding is not None:
                scores.masked_fill_(padding, torch.finfo(high).min)
            torch.softmax(scores, dim=-1, out=weights)
            logits, way_back = read(chunk, weights, values[texts, :tokens], scores)
            if label_bias is not None:
                logits = logits + label_bias[chunk]
            loss, by_logits = loss_pair(logits, labels[texts], start)
            total += loss
            if not any(needed):
                continue
            if by_bias is not None:
                by_bias[chunk] += by_logits.sum(dim=0)
            way_back(by_logits, None if by_values is None else by_values[texts, :tokens])
            by_scores = scores.flatten(1).to(backward)
            if by_queries is not None:
                add_product(by_queries[chunk], by_scores, key.to(backward))
            if by_keys is not None:
                add_product(by_keys[texts, :tokens].view(key.shape), by_scores.T, query.to(backward))
    return total, gradients
