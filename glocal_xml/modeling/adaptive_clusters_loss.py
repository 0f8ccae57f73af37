"""The loss of one tail of adaptive label clusters with its gradients."""

import torch
from torch import nn

from .label_classifier import classifier_loss
from .losses import binary_cross_entropy_pair
from .probabilities import product_logits


def tail_loss(
    needed: tuple[bool, ...],
    narrowed: torch.Tensor,
    label_embeddings: torch.Tensor,
    label_bias: torch.Tensor | None,
    roots: torch.Tensor,
    *,
    labels: torch.Tensor,
    text_weights: torch.Tensor,
    chunk_size: int,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Cross-entropy of the product probabilities, summed over the labels of a tail and over texts by their weight, and
    its gradients by the first four inputs where `needed`.

    Args:
        narrowed: The texts that need this tail as its first layer gives them, of shape (texts, width).
        label_embeddings: Those of the labels of this tail, of shape (labels of the tail, width).
        label_bias: One bias per label of this tail, or none.
        roots: Root logits of this tail, of shape (texts, 1), in single precision at least.
        labels: Rows of `label_embeddings` that are positive, padded with -100.
        text_weights: Weight of each text, of shape (texts,).
    """
    softplus_roots = nn.functional.softplus(-roots)  # (texts, 1)
    by_roots = torch.zeros_like(roots) if needed[3] else None

    def loss_pair(tails: torch.Tensor, labels: torch.Tensor, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = product_logits(roots, tails)  # (texts, labels of the chunk)
        loss, by_logits = binary_cross_entropy_pair(logits, labels, first_label, text_weights)
        # With u = exp(-root) and v = exp(-tail), the derivative of a product by its tail is (v + uv) / (u + v + uv).
        # That by its root, (u + uv) / (u + v + uv), is u / (u + v + uv) plus sigmoid(-root) times the former.
        by_tails = (softplus_roots - tails).add_(logits).exp_().mul_(by_logits)
        if by_roots is not None:
            by_roots.add_(logits.sub_(roots).exp_().mul_(by_logits).sum(dim=1, keepdim=True))
            by_roots.addcmul_(torch.sigmoid(-roots), by_tails.sum(dim=1, keepdim=True))
        return loss, by_tails

    total, gradients = classifier_loss(
        needed[:3],
        narrowed,
        label_embeddings,
        label_bias,
        labels=labels,
        chunk_size=chunk_size,
        loss_pair=loss_pair,
    )
    return total, [*gradients, by_roots]
