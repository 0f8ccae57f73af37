"""Label trees: balanced clusters of similar labels, and a few wide levels above them."""

import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.sparse import csr_matrix, issparse
from tqdm.auto import tqdm

from ..atomic_file import open_atomically
from .array_files import read_arrays
from .label_bisection import LabelGroup, bisect, label_group


@dataclass(frozen=True, eq=False)
class LabelTree:
    """Inner levels of a tree over labels from the top, the root left out.

    Args:
        child_starts: `child_starts[h][i]:child_starts[h][i + 1]` are the children of node i of level h: nodes of level
            h + 1, for the last level places in `label_order`.
        label_order: The labels in the order of the leaves, with ascending ids within a cluster.
    """

    child_starts: tuple[np.ndarray, ...]  # each (nodes of the level + 1,)
    label_order: np.ndarray  # (labels,)

    def __post_init__(self) -> None:
        arrays = [*self.child_starts, self.label_order]
        if not self.child_starts or any(array.dtype != np.int64 or array.ndim != 1 for array in arrays):
            raise ValueError("a label tree has at least one level, and all of its arrays are int64 of one dimension")
        below = [*(len(starts) - 1 for starts in self.child_starts[1:]), len(self.label_order)]
        for level, (starts, nodes) in enumerate(zip(self.child_starts, below, strict=True)):
            if len(starts) < 2 or starts[0] != 0 or starts[-1] != nodes or (np.diff(starts) < 1).any():
                raise ValueError(f"child_starts[{level}] must rise from 0 to {nodes}, the number of nodes below")
        if not np.array_equal(np.sort(self.label_order), np.arange(self.num_labels)):
            raise ValueError(f"label_order must hold every label from 0 to {self.num_labels - 1} once")

    @property
    def num_labels(self) -> int:
        """Labels of the tree."""
        return len(self.label_order)

    @property
    def level_sizes(self) -> list[int]:
        """Nodes of each inner level, from the top; the last are the clusters."""
        return [len(starts) - 1 for starts in self.child_starts]

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tree to an .npz file, replacing the file in one step."""
        levels = {f"child_starts_{level}": starts for level, starts in enumerate(self.child_starts)}
        with open_atomically(path) as file:
            np.savez(file, label_order=self.label_order, **levels)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "LabelTree":
        """Reads what `save` wrote."""
        try:
            arrays = read_arrays(path)
            starts = tuple(arrays.pop(f"child_starts_{level}") for level in range(len(arrays) - 1))
            return cls(starts, arrays.pop("label_order"))
        except (ValueError, KeyError) as error:
            raise ValueError(
                f"{os.fspath(path)} does not hold a whole label tree ({error}); build it again and save it"
            ) from error


def build_label_tree(
    features: csr_matrix | np.ndarray,
    *,
    cluster_size: int = 100,
    height: int = 1,
    branching: int = 16,
    seed: int = 0,
    workers: int | None = None,
    show_progress: bool = True,
) -> LabelTree:
    """Builds a shallow and wide tree over labels.

    Labels are halved by balanced 2-means under cosine until no part has more than `cluster_size` labels
    ([Parabel](https://doi.org/10.1145/3178876.3185998)); all parts are halved equally often, so that the sizes of
    clusters differ by at most one. Of the generations above the clusters every log2(`branching`)-th is kept
    (algorithm 1 of LightAttention, as in [AttentionXML](https://arxiv.org/abs/1811.01727)). The result depends on
    features and seed alone, not on `workers`.

    Args:
        features: A row for each label, at any scale, such as `label_features_from_texts` gives, or embeddings of label
            names. Labels with a row of zeros fill up the clusters. Sparse rows are never made dense.
        cluster_size: Most labels of a cluster.
        height: Levels to keep, the clusters included and the root not: 1 is LightXML's clusters, 3 is usual at half a
            million labels. Fewer where the generations do not suffice.
        branching: Children of a node above the clusters, a power of two; the root may have fewer or, in the end, more.
        seed: Seeds the choice of the first means.
        workers: Threads; by default one for each processor.
    """
    workers = (os.cpu_count() or 1) if workers is None else workers
    _check_options(cluster_size, height, branching, seed, workers)
    rows = _checked_features(features)
    num_labels = rows.shape[0]
    kept = _kept_generations(num_labels, cluster_size, height, branching)
    generations = kept[-1]
    groups = [label_group(rows)]
    del rows
    bar = {"desc": "label tree", "unit": " placements", "disable": None if show_progress else True}
    with tqdm(total=num_labels * generations, **bar) as progress:
        clusters = _clusters(groups, generations, seed, workers, progress)
    inner = [np.arange((1 << upper) + 1, dtype=np.int64) << (lower - upper) for upper, lower in pairwise(kept)]
    starts = np.cumsum([0, *map(len, clusters)], dtype=np.int64)
    return LabelTree((*inner, starts), np.concatenate(clusters))


def _clusters(groups: list[LabelGroup], generations: int, seed: int, workers: int, progress: tqdm) -> list[np.ndarray]:
    """Returns the labels of each cluster; takes the group of all labels out of `groups`, to free its rows early."""
    # Groups of one piece are left to a worker each; larger ones are halved one by one, with all workers on one.
    below: dict[Future, tuple[int, int]] = {}
    with ThreadPoolExecutor(workers) as pool:
        try:
            waiting = deque([(0, 0, groups.pop())])
            while waiting:
                generation, index, group = waiting.popleft()
                if group.is_one_piece or generation == generations - 1:
                    future = pool.submit(_clusters_below, group, generation, index, generations, seed)
                    below[future] = generation, index
                else:
                    halves = pool.map(group.take, bisect(group, (seed, generation, index), pool.map))
                    waiting.extend((generation + 1, 2 * index + side, half) for side, half in enumerate(halves))
                    progress.update(len(group.labels))
                # Else its rows would live until the next one is halved.
                del group
            for future in as_completed(below):
                num_labels = sum(map(len, future.result()))
                progress.update(num_labels * (generations - below[future][0]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    ordered = sorted(below, key=lambda future: below[future][1] << (generations - below[future][0]))
    return [cluster for future in ordered for cluster in future.result()]


def _clusters_below(group: LabelGroup, generation: int, index: int, generations: int, seed: int) -> list[np.ndarray]:
    halves = bisect(group, (seed, generation, index))
    if generation == generations - 1:
        return [group.labels[places] for places in halves]
    return [
        cluster
        for side, places in enumerate(halves)
        for cluster in _clusters_below(group.take(places), generation + 1, 2 * index + side, generations, seed)
    ]


def tree_level_sizes(
    num_labels: int, *, cluster_size: int = 100, height: int = 1, branching: int = 16, seed: int = 0
) -> list[int]:
    """The `level_sizes` of the tree that `build_label_tree` builds with these options, which need no features."""
    _check_options(cluster_size, height, branching, seed, workers=1)
    return [1 << generation for generation in _kept_generations(num_labels, cluster_size, height, branching)]


def _kept_generations(num_labels: int, cluster_size: int, height: int, branching: int) -> range:
    """Algorithm 1 of LightAttention: every c-th generation above the clusters, which come last; `branching` = 2^c."""
    if num_labels <= cluster_size:
        raise ValueError(
            f"there are {num_labels} labels and cluster_size is {cluster_size}, which makes a single cluster; "
            "use the model without a tree, or smaller clusters"
        )
    generations = 1
    while -(-num_labels >> generations) > cluster_size:
        generations += 1
    return range(generations, 0, -(branching.bit_length() - 1))[:height][::-1]


def _check_options(cluster_size: int, height: int, branching: int, seed: int, workers: int) -> None:
    lowest = {"cluster_size": (cluster_size, 2), "height": (height, 1), "seed": (seed, 0), "workers": (workers, 1)}
    for name, (value, least) in lowest.items():
        if value < least:
            raise ValueError(f"{name} is {value}, it must be at least {least}")
    if branching < 2 or branching & (branching - 1):
        raise ValueError(f"branching is {branching}, it must be a power of two, as parts are halved; take 16 or 32")


def _checked_features(features: csr_matrix | np.ndarray) -> csr_matrix:
    if features.ndim != 2 or 0 in features.shape:
        raise ValueError(f"features have the shape {features.shape}; give a row of at least one number for each label")
    if issparse(features):
        rows = csr_matrix(features, dtype=np.float32)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
    else:
        # All entries; looking for zeros, as scipy does, would take several times the memory.
        num_rows, num_columns = features.shape
        index = np.int32 if features.size <= np.iinfo(np.int32).max else np.int64
        columns = np.tile(np.arange(num_columns, dtype=index), num_rows)
        starts = np.arange(0, features.size + 1, num_columns, dtype=index)
        values = np.asarray(features, dtype=np.float32).ravel()
        rows = csr_matrix((values, columns, starts), shape=features.shape)
    if not np.isfinite(rows.data).all():
        raise ValueError("features hold values that are infinite or not a number; give finite ones")
    return rows
