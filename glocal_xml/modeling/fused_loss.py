"""A loss over all labels whose gradients are made in the forward pass, label chunk by label chunk."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

# From precisions, which inputs need a gradient, and the inputs: the loss, and a gradient per input, where needed.
LossAndGradients = Callable[..., tuple[torch.Tensor, list[torch.Tensor | None]]]
# From the logits of a run of labels (texts, labels of the run), the padded ids of all positive labels and the first
# label of the run: the sum of the loss, and its derivative by each logit. Both in the precision of the logits.
LossPair = Callable[[torch.Tensor, torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]

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
def fused_loss(compute: LossAndGradients, inputs: Sequence[torch.Tensor | None], scale: float) -> torch.Tensor:
    """
    `scale` times the loss that `compute` gives, differentiable by `inputs`.

    The loss is a sum over labels, so the gradient of a chunk of labels is known as soon as the chunk is: `compute`
    accumulates gradients while it goes over the labels and forgets everything else. The backward pass multiplies them,
    in place, by `scale` and by the gradient that comes in. Under loss scaling this keeps the tiny gradients of
    negative labels: they are made without `scale` and in single precision at least.

    A graph can therefore be used for one backward pass only, and not be differentiated twice.

    Args:
        compute: Called with [`Precisions`], which inputs need a gradient, and the inputs; autocast is off there.
        inputs: Tensors that may need a gradient, the first one in the precision of the products; None stands for a
            parameter that the head does not have.
        scale: What makes a mean of the sum.
    """
    needed = tuple(value is not None and value.requires_grad for value in inputs)
    # Decided here, since inside a Function gradients look wanted under `no_grad` too.
    if torch.is_grad_enabled() and any(needed):
        return _LossWithGradients.apply(compute, scale, *inputs)
    with torch.no_grad():
        return _compute(compute, (False,) * len(inputs), inputs)[0] * scale


def _compute(compute: LossAndGradients, needed: tuple[bool, ...], inputs: Sequence[torch.Tensor | None]) -> Any:
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
    logits: torch.Tensor, labels: torch.Tensor, first_label: int = 0, text_weights: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """
    Sum of the binary cross-entropy over texts and labels, and its derivative by each logit, of the shape of `logits`.

    No multi-hot matrix is built: softplus over all labels, minus the logits of the positive ones.

    Args:
        logits: Scores of the labels `first_label`, `first_label + 1`, … of shape (texts, labels of the run).
        labels: Ids of the positive labels over the whole label space, of shape (texts, positives), padded with -100.
        first_label: Label of the first column of `logits`.
        text_weights: Weight of the terms of each text, of shape (texts,).
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


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, fresh: bool = False) -> torch.Tensor:
    """Adds `left @ right` to `total`, which may be of higher precision; `fresh` overwrites what was there."""
    if left.dtype == total.dtype:
        add = total.addmm_ if total.dim() == 2 else total.baddbmm_
        return add(left, right, beta=0 if fresh else 1)
    product = finite(left @ right)
    return total.copy_(product) if fresh else total.add_(product)


def finite(values: torch.Tensor) -> torch.Tensor:
    """Values that overflowed in float16 become the largest there are: infinity would turn into NaN later."""
    return values.clamp(-65504, 65504) if values.dtype == torch.float16 else values


def at_least_float(values: torch.Tensor) -> torch.Tensor:
    """In single precision: half precision would make ties of close scores."""
    return finite(values).to(torch.promote_types(values.dtype, torch.float32))


def chunk_size(num_labels: int, bytes_per_label: int, chunk_bytes: int | None, device: torch.device) -> int:
    """
    How many labels to score at a time, so that chunks are of about equal size.

    Args:
        num_labels: Number of labels.
        bytes_per_label: Memory that one label takes.
        chunk_bytes: Memory that the scores of a chunk may take; by device when left out.
        device: Where they are computed.
    """
    # An exported program knows neither the number of texts nor their lengths.
    if torch.compiler.is_exporting():
        return num_labels
    if chunk_bytes is None:
        chunk_bytes = CPU_CHUNK_BYTES if device.type == "cpu" else ACCELERATOR_CHUNK_BYTES
    chunks = math.ceil(num_labels / max(1, chunk_bytes // bytes_per_label))
    return math.ceil(num_labels / chunks)


class Blocks(NamedTuple):
    """
    How labels and texts are gone over: so many labels at a time, and runs of texts, each with how many tokens to read
    of them and with the mask of the padding among these, if any.
    """

    num_labels: int
    texts: list[tuple[slice, int, torch.Tensor | None]]


def plan_blocks(num_labels: int, bytes_per_score: int, chunk_bytes: int | None, mask: torch.Tensor) -> Blocks:
    """
    All texts at a time where that leaves enough labels for fast products, and lengths are not read back from the
    device; else one text after the other, without its padding.

    Args:
        num_labels: Number of labels.
        bytes_per_score: Memory that one label takes for one text.
        chunk_bytes: Memory that the scores of a chunk may take; by device when left out.
        mask: The real tokens, which come first in every text, of shape (texts, tokens).
    """
    texts = [(slice(0, mask.shape[0]), mask.shape[1], ~mask)]
    size = chunk_size(num_labels, bytes_per_score * mask.shape[0], chunk_bytes, mask.device)
    if torch.compiler.is_exporting() or size >= min(_ENOUGH_LABELS, num_labels):
        return Blocks(size, texts)
    texts = [(slice(i, i + 1), length, None) for i, length in enumerate(mask.sum(dim=1).tolist())]
    return Blocks(chunk_size(num_labels, bytes_per_score, chunk_bytes, mask.device), texts)
