"""Memories of training texts, to which texts can be added and from which they can be removed without training."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import MEMORY, DenseMemory, MemoryExpert, TextMemory

from .token_rows import (
    document_frequencies,
    inverse_frequencies,
    label_matrix,
    matrix_of,
    padded_ids,
    sparse_rows,
    table_tensors,
)

NEIGHBORS, POWER = 50, 4.0
# Of the tokens that count. On held-out training texts fewer suit debtags, more EURLEX57K: a compromise.
LEAD = 8
# Tokens that occur in more texts than this share tell little, and would take most of the time.
_MOST_TEXTS = 0.1
# Texts that are looked up at once, and the similarity of equal texts.
_LOOKED_UP, _SAME_TEXT = 64, 0.9999
_NO_MEMORY = "This model has no memory of texts: train it with the expert `memory`."


def fit_memory(
    rows: Sequence[np.ndarray],
    labels: Sequence[Sequence[int]],
    num_labels: int,
    tokens: int,
    *,
    num_texts: int | None = None,
    ignored: Sequence[int] = (),
    neighbors: int = NEIGHBORS,
    power: float = POWER,
    lead: int = LEAD,
) -> tuple[MemoryExpert, dict[str, Any]]:
    """
    A memory of texts and their labels.

    Args:
        rows, labels: Ids of all tokens of each text (`whole_text_ids`), and of its labels.
        num_labels, tokens: Number of labels, and size of the vocabulary.
        num_texts: How many of the rows, counted from the first, are texts; others, such as names of labels, are
            remembered, and count nothing in how rare a token is. All by default.
        ignored: Ids of tokens that count only if texts have them: special ones. Others that no text has count as the
            rarest, so that texts that are added later are found by them.
        neighbors, power: How many texts vote, and the power of the similarity in a vote.
        lead: How many of the first tokens that count are features of their own too; 0 for none.

    Returns:
        The expert, and its sizes for `config.memory`.
    """
    texts = rows[:num_texts]
    weights = _rarities(texts, tokens, ignored)
    firsts = [_rarities([row[weights[row] != 0][:lead] for row in texts], tokens, ignored)] if lead else []
    memory = MemoryExpert(num_labels, tokens, 0, 0, 0, neighbors, power, lead)
    memory.counter.weights.copy_(torch.from_numpy(np.concatenate([weights, *firsts])))
    numbers = np.arange(len(rows))
    numbers[len(texts) :] = -1
    return memory_like(memory, sparse_rows(rows, memory.counter), label_matrix(labels, num_labels), numbers)


def _rarities(texts: Sequence[np.ndarray], tokens: int, ignored: Sequence[int]) -> np.ndarray:
    """Weights of tokens by how many of the texts have them, (tokens,): 0 for those that very many have."""
    frequencies = document_frequencies(texts, tokens)
    weights = inverse_frequencies(frequencies, len(texts))
    unseen = frequencies == 0
    unseen[[token for token in ignored if token < tokens]] = False
    weights[unseen] = np.log(1 + len(texts)) + 1
    weights[frequencies > max(_MOST_TEXTS * len(texts), 5)] = 0
    return weights


def add_to_memory(
    model: XMTCPreTrainedModel,
    rows: Sequence[np.ndarray],
    labels: Sequence[Sequence[int]],
    numbers: Sequence[int] | None = None,
) -> None:
    """
    Adds texts, given as the ids of all of their tokens (`whole_text_ids`), to the memory of words of a model: their
    labels are found from now on. The numbers of texts in explanations continue by default after the highest one.
    """
    if model.memory is None:
        raise ValueError(_NO_MEMORY)
    counter = copy.deepcopy(model.memory.counter).cpu()
    model.set_expert(MEMORY, *extended(model.memory, sparse_rows(rows, counter), labels, numbers))


def remove_from_memory(model: XMTCPreTrainedModel, numbers: Sequence[int]) -> int:
    """Removes the texts of these numbers from the memories of a model; returns how many there were."""
    removed: set[int] = set()
    for name, memory in memories_of(model).items():
        found = memory.text_numbers.cpu().numpy()
        gone = np.isin(found, np.asarray(numbers))
        kept = np.flatnonzero(~gone)
        model.set_expert(name, *memory_like(memory, _texts(memory)[kept], _label_matrix(memory)[kept], found[kept]))
        removed |= set(found[gone].tolist())
    return len(removed)


def texts_in_memory(model: XMTCPreTrainedModel, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Which texts, given as the ids of all of their tokens, the memory expert of a model holds already, (texts,)."""
    return _nearest(model, rows)[0] > _SAME_TEXT


def forget_texts(model: XMTCPreTrainedModel, rows: Sequence[np.ndarray]) -> int:
    """Removes texts, given as the ids of all of their tokens, from the memories of a model; returns how many."""
    total = 0
    while True:
        similarities, places = _nearest(model, rows)
        memory: MemoryExpert = model.memory
        numbers = memory.text_numbers.cpu().numpy()[places[similarities > _SAME_TEXT]]
        # Names of labels stay.
        removed = remove_from_memory(model, numbers[numbers >= 0])
        total += removed
        # A text may be there several times.
        if not removed:
            return total


def _nearest(model: XMTCPreTrainedModel, rows: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Similarity and row of the most similar text of a memory for each text, (texts,) both."""
    if model.memory is None:
        raise ValueError(_NO_MEMORY)
    memory: MemoryExpert = model.memory
    if not memory.texts.num_rows or not len(rows):
        return np.zeros(len(rows)), np.zeros(len(rows), dtype=np.int64)
    parts = [rows[start : start + _LOOKED_UP] for start in range(0, len(rows), _LOOKED_UP)]
    found = [memory.similar(padded_ids(part).to(model.device), 1) for part in parts]
    similarities, places = (torch.cat([pair[i][:, 0] for pair in found]).cpu().numpy() for i in (0, 1))
    return similarities, places


def memory_with_labels(memory: TextMemory, kept: Sequence[int], added: int) -> tuple[TextMemory, dict[str, Any]]:
    """
    A memory with other labels, and its sizes for the configuration: those `kept`, in their new order, and behind them
    so many that no text has yet. Texts that lose all of their labels are forgotten.
    """
    before = _label_matrix(memory)
    labels = before[:, list(kept)]
    labels.resize(labels.shape[0], len(kept) + added)
    left = np.flatnonzero((np.diff(labels.indptr) > 0) | (np.diff(before.indptr) == 0))
    return memory_like(memory, _texts(memory)[left], labels[left], memory.text_numbers.cpu().numpy()[left])


def extended(
    memory: TextMemory,
    texts: csr_matrix | np.ndarray,
    labels: Sequence[Sequence[int]],
    numbers: Sequence[int] | None = None,
) -> tuple[TextMemory, dict[str, Any]]:
    """A memory with further texts, given as it keeps them, and its sizes for the configuration."""
    known = memory.text_numbers.cpu().numpy()
    if numbers is None:
        numbers = np.arange(len(labels)) + max([-1, *known]) + 1
    stack = vstack if isinstance(memory, MemoryExpert) else np.concatenate
    all_labels = vstack([_label_matrix(memory), label_matrix(labels, memory.num_labels)]).tocsr()
    all_numbers = np.concatenate([known, np.asarray(numbers, dtype=np.int64)])
    return memory_like(memory, stack([_texts(memory), texts]), all_labels, all_numbers)


def memory_like(
    memory: TextMemory, texts: csr_matrix | np.ndarray, labels: csr_matrix, numbers: np.ndarray
) -> tuple[TextMemory, dict[str, Any]]:
    """A memory of other texts and labels with the settings of this one, and its sizes for the configuration."""
    labels.sort_indices()
    votes = {"neighbors": memory.neighbors, "power": memory.power}
    sizes: dict[str, Any] = {"texts": texts.shape[0], "labels": labels.nnz, **votes}
    if isinstance(memory, MemoryExpert):
        sizes |= {"tokens": memory.counter.tokens, "entries": texts.nnz, "lead": memory.counter.lead}
        new = MemoryExpert(labels.shape[1], **sizes)
        new.counter.load_state_dict(memory.counter.state_dict())
        new.texts.load_state_dict(table_tensors(texts.tocsr()))
    else:
        sizes["size"] = texts.shape[1]
        new = DenseMemory(labels.shape[1], **sizes)
        new.center.copy_(memory.center)
        new.directions.copy_(torch.from_numpy(texts))
    new.text_numbers.copy_(torch.from_numpy(numbers))
    new.label_starts.copy_(torch.from_numpy(labels.indptr.astype(np.int64)))
    new.label_ids.copy_(torch.from_numpy(labels.indices.astype(np.int32)))
    # As the old one is kept; integers stay what they are.
    return new.to(next(part for part in memory.buffers() if part.is_floating_point()).dtype), sizes


def memories_of(model: XMTCPreTrainedModel) -> dict[str, TextMemory]:
    memories = {name: expert for name, expert in model.text_experts().items() if isinstance(expert, TextMemory)}
    if not memories:
        raise ValueError("This model has no memory of texts: train it with the experts `memory` or `dense`.")
    return memories


def _texts(memory: TextMemory) -> csr_matrix | np.ndarray:
    """What a memory keeps of its texts, a row for each."""
    return matrix_of(memory.texts) if isinstance(memory, MemoryExpert) else memory.directions.float().cpu().numpy()


def _label_matrix(memory: TextMemory) -> csr_matrix:
    starts, ids = memory.label_starts.cpu().numpy(), memory.label_ids.cpu().numpy()
    return csr_matrix((np.ones(len(ids), dtype=np.float32), ids, starts), shape=(len(starts) - 1, memory.num_labels))
