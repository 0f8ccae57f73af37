"""Metrics of extreme multi-label classification, computed on the ids of the k best labels of each text.

Every value is a fraction in [0, 1]. A text without a true label stays in every mean and counts 0. Nothing here grows
with texts times labels: memory goes with the predictions, the true labels, and, for the macro averages, the labels.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from .ranked_labels import RankedLabels, label_id_set


def precision_at_k(ranked: RankedLabels, k: int) -> float:
    """P@k = hits / k, averaged over texts; k also for a text with fewer true or predicted labels."""
    return float(ranked.hits_at(k).mean())


def recall_at_k(ranked: RankedLabels, k: int) -> float:
    """R@k = hits / n, averaged over texts, n being the number of true labels of the text."""
    return float(ratio(ranked.hits_at(k).sum(axis=1), ranked.true_counts).mean())


def r_precision_at_k(ranked: RankedLabels, k: int) -> float:
    """RP@k = hits / min(k, n), averaged over texts (Chalkidis et al. 2019): a text with few labels can reach 1."""
    return float(ratio(ranked.hits_at(k).sum(axis=1), np.minimum(ranked.true_counts, k)).mean())


def ndcg_at_k(ranked: RankedLabels, k: int) -> float:
    """nDCG@k = sum over hits of 1 / log2(rank + 1), over the sum for ranks 1 to min(k, n), averaged over texts."""
    gains = _cumulative_gain(ranked.hits_at(k))
    return float(ratio(gains, _ideal_gain(ranked, k)).mean())


def ps_precision_at_k(ranked: RankedLabels, k: int, inverse_propensities: ArrayLike) -> float:
    """PSP@k, propensity-scored precision (Jain et al. 2016).

    The inverse propensities of the hits, summed over all texts, divided by the sum for the best possible predictions:
    a ratio of means over the data set, not a mean of ratios.
    """
    gained, best = _hit_and_best_weights(ranked, k, inverse_propensities)
    return _bounded_ratio(gained.sum(), best.sum())


def ps_ndcg_at_k(ranked: RankedLabels, k: int, inverse_propensities: ArrayLike) -> float:
    """PSnDCG@k, propensity-scored nDCG in the form of xclib and napkinXC.

    The DCG of each text weighs its hits by inverse propensity and is divided by the *unweighted* ideal DCG of the
    text; the mean over texts is divided by the same mean for the best possible predictions.
    """
    gained, best = _hit_and_best_weights(ranked, k, inverse_propensities)
    ideal = _ideal_gain(ranked, k)
    return _bounded_ratio(ratio(_cumulative_gain(gained), ideal).sum(), ratio(_cumulative_gain(best), ideal).sum())


def coverage_at_k(ranked: RankedLabels, k: int) -> float:
    """Share of the labels true for at least one text that are a hit at k for at least one text."""
    hits = ranked.hits_at(k)
    found, true = (np.count_nonzero(np.bincount(ids)) for ids in (ranked.ids[:, :k][hits], ranked.true_ids))
    return float(found / true) if true else 0.0


def macro_at_k(ranked: RankedLabels, k: int, label_ids: ArrayLike | None = None) -> dict[str, float]:
    """Precision, recall and F1 of each label's own decisions "among the first k", averaged over `label_ids`.

    All labels of the label space by default. 0/0 counts 0, and F1 is the mean of the F1 of the labels, not the F1 of
    the means.
    """
    hits, ids = ranked.hits_at(k), ranked.ids[:, :k]
    counted = (ids[hits], ids[ids >= 0], ranked.true_ids)
    correct, predicted, true = (np.bincount(found, minlength=ranked.num_labels) for found in counted)
    if label_ids is not None:
        chosen = label_id_set(label_ids, "label_ids")
        if len(chosen) == 0 or chosen[0] < 0 or chosen[-1] >= ranked.num_labels:
            raise ValueError(
                f"label_ids must be at least one id from 0 to {ranked.num_labels - 1}, got {len(chosen)} ids"
                + (f" from {chosen[0]} to {chosen[-1]}." if len(chosen) else ".")
                + " Pass num_labels to RankedLabels if the label space is larger than the ids seen."
            )
        correct, predicted, true = correct[chosen], predicted[chosen], true[chosen]
    return {
        "precision": float(ratio(correct, predicted).mean()),
        "recall": float(ratio(correct, true).mean()),
        "f1": float(ratio(2 * correct, predicted + true).mean()),
    }


def xmtc_metrics(
    top_k_ids: ArrayLike,
    true_labels: ArrayLike | Iterable[Sequence[int]],
    *,
    ks: Sequence[int] | int = (1, 3, 5),
    inverse_propensities: ArrayLike | None = None,
    bands: Mapping[str, ArrayLike] | None = None,
    num_labels: int | None = None,
) -> dict[str, float]:
    """All metrics at every k of `ks`, as `{"precision@1": ..., "recall@1": ..., ...}`.

    Args:
        top_k_ids: Predicted label ids, best first (see [`RankedLabels`]).
        true_labels: True label ids (see [`RankedLabels`]).
        ks: Ranks to cut at. The macro averages are given for the largest.
        inverse_propensities: One weight per label, from the *training* counts; adds `psp@k` and `psndcg@k`.
        bands: Label ids by name, such as few-, medium- and many-shot labels; adds `macro_f1@5_few` and so on. An
            empty band is left out.
        num_labels: Size of the label space, the denominator of the macro averages over all labels. By default the
            number of `inverse_propensities` or one more than the highest id seen, bands included.
    """
    ks = (ks,) if isinstance(ks, int) else ks
    if len(ks) == 0:
        raise ValueError("ks is empty: give at least one rank, such as (1, 3, 5).")
    band_ids = {name: label_id_set(ids, f"bands[{name!r}]") for name, ids in (bands or {}).items()}
    ranked = RankedLabels(top_k_ids, true_labels, num_labels)
    if num_labels is None:
        # A label neither predicted nor true in these texts still belongs to the macro averages, with 0.
        ranked.num_labels = max(
            ranked.num_labels,
            0 if inverse_propensities is None else np.size(inverse_propensities),
            *(int(ids.max(initial=-1)) + 1 for ids in band_ids.values()),
        )

    metrics = {}
    for k in ks:
        metrics[f"precision@{k}"] = precision_at_k(ranked, k)
        metrics[f"recall@{k}"] = recall_at_k(ranked, k)
        metrics[f"r_precision@{k}"] = r_precision_at_k(ranked, k)
        metrics[f"ndcg@{k}"] = ndcg_at_k(ranked, k)
        if inverse_propensities is not None:
            metrics[f"psp@{k}"] = ps_precision_at_k(ranked, k, inverse_propensities)
            metrics[f"psndcg@{k}"] = ps_ndcg_at_k(ranked, k, inverse_propensities)
        metrics[f"coverage@{k}"] = coverage_at_k(ranked, k)
    k = max(ks)
    groups = {"": None} | {f"_{band}": ids for band, ids in band_ids.items() if len(ids)}
    for suffix, ids in groups.items():
        metrics |= {f"macro_{name}@{k}{suffix}": value for name, value in macro_at_k(ranked, k, ids).items()}
    return metrics


def ratio(numerators: np.ndarray, denominators: np.ndarray) -> np.ndarray:
    """Elementwise quotient, 0/0 being 0."""
    return np.divide(numerators, denominators, out=np.zeros(len(numerators)), where=denominators > 0)


def _bounded_ratio(gained: float, best: float) -> float:
    # The same weights summed in another order can exceed the best sum by a rounding error.
    return min(float(gained / best), 1.0) if best > 0 else 0.0


def _cumulative_gain(gains: np.ndarray) -> np.ndarray:
    """DCG of each row: the gain at each rank times 1 / log2(rank + 1)."""
    # A cumulative sum adds from left to right, as the ideal gain does: no DCG rounds to above its ideal.
    return np.cumsum(gains / np.log2(np.arange(2, gains.shape[1] + 2)), axis=1)[:, -1]


def _ideal_gain(ranked: RankedLabels, k: int) -> np.ndarray:
    """DCG of each text if its first min(k, n) predictions were all hits."""
    by_count = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(2, k + 2)))])
    return by_count[np.minimum(ranked.true_counts, k)]


def _hit_and_best_weights(
    ranked: RankedLabels, k: int, inverse_propensities: ArrayLike
) -> tuple[np.ndarray, np.ndarray]:
    """Weights of the hits by rank, and of the k heaviest true labels, heaviest first; both (texts, k), 0 for none."""
    weights = np.asarray(inverse_propensities, dtype=np.float64)
    if weights.ndim != 1 or len(weights) < ranked.num_labels:
        raise ValueError(
            f"inverse_propensities must be one weight for each of the {ranked.num_labels} labels, got shape "
            f"{weights.shape}. Compute them from the training counts of the whole label space."
        )
    if not (np.isfinite(weights).all() and (weights > 0).all()):
        raise ValueError(
            "inverse_propensities must be positive and finite, got values from "
            f"{weights.min()} to {weights.max()}. Check the training counts they come from."
        )
    hits = ranked.hits_at(k)
    # Negative ids read a wrong weight here, but are never hits.
    gained = np.where(hits, weights[ranked.ids[:, :k]], 0.0)

    # Sorting (text, position in the order of weights) as one number puts each text's heaviest label first.
    by_weight = np.argsort(-weights, kind="stable")
    position = np.empty_like(by_weight)
    position[by_weight] = np.arange(len(weights))
    pairs = np.sort(ranked.true_rows * len(weights) + position[ranked.true_ids])
    first = np.cumsum(ranked.true_counts) - ranked.true_counts
    rank = np.arange(len(pairs)) - first[ranked.true_rows]
    kept = rank < k
    best = np.zeros((ranked.num_texts, k))
    best[ranked.true_rows[kept], rank[kept]] = weights[by_weight[pairs[kept] % len(weights)]]
    return gained, best
