"""Texts as sparse rows of weighted token counts."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csc_matrix, csr_matrix
from torch import nn
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling.text_windows import all_token_ids, readable_text
from glocal_xml.modeling.token_counts import TextCounter

_TOKENIZED_AT_ONCE = 1000
_COUNTED_AT_ONCE = 256
# Token ids of texts as one tensor, padded as in batches.
padded_ids: Callable[[Sequence[Any]], torch.Tensor] = XMTCCollator.padded_ids


def whole_text_ids(texts: Iterable[str], tokenizer: PreTrainedTokenizerBase) -> list[np.ndarray]:
    """The ids of all tokens of each text, special ones left out, however long the text is."""
    rows, texts = [], [readable_text(text) for text in texts]
    for start in range(0, len(texts), _TOKENIZED_AT_ONCE):
        found = all_token_ids(tokenizer, texts[start : start + _TOKENIZED_AT_ONCE])
        rows.extend(np.asarray(ids, dtype=np.int32) for ids in found)
    return rows


def document_frequencies(rows: Sequence[np.ndarray], size: int) -> np.ndarray:
    """In how many texts each token occurs, of shape (size,)."""
    found = np.concatenate([np.zeros(0, dtype=np.int32), *(np.unique(row) for row in rows)])
    return np.bincount(found[found < size], minlength=size)


def inverse_frequencies(frequencies: np.ndarray, num_texts: int) -> np.ndarray:
    """Weights of features by the number of texts they occur in; 0 for those that occur in none."""
    return np.where(frequencies > 0, np.log((1 + num_texts) / (1 + frequencies)) + 1, 0).astype(np.float32)


def frequent_pairs(rows: Sequence[np.ndarray], tokens: int, most: int) -> tuple[np.ndarray, np.ndarray]:
    """
    Pairs of neighbouring tokens that occur in at least two texts, as `first * tokens + second`, ascending, and in how
    many texts; at most so many, the most frequent ones.
    """
    per_text = [np.unique(row[:-1].astype(np.int64) * tokens + row[1:]) for row in rows if len(row) > 1]
    keys, counts = np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *per_text]), return_counts=True)
    chosen = np.flatnonzero(counts > 1)
    if len(chosen) > most:
        chosen = np.sort(chosen[np.argsort(-counts[chosen], kind="stable")[:most]])
    return keys[chosen], counts[chosen]


def sparse_rows(rows: Sequence[np.ndarray], counter: TextCounter) -> csr_matrix:
    """What a model counts in these texts, as the rows of a matrix of shape (texts, features)."""
    num_features = len(counter.weights)
    # Texts of similar length are counted together.
    order = np.argsort([len(row) for row in rows], kind="stable")
    features, values, texts = [], [], []
    for start in range(0, len(rows), _COUNTED_AT_ONCE):
        batch = order[start : start + _COUNTED_AT_ONCE]
        found, weights = counter(padded_ids([rows[i] for i in batch]))
        text, place = (weights != 0).nonzero(as_tuple=True)
        features.append(found[text, place].numpy())
        values.append(weights[text, place].numpy())
        texts.append(batch[text.numpy()])
    if not features:
        return csr_matrix((0, num_features), dtype=np.float32)
    matrix = csr_matrix(
        (np.concatenate(values), (np.concatenate(texts), np.concatenate(features))), shape=(len(rows), num_features)
    )
    matrix.sort_indices()
    return matrix


def label_matrix(labels: Sequence[Sequence[int]], num_labels: int) -> csr_matrix:
    """Labels of texts as a matrix of ones, of shape (texts, labels); those beyond the label space are ignored."""
    known = [[label for label in row if label < num_labels] for row in labels]
    starts = np.cumsum([0, *map(len, known)])
    ids = np.fromiter((label for row in known for label in row), dtype=np.int32, count=starts[-1])
    return csr_matrix((np.ones(len(ids), dtype=np.float32), ids, starts), shape=(len(known), num_labels))


def table_tensors(matrix: csr_matrix) -> dict[str, torch.Tensor]:
    """The buffers of a `SparseTable` with the rows of a matrix."""
    columns = matrix.tocsc()
    columns.sort_indices()
    return {
        "starts": torch.from_numpy(columns.indptr.astype(np.int64)),
        "rows": torch.from_numpy(columns.indices.astype(np.int32)),
        "values": torch.from_numpy(columns.data.astype(np.float32)),
    }


def matrix_of(table: nn.Module) -> csr_matrix:
    """The rows of a `SparseTable` as a matrix, of shape (rows, features)."""
    starts, rows, values = (part.cpu().numpy() for part in (table.starts, table.rows, table.values.float()))
    return csc_matrix((values, rows, starts), shape=(table.num_rows, len(starts) - 1)).tocsr()
