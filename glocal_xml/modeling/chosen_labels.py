"""Labels that a caller chose: their scores and their ranking, in bounded memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .input_checks import check_candidate_ids
from .label_ranking import best_columns
from .label_scorer import label_chunks
from .modeling_output import XMTCOutput
from .probabilities import mean_probability_logits

if TYPE_CHECKING:
    from .modeling_base import Features, XMTCPreTrainedModel


def chosen_logits(
    model: "XMTCPreTrainedModel", features: "Features", label_ids: torch.Tensor
) -> dict[str, torch.Tensor]:
    """
    Logits of each branch for the same labels in every text, (texts, chosen).

    Args:
        model: The model.
        features: What its heads read of the texts.
        label_ids: The labels, of shape (chosen,).
    """
    heads = model.branch_heads().items()
    texts = len(next(iter(features.values()))[0])
    # Labels chosen by their ids are gathered for each text.
    size = max(1, min(head.chunk_size(features[name]) for name, head in heads) // texts)
    chunks = [
        model.branch_logits(features, label_ids[chunk].expand(texts, -1))
        for chunk in label_chunks(len(label_ids), size)
    ]
    return {name: torch.cat([chunk[name] for chunk in chunks], dim=1) for name, _ in heads}


def rank_candidates(
    model: "XMTCPreTrainedModel", features: "Features", candidate_ids: Sequence[int] | torch.Tensor, top_k: int
) -> XMTCOutput:
    """
    The best labels of each text among candidates, each of which is scored; of equal scores the lower id comes first.

    Args:
        model: The model.
        features: What its heads read of the texts.
        candidate_ids: The labels to choose from, of shape (candidates,).
        top_k: Number of labels to return; fewer where there are fewer candidates.
    """
    label_ids = check_candidate_ids(candidate_ids, model.config.num_labels).to(model.device).unique()  # in order
    logits, top_k = chosen_logits(model, features, label_ids), min(top_k, len(label_ids))
    scores, columns = best_columns(mean_probability_logits(list(logits.values())), top_k)
    branches = {name: label_ids[best_columns(values, top_k)[1]] for name, values in logits.items()}
    return XMTCOutput(
        top_k_ids=label_ids[columns],
        top_k_scores=scores.sigmoid(),
        branch_top_k_ids=branches if len(branches) > 1 else None,
    )
