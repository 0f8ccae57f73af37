"""Metrics of extreme multi-label classification on the ids of the best labels of each text."""

from .ranked_labels import RankedLabels, pad_label_lists, top_k_from_scores
from .ranking import (
    coverage_at_k,
    macro_at_k,
    ndcg_at_k,
    precision_at_k,
    ps_ndcg_at_k,
    ps_precision_at_k,
    r_precision_at_k,
    recall_at_k,
    xmtc_metrics,
)

__all__ = [
    "RankedLabels",
    "coverage_at_k",
    "macro_at_k",
    "ndcg_at_k",
    "pad_label_lists",
    "precision_at_k",
    "ps_ndcg_at_k",
    "ps_precision_at_k",
    "r_precision_at_k",
    "recall_at_k",
    "top_k_from_scores",
    "xmtc_metrics",
]
