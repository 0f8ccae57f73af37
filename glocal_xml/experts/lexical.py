"""Fitting the lexical expert: a linear support vector machine for each label, and for each node of a tree above."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from joblib import Parallel, delayed
from scipy.sparse import csc_matrix, csr_matrix
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from tqdm.auto import tqdm

from glocal_xml.data import build_label_tree
from glocal_xml.modeling.experts import LexicalExpert
from glocal_xml.modeling.token_counts import TextCounter

from .token_rows import (
    document_frequencies,
    frequent_pairs,
    inverse_frequencies,
    label_matrix,
    matrix_of,
    padded_ids,
    sparse_rows,
    table_tensors,
)

MOST_PAIRS = 200_000
# About as many tokens as titles have; 8 and 32 did as well on held-out training texts of three data sets.
LEAD = 16
CLUSTER_SIZE = 100
# From this many clusters on there is a level above them.
_ONE_LEVEL = 512
_BRANCHING = 64
# Weights nearer to zero change no ranking that counts, and are most of them.
_LEAST_WEIGHT = 0.05
# The dual solver hardly takes longer than with 0.1. The primal one, which scikit-learn prefers for more texts than
# features, stops far from the solution with 0.1 (P@3 77.5 for 78.4 on part of EURLEX57K) and needs longer for it.
_TOLERANCE, _MOST_ROUNDS = 0.01, 200
_FEW_PRODUCTS = 3 * 10**8
# Margins without anything to tell apart.
_YES, _NO = 1.0, -1.0
# Classifiers that a worker fits before it returns them.
_AT_ONCE = 16


def fit_lexical(
    rows: Sequence[np.ndarray],
    labels: Sequence[Sequence[int]],
    num_labels: int,
    tokens: int,
    *,
    num_texts: int | None = None,
    c: float = 1.0,
    pairs: int = MOST_PAIRS,
    lead: int = LEAD,
    cluster_size: int = CLUSTER_SIZE,
    workers: int = -1,
    show_progress: bool = True,
) -> tuple[LexicalExpert, dict[str, Any]]:
    """
    Fits the expert on texts and their labels; the result does not depend on the number of workers.

    Args:
        rows, labels: Ids of all tokens of each text (`whole_text_ids`), and of its labels.
        num_labels, tokens: Number of labels, and size of the vocabulary.
        num_texts: How many of the rows, counted from the first, are texts; others, such as names of labels, count
            nothing in how rare a token is. All by default.
        c: Inverse strength of regularisation.
        pairs: Most pairs of neighbouring tokens that are features too; 0 for none.
        lead: How many of the first tokens of a text are features of their own too; 0 for none.
        cluster_size: Most labels of a cluster; with no more labels than that, all are trained against all texts.
        workers, show_progress: Processes, -1 for one per processor; and whether to show a bar, on a terminal.

    Returns:
        The expert, and its sizes for `config.lexical`.
    """
    counter = _counter(rows[:num_texts], tokens, pairs, lead)
    matrix, truth = sparse_rows(rows, counter), label_matrix(labels, num_labels)
    levels = _levels(matrix, truth, cluster_size, workers, show_progress)
    problems = _problems(truth, levels)
    # Processes take longer to start, and to import what they need, than so little takes to fit.
    workers = 1 if matrix.nnz * sum(len(parents) for parents in levels) < _FEW_PRODUCTS else workers
    weights, biases = _fit_problems(matrix, problems, c, workers, show_progress)
    sizes: dict[str, Any] = {
        "tokens": tokens,
        "pairs": len(counter.pair_keys),
        "lead": lead,
        "levels": [len(parents) for parents in levels[:-1]],
        "entries": [level.nnz for level in weights],
    }
    expert = LexicalExpert(num_labels, **sizes)
    expert.counter.load_state_dict(counter.state_dict())
    for level, (level_weights, level_biases, parents) in enumerate(zip(weights, biases, levels, strict=True)):
        expert.tables[level].load_state_dict(table_tensors(level_weights))
        getattr(expert, f"biases_{level}").copy_(torch.from_numpy(level_biases))
        if level:
            getattr(expert, f"parents_{level}").copy_(torch.from_numpy(parents))
    return expert, sizes


def lexical_with_labels(
    expert: LexicalExpert, sizes: dict[str, Any], kept: Sequence[int], nearest: Sequence[int]
) -> tuple[LexicalExpert, dict[str, Any]]:
    """
    An expert with other labels, and its sizes for `config.lexical`: those `kept`, in their new order, and behind them
    new ones, for each of which `nearest` has the old label in whose cluster it is. A new label has no weights, and the
    answer is no, as for labels without training texts.
    """
    origins, last = [*kept, *nearest], len(expert.tables) - 1
    weights = matrix_of(expert.tables[last])[list(kept)]
    weights.resize(len(origins), weights.shape[1])
    biases, parents = getattr(expert, f"biases_{last}")[list(kept)], getattr(expert, f"parents_{last}")
    biases = torch.cat([biases, biases.new_full((len(nearest),), _NO)])
    return _with_last_level(expert, sizes, weights, biases, parents[origins] if last else parents)


def with_first_texts(
    expert: LexicalExpert, sizes: dict[str, Any], rows: Sequence[np.ndarray], labels: Sequence[Sequence[int]]
) -> tuple[LexicalExpert, dict[str, Any]]:
    """
    Gives labels without weights those of the mean of their first texts, so that the margin is -1 for texts that have
    nothing in common with them and 1 for one that is like it, as if they were trained; with a tree, below the cluster
    that these texts lead to. Other labels stay as they are. Tokens that no text had before count as the rarest.
    """
    last = len(expert.tables) - 1
    weights, truth = matrix_of(expert.tables[last]), label_matrix(labels, expert.num_labels).tocsc()
    new = np.flatnonzero((np.diff(weights.indptr) == 0) & (np.diff(truth.indptr) > 0))
    if not len(new):
        return expert, sizes
    expert = copy.deepcopy(expert).float().cpu()
    tokens = expert.counter.weights[: expert.counter.tokens]
    met = torch.from_numpy(document_frequencies(rows, len(tokens)) > 0)
    tokens[met & (tokens == 0)] = tokens.max()
    means = normalize(truth[:, new].T.tocsr() @ sparse_rows(rows, expert.counter))
    places = csr_matrix((np.full(len(new), _YES - _NO), (new, np.arange(len(new)))), (expert.num_labels, len(new)))
    biases, parents = getattr(expert, f"biases_{last}"), getattr(expert, f"parents_{last}")
    biases[new] = _NO
    if last:
        clusters = expert.logits(padded_ids(rows), last).sigmoid().numpy()  # (texts, clusters)
        parents[new] = torch.from_numpy((truth[:, new].T @ clusters).argmax(axis=1))
    return _with_last_level(expert, sizes, (weights + places @ means).tocsr(), biases, parents)


def _with_last_level(
    expert: LexicalExpert, sizes: dict[str, Any], weights: csr_matrix, biases: torch.Tensor, parents: torch.Tensor
) -> tuple[LexicalExpert, dict[str, Any]]:
    """An expert with other weights, (labels, features), biases and clusters of labels, and its sizes."""
    last = len(expert.tables) - 1
    sizes = {**sizes, "entries": [*sizes["entries"][:-1], weights.nnz]}
    # Of the type that the expert is kept in.
    new = LexicalExpert(len(biases), **sizes).to(expert.counter.weights.dtype)
    table = {f"tables.{last}.{name}": values for name, values in table_tensors(weights).items()}
    new.load_state_dict(expert.state_dict() | table | {f"biases_{last}": biases, f"parents_{last}": parents})
    return new, sizes


def _counter(texts: Sequence[np.ndarray], tokens: int, most_pairs: int, lead: int) -> TextCounter:
    keys, pair_counts = frequent_pairs(texts, tokens, most_pairs) if most_pairs else (np.zeros(0, dtype=np.int64),) * 2
    firsts = [document_frequencies([row[:lead] for row in texts], tokens)] if lead else []
    frequencies = np.concatenate([document_frequencies(texts, tokens), pair_counts, *firsts])
    counter = TextCounter(tokens, len(keys), lead)
    counter.weights.copy_(torch.from_numpy(inverse_frequencies(frequencies, len(texts))))
    counter.pair_keys.copy_(torch.from_numpy(keys))
    return counter


def _levels(
    matrix: csr_matrix, truth: csr_matrix, cluster_size: int, workers: int, show_progress: bool
) -> list[np.ndarray]:
    """The node above each node, level by level from the top, and last the cluster of each label."""
    num_labels = truth.shape[1]
    if num_labels <= cluster_size:
        return [np.zeros(num_labels, dtype=np.int64)]
    tree = build_label_tree(
        normalize(truth.T.tocsr() @ matrix),
        cluster_size=cluster_size,
        height=1 if num_labels <= _ONE_LEVEL * cluster_size else 2,
        branching=_BRANCHING,
        workers=None if workers < 0 else workers,
        show_progress=show_progress,
    )
    levels = [np.zeros(tree.level_sizes[0], dtype=np.int64)]
    for starts in tree.child_starts:
        levels.append(np.repeat(np.arange(len(starts) - 1), np.diff(starts)))
    clusters = np.empty(num_labels, dtype=np.int64)
    clusters[tree.label_order] = levels[-1]
    return [*levels[:-1], clusters]


def _problems(truth: csr_matrix, levels: list[np.ndarray]) -> list[tuple[csr_matrix, np.ndarray, np.ndarray | None]]:
    """
    For each level: which texts belong to its nodes, (texts, nodes); the node above each; and which texts belong to
    the nodes above, (texts, nodes above), where there is a level above.
    """
    members = [truth.tocsc()]
    for parents, above in zip(levels[:0:-1], levels[-2::-1], strict=True):
        up = csr_matrix((np.ones(len(parents)), (np.arange(len(parents)), parents)), shape=(len(parents), len(above)))
        nodes = (members[-1] @ up).tocsc()
        nodes.data[:] = 1
        members.append(nodes)
    members.reverse()
    return list(zip(members, levels, [None, *members[:-1]], strict=True))


def _fit_problems(
    matrix: csr_matrix, problems: list[Any], c: float, workers: int, show_progress: bool
) -> tuple[list[csr_matrix], list[np.ndarray]]:
    """Weights, (nodes, features), and biases, (nodes,), of each level."""
    weights, biases = [], []
    total, disable = sum(own.shape[1] for own, _, _ in problems), None if show_progress else True
    with tqdm(total=total, desc="lexical expert", unit=" classifiers", disable=disable) as progress:
        for own, parents, above in problems:
            found: dict[int, tuple[np.ndarray, np.ndarray, float]] = {}
            tasks = (delayed(_fit_nodes)(*task, c) for task in _tasks(matrix, own, parents, above))
            for fitted in Parallel(workers, return_as="generator")(tasks):
                found |= fitted
                progress.update(len(fitted))
            progress.update(len(parents) - len(found))
            level_weights, level_biases = _assembled(np.diff(own.indptr), found, matrix.shape[1])
            weights.append(level_weights)
            biases.append(level_biases)
    return weights, biases


def _tasks(
    matrix: csr_matrix, own: csc_matrix, parents: np.ndarray, above: csc_matrix | None
) -> Iterator[tuple[csr_matrix, np.ndarray, np.ndarray, csc_matrix]]:
    """Texts, the features that their columns are, nodes that are trained against the same texts, and who has these."""
    counts, order = np.diff(own.indptr), np.argsort(parents, kind="stable")
    present, starts = np.unique(parents[order], return_index=True)
    for parent, nodes in zip(present, np.split(order, starts[1:]), strict=True):
        texts = np.arange(own.shape[0]) if above is None else np.sort(above[:, [parent]].indices)
        # All texts alike: there is nothing to tell apart.
        nodes = nodes[(counts[nodes] > 0) & (counts[nodes] < len(texts))]
        if not len(nodes):
            continue
        rows = matrix[texts]
        # liblinear is faster without the features that do not occur.
        used = np.unique(rows.indices)
        rows = rows[:, used].astype(np.float64)
        # The few nodes of a first level have all texts, and take longest.
        size = min(_AT_ONCE, max(1, len(nodes) // 8))
        for start in range(0, len(nodes), size):
            chunk = nodes[start : start + size]
            yield rows, used, chunk, own[:, chunk].tocsr()[texts].tocsc()


def _fit_nodes(
    rows: csr_matrix, used: np.ndarray, nodes: np.ndarray, truth: csc_matrix, c: float
) -> dict[int, tuple[np.ndarray, np.ndarray, float]]:
    """Features with weights, the weights and the bias of each node, from which texts, (texts, nodes), belong to it."""
    found = {}
    for place, node in enumerate(nodes.tolist()):
        # The seed makes each fit the same whichever process does it.
        machine = LinearSVC(C=c, dual=True, tol=_TOLERANCE, max_iter=_MOST_ROUNDS, random_state=0)
        one = machine.fit(rows, truth[:, [place]].toarray()[:, 0])
        large = np.flatnonzero(np.abs(one.coef_[0]) > _LEAST_WEIGHT)
        found[node] = (used[large], one.coef_[0][large].astype(np.float32), float(one.intercept_[0]))
    return found


def _assembled(counts: np.ndarray, found: dict[int, Any], num_features: int) -> tuple[csr_matrix, np.ndarray]:
    """One matrix of all nodes of a level; a node without a classifier has a bias alone."""
    nothing = (np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.float32))
    # Of a node that all texts of its parent have: yes; of one that no text has: no.
    parts = [found.get(node, (*nothing, _YES if count else _NO)) for node, count in enumerate(counts)]
    starts = np.cumsum([0, *(len(columns) for columns, _, _ in parts)])
    columns, values = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
    matrix = csr_matrix((values, columns, starts), shape=(len(parts), num_features))
    return matrix, np.array([bias for _, _, bias in parts], dtype=np.float32)
