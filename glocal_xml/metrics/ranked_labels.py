"""Predicted and true label ids in the form the metrics read: best predictions first, negative ids for "none"."""

import operator
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def pad_label_lists(label_lists: Iterable[Sequence[int]], padding: int = -100) -> np.ndarray:
    """Puts lists of label ids, one per text, into one int64 array of shape (texts, longest list).

    `padding` fills the free places and must be negative, as the metrics read every negative id as "no label".
    """
    if padding >= 0:
        raise ValueError(f"padding={padding} is a possible label id. Give a negative number, such as -100.")
    lengths, ids = _flatten(label_lists, "label_lists")
    padded = np.full((len(lengths), lengths.max(initial=0)), padding, dtype=np.int64)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = ids
    return padded


def top_k_from_scores(scores: np.ndarray, k: int) -> np.ndarray:
    """Ids of the `k` best labels of each text, best first, from scores of shape (texts, labels).

    Equal scores are ordered by label id, the lower one first, whatever the numpy version or the memory layout.
    """
    scores = np.asarray(scores)
    if scores.ndim != 2 or scores.dtype.kind not in "biuf":
        raise ValueError(f"scores must be real numbers, (texts, labels), got {scores.dtype} of shape {scores.shape}.")
    if np.isnan(scores).any():
        raise ValueError("scores hold NaN, which has no rank. Replace it, for example by -inf.")
    num_labels = scores.shape[1]
    k = _check_k(k, num_labels, f"scores hold only {num_labels} labels")
    threshold = np.partition(scores, num_labels - k, axis=1)[:, [num_labels - k]]
    above, tied = scores > threshold, scores == threshold
    chosen = above | (tied & (np.cumsum(tied, axis=1, dtype=np.int32) <= k - above.sum(axis=1, keepdims=True)))
    ids = np.nonzero(chosen)[1].reshape(-1, k)
    # Sorting the mirrored rows upwards and mirroring back is a stable sort downwards without changing any sign,
    # which unsigned and boolean scores could not bear.
    upwards = np.argsort(np.take_along_axis(scores, ids, axis=1)[:, ::-1], axis=1, kind="stable")
    return np.take_along_axis(ids, k - 1 - upwards[:, ::-1], axis=1)


class RankedLabels:
    """Predicted and true labels of a set of texts, with the hits all metrics share.

    Args:
        top_k_ids: Label ids of shape (texts, K), best first. A negative id is no prediction, and a label repeated in a
            row counts at its first place only: both are misses.
        true_labels: Label ids of shape (texts, most labels), padded with negative numbers, or one list per text. A
            label given twice for a text counts once.
        num_labels: Size of the label space; by default one more than the highest id seen.

    Attributes:
        ids: Predictions (texts, K) with -1 at every place that holds none.
        hits: Which predictions are true, bool (texts, K).
        true_rows: Text of each true label, ascending.
        true_ids: Id of each true label, ascending within a text.
        true_counts: Number of true labels of each text.
    """

    def __init__(
        self, top_k_ids: ArrayLike, true_labels: ArrayLike | Iterable[Sequence[int]], num_labels: int | None = None
    ):
        predicted = _id_matrix(top_k_ids, "top_k_ids")
        rows, true_ids, num_texts = _true_pairs(true_labels)
        if num_texts != len(predicted) or num_texts == 0:
            raise ValueError(
                f"top_k_ids holds {len(predicted)} texts and true_labels {num_texts}: give both for the same texts, "
                "at least one."
            )
        highest = int(max(predicted.max(initial=0), true_ids.max(initial=0)))
        num_labels = highest + 1 if num_labels is None else _whole_number(num_labels, "num_labels", " or None")
        if highest >= num_labels:
            raise ValueError(
                f"Label id {highest} is outside the {num_labels} labels: ids go from 0 to {num_labels - 1}. "
                "Check that predictions and true labels use the same label space."
            )
        if num_labels * num_texts > np.iinfo(np.int64).max:
            raise ValueError(f"{num_texts} texts times {num_labels} labels exceed 64 bits: renumber the label ids.")
        self.num_texts, self.num_labels = num_texts, num_labels

        by_id = np.argsort(predicted, axis=1, kind="stable")
        in_order = np.take_along_axis(predicted, by_id, axis=1)
        in_order[:, 1:][in_order[:, 1:] == in_order[:, :-1]] = -1
        self.ids = np.empty_like(predicted)
        np.put_along_axis(self.ids, by_id, np.maximum(in_order, -1), axis=1)

        # One number per (text, label) pair keeps sorting and matching free of python loops and of dense matrices.
        pairs = _sorted_once(rows * num_labels + true_ids)
        self.true_rows, self.true_ids = np.divmod(pairs, num_labels)
        self.true_counts = np.bincount(self.true_rows, minlength=num_texts)
        predicted_pairs = np.arange(num_texts)[:, None] * num_labels + self.ids
        # The last pair is only there to be found in vain by what lies beyond all true labels.
        pairs = np.append(pairs, -1)
        self.hits = (pairs[np.searchsorted(pairs[:-1], predicted_pairs)] == predicted_pairs) & (self.ids >= 0)

    def hits_at(self, k: int) -> np.ndarray:
        """Hits among the first `k` predictions, bool (texts, k)."""
        num_predictions = self.ids.shape[1]
        return self.hits[:, : _check_k(k, num_predictions, f"predictions hold only {num_predictions} labels per text")]


def label_id_set(label_ids: ArrayLike, name: str) -> np.ndarray:
    """Ids of a group of labels, ascending and each once. `name` is what an error calls them."""
    ids = np.asarray(label_ids)
    if ids.ndim != 1 or (ids.dtype.kind not in "iu" and ids.size):
        raise ValueError(f"{name} must be a flat array of integer label ids, got {ids.dtype} of shape {ids.shape}.")
    return _sorted_once(ids.astype(np.int64))


def _sorted_once(numbers: np.ndarray) -> np.ndarray:
    # np.unique of numpy 2.3 and later hashes, which takes several times as long as sorting on millions of numbers.
    numbers = np.sort(numbers)
    return numbers[np.diff(numbers, prepend=numbers[:1] - 1) > 0]


def _whole_number(value: Any, name: str, otherwise: str = "") -> int:
    if isinstance(value, bool | np.bool_) or not hasattr(value, "__index__") or value < 1:
        raise ValueError(f"{name}={value!r} must be an integer of at least 1{otherwise}.")
    return operator.index(value)


def _check_k(k: int, most: int, reason: str) -> int:
    k = _whole_number(k, "k")
    if k > most:
        raise ValueError(f"k={k} is too large: {reason}. Ask for a smaller k or give more labels.")
    return k


def _id_matrix(ids: ArrayLike, name: str) -> np.ndarray:
    try:
        matrix = np.asarray(ids)
    except ValueError as error:
        raise ValueError(f"{name} has rows of different lengths. Bring them to one with pad_label_lists.") from error
    if matrix.ndim != 2 or (matrix.dtype.kind not in "iu" and matrix.size):
        raise ValueError(f"{name} must be integer ids, (texts, labels), got {matrix.dtype} of shape {matrix.shape}.")
    return matrix.astype(np.int64)


def _flatten(label_lists: Iterable[Sequence[int]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Length of each list, and all ids one after the other."""
    try:
        lists = list(label_lists)
        lengths = np.fromiter(map(len, lists), dtype=np.int64, count=len(lists))
        # operator.index refuses 1.5, which numpy would silently cut to 1.
        ids = np.fromiter(map(operator.index, chain.from_iterable(lists)), dtype=np.int64, count=int(lengths.sum()))
    except TypeError as error:
        raise ValueError(f"{name} must hold one list of integer label ids per text ({error}).") from error
    return lengths, ids


def _true_pairs(true_labels: Any) -> tuple[np.ndarray, np.ndarray, int]:
    """Text and id of every true label, and the number of texts."""
    if hasattr(true_labels, "__array__") and np.asarray(true_labels).dtype != object:
        padded = _id_matrix(true_labels, "true_labels")
        lengths, ids = np.full(len(padded), padded.shape[1]), padded.ravel()
    else:
        lengths, ids = _flatten(true_labels, "true_labels")
    # A matrix of zeros and ones, as other libraries have it, would be read as the ids 0 and 1.
    if len(lengths) and 2 < lengths.min() == lengths.max() and 1 == ids.max() > ids.min() == 0:
        raise ValueError(
            f"true_labels are {lengths[0]} numbers for each text, all of them 0 or 1. Give label ids: of a multi-hot "
            "matrix, `[np.flatnonzero(row) for row in matrix]`."
        )
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return rows[ids >= 0], ids[ids >= 0], len(lengths)
