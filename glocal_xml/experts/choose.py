"""Choosing the settings of the lexical expert on held-out texts."""

import logging
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from glocal_xml.metrics import pad_label_lists, xmtc_metrics

from .lexical import CLUSTER_SIZE, LEAD, MOST_PAIRS, fit_lexical
from .texts import ExpertTexts
from .token_rows import padded_ids

logger = logging.getLogger(__name__)

# With more labels a fit takes minutes, pairs of tokens several times that: the defaults are kept.
MOST_LABELS = 5000
_MOST_TOKENS = 5 * 10**6
# Settings are compared on parts of this size.
_TEXTS, _HELD_OUT = 4000, 1000
_TRIED = {
    "pairs": (MOST_PAIRS, 0),
    "lead": (LEAD, 0),
    "c": (1.0, 0.5),
    "cluster_size": (CLUSTER_SIZE, 4 * CLUSTER_SIZE),
}
_BATCH = 128


def default_lexical_settings(train: ExpertTexts, num_labels: int) -> dict[str, Any]:
    """Settings without a trial: pairs of tokens where they take seconds, that is with few labels and short texts."""
    has_time = num_labels <= MOST_LABELS and sum(map(len, train.rows)) <= _MOST_TOKENS
    return {"pairs": MOST_PAIRS if has_time else 0}


def choose_lexical_settings(train: ExpertTexts, held_out: ExpertTexts, num_labels: int, tokens: int) -> dict[str, Any]:
    """
    Options of `fit_lexical`: whether pairs of tokens and the first tokens are features of their own, the
    regularisation and the size of clusters, chosen one after the other on a part of the texts, by the mean of P@1, P@3
    and P@5 on held-out texts. `tokens` is the size of the vocabulary.
    """
    if num_labels > MOST_LABELS:
        return default_lexical_settings(train, num_labels)
    order = np.random.default_rng(0).permutation(len(train.rows))[:_TEXTS]
    rows, labels = [train.rows[i] for i in order], [train.labels[i] for i in order]
    settings = {name: values[0] for name, values in _TRIED.items()}
    judged: dict[tuple, float] = {}

    def quality(tried: dict[str, Any]) -> float:
        key = tuple(tried.items())
        if key not in judged:
            data = (rows + train.name_rows, labels + train.name_labels, num_labels, tokens)
            expert, _ = fit_lexical(*data, num_texts=len(rows), show_progress=False, **tried)
            judged[key] = _precision(expert, held_out, num_labels)
        return judged[key]

    for name, values in _TRIED.items():
        if name == "cluster_size" and num_labels <= CLUSTER_SIZE:
            # One cluster either way.
            continue
        settings[name] = max(values, key=lambda value: quality({**settings, name: value}))  # noqa: B023
    logger.info(
        "lexical expert: C %g, clusters of %d labels, %s%s (by held-out texts)",
        settings["c"],
        settings["cluster_size"],
        "pairs of tokens too" if settings["pairs"] else "single tokens",
        f", the first {settings['lead']} tokens apart" if settings["lead"] else "",
    )
    return settings


def _precision(expert: torch.nn.Module, texts: ExpertTexts, num_labels: int) -> float:
    rows, labels = texts.rows[:_HELD_OUT], texts.labels[:_HELD_OUT]
    ks = [k for k in (1, 3, 5) if k <= num_labels]
    starts = [*range(0, len(rows), _BATCH), len(rows)]
    best = [expert(padded_ids(rows[a:b])).top_k(ks[-1]).ids.numpy() for a, b in pairwise(starts)]
    metrics = xmtc_metrics(np.concatenate(best), pad_label_lists(labels), ks=ks, num_labels=num_labels)
    return float(np.mean([metrics[f"precision@{k}"] for k in ks]))
