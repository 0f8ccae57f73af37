"""What the models return."""

from dataclasses import dataclass

import torch
from transformers.utils import ModelOutput


@dataclass
class XMTCOutput(ModelOutput):
    """
    What a model for extreme multi-label text classification returns.

    Args:
        loss (`torch.Tensor`, *optional*): Training loss, when labels are given.
        logits (`torch.Tensor` of shape `(texts, labels)`, *optional*): Their sigmoid is the final probability.
        top_k_ids (`torch.Tensor` of shape `(texts, top_k)`, *optional*): Best labels, best first, lower id on a tie.
        top_k_scores (`torch.Tensor` of shape `(texts, top_k)`, *optional*): Final probabilities of these labels.
        branch_top_k_ids (`dict[str, torch.Tensor]`, *optional*): Best labels of each branch on its own.
        loss_terms (`dict[str, torch.Tensor]`, *optional*): What `loss` is the sum of, for the log; no gradient.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    top_k_ids: torch.Tensor | None = None
    top_k_scores: torch.Tensor | None = None
    branch_top_k_ids: dict[str, torch.Tensor] | None = None
    loss_terms: dict[str, torch.Tensor] | None = None
