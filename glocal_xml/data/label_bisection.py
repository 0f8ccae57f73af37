"""Balanced 2-means under cosine on sparse rows: halves a group of labels so that similar labels stay together."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.utils.extmath import row_norms

_MOST_ROUNDS = 20
_LEAST_GAIN = 1e-4
# Products of larger groups are made of pieces of this many entries: always the same, so that sums do not depend on
# the number of workers.
_PIECE_ENTRIES = 2**22
# Columns are numbered anew where a group has fewer entries than this for each column.
_ENTRIES_PER_COLUMN = 8
# Rows that move are taken out of a piece with more entries than this; for fewer the whole product is faster.
_FEW_ENTRIES = 2**16
_TINY = np.finfo(np.float64).tiny

# `map`, or the `map` of a pool of threads; sparse products leave the interpreter lock to others.
Run = Callable[..., Iterator[Any]]


@dataclass(frozen=True, eq=False)
class LabelGroup:
    """Labels of one node, with ascending ids, and their features; row i times `scales[i]` has length one or zero."""

    labels: np.ndarray  # (labels,)
    rows: csr_matrix  # (labels, columns)
    scales: np.ndarray  # (labels,)

    @property
    def is_one_piece(self) -> bool:
        """Whether the group is so small that its products are not made by several workers."""
        return self.rows.nnz <= _PIECE_ENTRIES

    def take(self, places: np.ndarray) -> "LabelGroup":
        """Returns the group of the labels at these places, with the columns that they use."""
        rows = self.rows[places]
        if rows.nnz < _ENTRIES_PER_COLUMN * rows.shape[1]:
            used = np.zeros(rows.shape[1], dtype=bool)
            used[rows.indices] = True
            # Indexing by columns would take several times as long.
            numbers = np.cumsum(used, dtype=rows.indices.dtype) - 1
            # A group without any entry keeps one column, as a matrix must have one.
            shape = rows.shape[0], max(int(numbers[-1]) + 1, 1)
            rows = csr_matrix((rows.data, np.take(numbers, rows.indices), rows.indptr), shape=shape)
        return LabelGroup(self.labels[places], rows, self.scales[places])


def label_group(rows: csr_matrix) -> LabelGroup:
    """Returns the group of all labels; a label without features gets the scale 0."""
    norms = row_norms(rows)  # (labels,)
    # The inverse of a smaller norm would be infinite.
    scales = np.divide(1, norms, out=np.zeros_like(norms), where=norms >= np.finfo(np.float32).tiny)
    return LabelGroup(np.arange(rows.shape[0]), rows, scales.astype(np.float32))


def bisect(group: LabelGroup, key: tuple[int, ...], run: Run = map) -> tuple[np.ndarray, np.ndarray]:
    """
    Halves a group of two labels or more by 2-means under cosine and returns the places of either half; the first has
    the odd label. `key` seeds the choice of the two labels that are the first means.

    A round takes the labels for the first half whose similarities to the two means differ most, of equal ones the
    lowest ids. The last round is the one that adds less than 0.01 % to the sum of all similarities to the own mean.
    """
    pieces = [(places, rows, rows.T) for places, rows in _row_pieces(group.rows)]

    def scores(direction: np.ndarray) -> np.ndarray:
        return np.concatenate(list(run(lambda piece: piece[1] @ direction, pieces))) * group.scales

    def weighted_sum(weights: np.ndarray) -> np.ndarray:
        weights = weights * group.scales
        # In double precision.
        parts = run(lambda piece: _weighted_sum(piece[1], piece[2], weights[piece[0]]), pieces)
        return sum(parts, np.zeros(group.rows.shape[1]))

    size = (len(group.labels) + 1) // 2
    total = weighted_sum(np.ones(len(group.labels), dtype=np.float32))  # (columns,)
    direction = _first_direction(group, key)
    first = best = np.zeros(len(group.labels), dtype=bool)
    first_sum = np.zeros_like(total)
    similarity = -np.inf
    for _ in range(_MOST_ROUNDS):
        chosen = largest(scores(direction), size)
        # Most labels stay after a few rounds: only those that move change the sums.
        first_sum += weighted_sum(np.subtract(chosen, first, dtype=np.float32))
        first = chosen
        second_sum = total - first_sum
        # Not by BLAS, whose sums depend on the number of its threads.
        first_norm, second_norm = (np.sqrt(np.square(vector).sum()) for vector in (first_sum, second_sum))
        gained = first_norm + second_norm - similarity
        if gained > 0:
            best, similarity = first, first_norm + second_norm
        if gained <= _LEAST_GAIN * similarity:
            break
        direction = first_sum / max(first_norm, _TINY) - second_sum / max(second_norm, _TINY)
        direction = direction.astype(np.float32)
    return np.flatnonzero(best), np.flatnonzero(~best)


def largest(values: np.ndarray, count: int) -> np.ndarray:
    """Returns the mask of the `count` largest values, of equal ones those that come first."""
    threshold = np.partition(values, -count)[-count]
    chosen = values > threshold
    ties = np.flatnonzero(values == threshold)
    chosen[ties[: count - np.count_nonzero(chosen)]] = True
    return chosen


def _first_direction(group: LabelGroup, key: tuple[int, ...]) -> np.ndarray:
    direction = np.zeros(group.rows.shape[1], dtype=np.float32)
    candidates = np.flatnonzero(group.scales)
    if len(candidates) > 1:
        chosen = candidates[np.random.default_rng(key).choice(len(candidates), 2, replace=False)]
        for place, sign in zip(chosen, (1, -1), strict=True):
            entries = slice(group.rows.indptr[place], group.rows.indptr[place + 1])
            direction[group.rows.indices[entries]] += sign * group.scales[place] * group.rows.data[entries]
    return direction


def _row_pieces(rows: csr_matrix) -> Iterator[tuple[slice, csr_matrix]]:
    """Yields views of consecutive rows with about `_PIECE_ENTRIES` entries each."""
    if rows.nnz <= _PIECE_ENTRIES:
        yield slice(0, rows.shape[0]), rows
        return
    cuts = np.searchsorted(rows.indptr, np.arange(_PIECE_ENTRIES, rows.nnz, _PIECE_ENTRIES))
    limits = np.unique([0, *cuts, rows.shape[0]])
    for start, end in pairwise(limits):
        entries = slice(rows.indptr[start], rows.indptr[end])
        arrays = rows.data[entries], rows.indices[entries], rows.indptr[start : end + 1] - rows.indptr[start]
        yield slice(start, end), csr_matrix(arrays, shape=(end - start, rows.shape[1]))


def _weighted_sum(rows: csr_matrix, transposed: csc_matrix, weights: np.ndarray) -> np.ndarray:
    used = np.flatnonzero(weights)
    if rows.nnz > _FEW_ENTRIES and 2 * len(used) < len(weights):
        return rows[used].T @ weights[used]
    return transposed @ weights
