"""A loss over all labels whose gradients are made in the forward pass, label chunk by label chunk."""

from collections.abc import Callable, Sequence

import torch

# From which inputs need a gradient, and the inputs: the loss, and a gradient per input (None where not needed).
LossAndGradients = Callable[..., tuple[torch.Tensor, list[torch.Tensor | None]]]


# Tracing the loop over chunks would unroll it; compiled models call it as it is.
@torch.compiler.disable
def fused_loss(compute: LossAndGradients, inputs: Sequence[torch.Tensor | None], scale: float) -> torch.Tensor:
    """
    `scale` times the loss that `compute` gives, differentiable by `inputs`.

    The loss is a sum over labels, so the gradient of a chunk of labels is known as soon as the chunk is: `compute`
    accumulates gradients while it goes over the labels and forgets all else. The backward pass multiplies them, in
    place, by `scale` and by the gradient that comes in. Under loss scaling this keeps the tiny gradients of negative
    labels: they are made without `scale` and in single precision at least.

    A graph can therefore be gone through once only, and not be differentiated twice. Checked on the CPU only.

    Args:
        compute: Called with the tuple of which inputs need a gradient, and the inputs; autocast is off there.
        inputs: What gradients may be wanted for; None stands for a parameter that the head does not have.
        scale: What makes a mean of the sum.
    """
    needed = tuple(value is not None and value.requires_grad for value in inputs)
    # Decided here, since inside a Function gradients look wanted under `no_grad` too.
    if torch.is_grad_enabled() and any(needed):
        return _LossWithGradients.apply(compute, scale, *inputs)
    with torch.no_grad(), torch.autocast(inputs[0].device.type, enabled=False):
        return compute((False,) * len(inputs), *inputs)[0] * scale


class _LossWithGradients(torch.autograd.Function):
    @staticmethod
    def forward(ctx, compute, scale, *inputs):
        with torch.autocast(inputs[0].device.type, enabled=False):
            loss, ctx.gradients = compute(ctx.needs_input_grad[2:], *inputs)
        ctx.scale = scale
        ctx.dtypes = [None if value is None else value.dtype for value in inputs]
        return loss * scale

    @staticmethod
    def backward(ctx, incoming):
        if torch.is_grad_enabled():
            raise RuntimeError(
                "The loss over labels cannot be differentiated twice, its gradients are made in the forward pass: "
                "leave out `create_graph=True`, or take the loss from `model.branch_logits`."
            )
        if ctx.gradients is None:
            raise RuntimeError(
                "The gradients of this loss over labels were handed out by an earlier backward pass and are gone: "
                "run the forward pass again, or add the losses up and call `backward` once."
            )
        # A second copy of the gradient of the label table would be as large as the table: scale in place, let go.
        gradients, ctx.gradients = ctx.gradients, None
        factor = incoming * ctx.scale
        for i, gradient in enumerate(gradients):
            if gradient is not None:
                gradients[i] = gradient.mul_(factor).to(ctx.dtypes[i])
        return None, None, *gradients


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor, fresh: bool = False) -> torch.Tensor:
    """Adds `left @ right` to `total`, which may be of higher precision; `fresh` overwrites what was there."""
    if left.dtype == total.dtype:
        return total.addmm_(left, right, beta=0 if fresh else 1)
    product = left @ right
    return total.copy_(product) if fresh else total.add_(product)


def gradient_dtype(dtype: torch.dtype) -> torch.dtype:
    """Precision of the products that make gradients: the derivatives of negative labels underflow in float16."""
    return torch.float32 if dtype == torch.float16 else dtype
