"""What branches with label-word attention tell of the tokens of a text."""

from collections.abc import Callable

import torch

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import evaluation_mode

Inputs = dict[str, torch.Tensor]


def has_evidence(model: XMTCPreTrainedModel) -> bool:
    """Whether the branches with attention add up over words."""
    return getattr(model.config, "attention_scoring", None) == "evidence"


def mean_of_branches(
    values: Callable[..., torch.Tensor], shown: dict[str, torch.Tensor], label_ids: torch.Tensor, inputs: Inputs
) -> torch.Tensor:
    """What branches give for the tokens of one text, weighted by (labels,) each, of shape (labels, tokens)."""
    # In double precision on the CPU: sums over many tokens then lose nothing of what the model computed.
    return sum(
        share.cpu().double().unsqueeze(1) * values(label_ids, **inputs, branch=name)[0].cpu().double()
        for name, share in shown.items()
    )


def branch_shares(scores: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What part of the sum of the probabilities each branch brings, of shape (labels,)."""
    # So that branches count alike where all are 0.
    probabilities = {name: values.clamp(min=1e-12) for name, values in scores.items()}
    total = sum(probabilities.values())
    return {name: values / total for name, values in probabilities.items()}


@torch.no_grad()
def label_biases(model: XMTCPreTrainedModel, branch: str, label_ids: torch.Tensor) -> torch.Tensor:
    """Biases of labels in a branch, of shape (labels,)."""
    rows, shard = model.branch_heads()[branch].label_embeddings.read(), getattr(model, "label_shard", None)
    if not model.config.label_bias:
        return torch.zeros(len(label_ids), dtype=torch.double)
    # Labels may be split over processes, each with the biases of its own.
    biases = (
        rows.biases(label_ids)
        if shard is None
        else shard.collect(lambda ids: rows.biases(ids).unsqueeze(0), label_ids)[0]
    )
    return biases.cpu().double()


@torch.no_grad()
def tree_paths(model: XMTCPreTrainedModel, label_ids: torch.Tensor, inputs: Inputs) -> torch.Tensor | None:
    """Logits of the ways down the label tree to the clusters of labels, (labels,); none without a tree."""
    if not getattr(model.config, "tree_levels", None):
        return None
    with evaluation_mode(model):
        scores = model(**inputs, output_scores=True).scores
    # Where there are experts or a blend, the heads are a part of the scores.
    return getattr(scores, "heads", scores).paths(label_ids.unsqueeze(0))[0]
