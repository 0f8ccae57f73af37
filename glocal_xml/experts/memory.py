"""The memory expert: training texts as sparse rows that can be added and removed without training."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix, vstack
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import MemoryExpert, TextCounter

from .fit_blend import log_frequencies
from .lexical import with_first_texts
from .token_rows import (
    document_frequencies,
    inverse_frequencies,
    label_matrix,
    matrix_of,
    padded_ids,
    sparse_rows,
    table_tensors,
    whole_text_ids,
)

NEIGHBORS, POWER = 50, 4.0
# Of the tokens that count. On held-out training texts fewer suit debtags, more EURLEX57K: a compromise.
LEAD = 8
# Tokens that occur in more texts than this share tell little, and would take most of the time.
_MOST_TEXTS = 0.1
# Texts that are looked up at once, and the similarity of equal texts.
_LOOKED_UP, _SAME_TEXT = 64, 0.9999


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
        rows: Ids of all tokens of each text (`whole_text_ids`).
        labels: Label ids of each text.
        num_labels: Number of labels.
        tokens: Size of the vocabulary.
        num_texts: How many of the rows, counted from the first, are texts; others, such as names of labels, are
            remembered, and count nothing in how rare a token is. All by default.
        ignored: Ids of tokens that count only if texts have them: special ones. Others that no text has count as the
            rarest, so that texts that are added later are found by them.
        neighbors: How many texts vote.
        power: Power of the similarity in a vote.
        lead: How many of the first tokens that count are features of their own too; 0 for none.

    Returns:
        The expert, and its sizes for `config.memory`.
    """
    texts = rows[:num_texts]
    weights = _rarities(texts, tokens, ignored)
    counter = TextCounter(tokens, lead=lead)
    firsts = [_rarities([row[weights[row] != 0][:lead] for row in texts], tokens, ignored)] if lead else []
    counter.weights.copy_(torch.from_numpy(np.concatenate([weights, *firsts])))
    numbers = np.arange(len(rows))
    numbers[len(texts) :] = -1
    return _made(
        counter, sparse_rows(rows, counter), label_matrix(labels, num_labels), numbers, neighbors, power, num_labels
    )


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
    Adds texts to the memory of a model: their labels are found from now on.

    Args:
        model: A model with a memory.
        rows: Ids of all tokens of each text (`whole_text_ids`).
        labels: Label ids of each text.
        numbers: The number of each text in explanations; by default they continue after the highest one.
    """
    memory = _memory(model)
    if numbers is None:
        first = max([-1, *memory.text_numbers.tolist()]) + 1
        numbers = range(first, first + len(rows))
    texts = vstack([matrix_of(memory.texts), sparse_rows(rows, copy.deepcopy(memory.counter).cpu())]).tocsr()
    known = vstack([_label_matrix(memory), label_matrix(labels, memory.num_labels)]).tocsr()
    all_numbers = np.concatenate([memory.text_numbers.cpu().numpy(), np.asarray(numbers, dtype=np.int64)])
    _take(model, memory, texts, known, all_numbers)


def remember(
    model: XMTCPreTrainedModel,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    labels: Sequence[Sequence[str]],
) -> LabelSpace:
    """
    Adds texts with the names of their labels to the memory of a model, numbered on from the last. Labels that had no
    text before get the mean of these texts in the lexical expert, whose word counts most in many a blend, and are as
    frequent as these texts make them; others stay as they were trained.

    Returns:
        The label space with these texts counted.
    """
    ids = [label_space.encode(names) for names in labels]
    rows = whole_text_ids(texts, tokenizer)
    add_to_memory(model, rows, ids)
    added = np.bincount(
        np.array([label for row in ids for label in row], dtype=np.int64), minlength=model.config.num_labels
    )
    counts = np.asarray(label_space.counts) + added
    if model.lexical is not None:
        dtype = model.lexical.counter.weights.dtype
        expert, sizes = with_first_texts(model.lexical, model.config.lexical, rows, ids)
        model.set_expert("lexical", expert.to(dtype), sizes)
    result = LabelSpace(label_space.names, counts.tolist(), label_space.num_texts + len(texts))
    if model.config.blend is not None:
        is_new = torch.from_numpy((np.asarray(label_space.counts) == 0) & (added > 0)).to(model.device)
        frequencies = torch.as_tensor(log_frequencies(result)).to(model.log_frequencies)
        model.set_blend(model.config.blend, torch.where(is_new, frequencies, model.log_frequencies))
    return result


def remove_from_memory(model: XMTCPreTrainedModel, numbers: Sequence[int]) -> int:
    """Removes the texts of these numbers from the memory of a model; returns how many there were."""
    memory = _memory(model)
    found = memory.text_numbers.cpu().numpy()
    kept = np.flatnonzero(~np.isin(found, np.asarray(numbers)))
    _take(model, memory, matrix_of(memory.texts)[kept], _label_matrix(memory)[kept], found[kept])
    return len(found) - len(kept)


def texts_in_memory(model: XMTCPreTrainedModel, rows: Sequence[np.ndarray]) -> np.ndarray:
    """Which texts, given as the ids of all of their tokens, the memory of a model holds already, (texts,)."""
    memory = _memory(model)
    if not memory.texts.num_rows or not len(rows):
        return np.zeros(len(rows), dtype=bool)
    parts = [rows[start : start + _LOOKED_UP] for start in range(0, len(rows), _LOOKED_UP)]
    nearest = [memory.similar(padded_ids(part).to(model.device), 1)[0][:, 0].cpu() for part in parts]
    return torch.cat(nearest).numpy() > _SAME_TEXT


def memory_with_labels(memory: MemoryExpert, kept: Sequence[int], added: int) -> tuple[MemoryExpert, dict[str, Any]]:
    """
    A memory with other labels, and its sizes for `config.memory`. Texts that lose all of their labels are forgotten.

    Args:
        memory: The memory.
        kept: Ids of the labels that stay, in their new order.
        added: How many labels, which no text has yet, come behind them.
    """
    before = _label_matrix(memory)
    labels = before[:, list(kept)]
    labels.resize(labels.shape[0], len(kept) + added)
    texts = np.flatnonzero((np.diff(labels.indptr) > 0) | (np.diff(before.indptr) == 0))
    numbers = memory.text_numbers.cpu().numpy()[texts]
    expert, sizes = _made(
        memory.counter, matrix_of(memory.texts)[texts], labels[texts], numbers, memory.neighbors, memory.power,
        len(kept) + added,
    )  # fmt: skip
    return expert.to(memory.counter.weights.dtype), sizes


def _memory(model: XMTCPreTrainedModel) -> MemoryExpert:
    if model.memory is None:
        raise ValueError("This model has no memory of texts: train it with the expert `memory`.")
    return model.memory


def _label_matrix(memory: MemoryExpert) -> csr_matrix:
    starts, ids = memory.label_starts.cpu().numpy(), memory.label_ids.cpu().numpy()
    return csr_matrix((np.ones(len(ids), dtype=np.float32), ids, starts), shape=(len(starts) - 1, memory.num_labels))


def _take(
    model: XMTCPreTrainedModel, memory: MemoryExpert, texts: csr_matrix, labels: csr_matrix, numbers: np.ndarray
) -> None:
    expert, sizes = _made(memory.counter, texts, labels, numbers, memory.neighbors, memory.power, memory.num_labels)
    model.set_expert("memory", expert, sizes)


def _made(
    counter: TextCounter,
    texts: csr_matrix,
    labels: csr_matrix,
    numbers: np.ndarray,
    neighbors: int,
    power: float,
    num_labels: int,
) -> tuple[MemoryExpert, dict[str, Any]]:
    labels.sort_indices()
    sizes = {
        "tokens": counter.tokens,
        "texts": texts.shape[0],
        "entries": texts.nnz,
        "labels": labels.nnz,
        "neighbors": neighbors,
        "power": power,
        "lead": counter.lead,
    }
    expert = MemoryExpert(num_labels, **sizes)
    expert.counter.load_state_dict(counter.state_dict())
    expert.texts.load_state_dict(table_tensors(texts))
    expert.text_numbers.copy_(torch.from_numpy(numbers))
    expert.label_starts.copy_(torch.from_numpy(labels.indptr.astype(np.int64)))
    expert.label_ids.copy_(torch.from_numpy(labels.indices.astype(np.int32)))
    return expert, sizes
