"""Further layers of an MLP inside a loss that makes its gradients in the forward pass."""

from collections.abc import Sequence

import torch

from .fused_loss import add_product, gradient_dtype


class MLPLayers:
    """
    Layers between the first activation of an MLP and its last, with the sums of their gradients.

    Activations are those after the ReLU: their sign is its derivative.

    Args:
        parameters: Weight and bias of each layer in turn.
        needed: Which of them need a gradient.
        low: Precision of the products.
    """

    def __init__(self, parameters: Sequence[torch.Tensor], needed: Sequence[bool], low: torch.dtype):
        high = torch.promote_types(low, torch.float32)
        self.low, self.backward_dtype = low, gradient_dtype(low)
        self.weights = parameters[::2]
        self.biases = [bias.to(high) for bias in parameters[1::2]]
        self.gradients = [
            torch.zeros_like(parameter, dtype=high) if wanted else None
            for parameter, wanted in zip(parameters, needed, strict=True)
        ]

    def forward(self, read: torch.Tensor) -> list[torch.Tensor]:
        """Activations from the given one, of shape (labels, mlp), to the last."""
        activations = [read]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inner = bias.expand(len(read), -1).clone()  # (labels, width)
            activations.append(add_product(inner, activations[-1].to(self.low), weight.to(self.low).T).clamp_(min=0))
        return activations

    def backward(self, activations: list[torch.Tensor], by_last: torch.Tensor) -> torch.Tensor:
        """Adds to the gradients of the layers; from the derivative before the last ReLU to that before the first."""
        by_inner = by_last
        for layer in reversed(range(len(self.weights))):
            before, by_weight, by_bias = activations[layer], self.gradients[2 * layer], self.gradients[2 * layer + 1]
            if by_bias is not None:
                by_bias += by_inner.sum(dim=0)
            by_inner = by_inner.to(self.backward_dtype)
            if by_weight is not None:
                add_product(by_weight, by_inner.T, before.to(self.backward_dtype))
            by_inner = (by_inner @ self.weights[layer].to(self.backward_dtype)).to(before.dtype).mul_(before.sign())
        return by_inner
