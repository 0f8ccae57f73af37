"""Label trees: every label in one leaf, balance, levels, determinism, similar labels together, and the file."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix

from glocal_xml.data import LabelTree, build_label_tree, label_bisection, label_tree

quick = settings(deadline=None, max_examples=50)


@st.composite
def sparse_features(draw, least=3):
    """A few small whole numbers for each label, so that ties, equal labels and labels without features occur."""
    num_labels, num_columns = draw(st.integers(least, 150)), draw(st.integers(1, 12))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    dense = rng.integers(-1, 4, (num_labels, num_columns)) * (rng.random((num_labels, num_columns)) < 0.3)
    dense[rng.random(num_labels) < draw(st.sampled_from([0, 0.3, 1]))] = 0
    return dense.astype(np.float32)


def clusters(tree):
    return np.split(tree.label_order, tree.child_starts[-1][1:-1])


def same(tree, other):
    arrays = zip([*tree.child_starts, tree.label_order], [*other.child_starts, other.label_order], strict=True)
    return all(np.array_equal(ours, theirs) for ours, theirs in arrays)


@pytest.fixture
def small_pieces(monkeypatch):
    """The way of large groups for small ones: several pieces, rows that move taken out, columns numbered anew."""
    monkeypatch.setattr(label_bisection, "_PIECE_ENTRIES", 30)
    monkeypatch.setattr(label_bisection, "_FEW_ENTRIES", 0)


@quick
@given(
    features=sparse_features(),
    cluster_size=st.integers(2, 20),
    height=st.integers(1, 4),
    step=st.integers(1, 4),
    seed=st.integers(0, 5),
)
def test_every_label_has_one_leaf_and_all_is_balanced(features, cluster_size, height, step, seed):
    num_labels = len(features)
    if num_labels <= cluster_size:
        return
    options = {"cluster_size": cluster_size, "height": height, "branching": 2**step, "seed": seed}
    tree = build_label_tree(csr_matrix(features), workers=2, **options)
    assert tree.num_labels == num_labels and sorted(tree.label_order) == list(range(num_labels))
    sizes = [len(cluster) for cluster in clusters(tree)]
    depth = next(depth for depth in range(1, 20) if -(-num_labels // 2**depth) <= cluster_size)
    assert len(sizes) == 2**depth and min(sizes) >= 1 and max(sizes) <= cluster_size and max(sizes) - min(sizes) <= 1
    assert all((np.diff(cluster) > 0).all() for cluster in clusters(tree))
    kept = [depth - step * level for level in range(height) if depth - step * level > 0]
    assert tree.level_sizes == [2**generation for generation in reversed(kept)]
    for starts in tree.child_starts[:-1]:
        assert set(np.diff(starts)) == {2**step}


@settings(deadline=None, max_examples=15)
@given(features=sparse_features(), seed=st.integers(0, 5))
def test_the_tree_does_not_depend_on_runs_workers_or_storage(features, seed):
    options = {"cluster_size": 2, "height": 2, "branching": 2, "seed": seed}
    tree = build_label_tree(csr_matrix(features), workers=1, **options)
    assert same(tree, build_label_tree(csr_matrix(features), workers=1, **options))
    assert same(tree, build_label_tree(csr_matrix(features), workers=4, **options))
    assert same(tree, build_label_tree(features, workers=2, **options))
    assert same(tree, build_label_tree(csr_matrix(features).tocsc(), workers=2, **options))
    # Powers of two change no digit: what counts is the direction.
    scales = 2.0 ** np.random.default_rng(seed).integers(-9, 9, (len(features), 1))
    assert same(tree, build_label_tree(features * scales, workers=2, **options))


def test_workers_do_not_change_large_groups(small_pieces):
    features = csr_matrix(np.random.default_rng(0).random((90, 10)) ** 4)
    trees = [build_label_tree(features, cluster_size=5, workers=workers) for workers in (1, 2, 5)]
    assert same(trees[0], trees[1]) and same(trees[0], trees[2])


def test_neither_features_nor_their_order_are_touched():
    features = csr_matrix(np.random.default_rng(0).random((40, 10)))
    # Indices out of order and a value in two parts, as scipy allows.
    features.indices = features.indices.reshape(40, 10)[:, ::-1].ravel().copy()
    features.indices[1] = features.indices[0]
    before = features.copy()
    tree = build_label_tree(features, cluster_size=10)
    assert (features.data == before.data).all() and (features.indices == before.indices).all()
    assert same(tree, build_label_tree(before.toarray(), cluster_size=10))


def plain_clusters(features, cluster_size, seed):
    """Recursive balanced 2-means as one would write it down, in double precision."""
    norms = np.linalg.norm(features.astype(np.float64), axis=1)
    unit = [row / norm if norm else row for row, norm in zip(features.astype(np.float64), norms, strict=True)]
    largest = cluster_size + 1
    depth = 0
    while largest > cluster_size:
        depth += 1
        largest = -(-len(features) // 2**depth)

    def halve(labels, generation, index):
        if generation == depth:
            return [labels]
        candidates = [label for label in labels if norms[label]]
        rng = np.random.default_rng([seed, generation, index])
        means = [unit[candidates[place]] for place in rng.choice(len(candidates), 2, replace=False)]
        best, found = -np.inf, None
        for _ in range(20):
            order = sorted(labels, key=lambda label: (unit[label] @ means[1] - unit[label] @ means[0], label))
            halves = [sorted(order[: (len(labels) + 1) // 2]), sorted(order[(len(labels) + 1) // 2 :])]
            sums = [sum(unit[label] for label in half) for half in halves]
            similarity = sum(np.linalg.norm(vector) for vector in sums)
            gained, best, found = max(
                (similarity - best, similarity, halves), (0, best, found), key=lambda row: row[1]
            )
            if gained <= 1e-4 * best:
                break
            means = [vector / np.linalg.norm(vector) for vector in sums]
        return halve(found[0], generation + 1, 2 * index) + halve(found[1], generation + 1, 2 * index + 1)

    return halve(list(range(len(features))), 0, 0)


@pytest.mark.parametrize("way", ["small groups", "large groups"])
@pytest.mark.parametrize("seed", range(8))
def test_clusters_equal_the_plain_twin(seed, way, request):
    if way == "large groups":
        request.getfixturevalue("small_pieces")
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((100 + seed, 30)) * (rng.random((100 + seed, 30)) < 0.4)
    features[::9] = 0
    features = features.astype(np.float32)
    found = clusters(build_label_tree(csr_matrix(features), cluster_size=7, seed=seed, workers=2))
    assert [cluster.tolist() for cluster in found] == plain_clusters(features, 7, seed)


def test_similar_labels_share_a_cluster():
    rng = np.random.default_rng(0)
    topics = rng.permutation(np.repeat(np.arange(16), 10))
    features = np.zeros((160, 16 * 5))
    for label, topic in enumerate(topics):
        features[label, topic * 5 : topic * 5 + 5] = rng.random(5) + 0.2
    tree = build_label_tree(csr_matrix(features), cluster_size=10, seed=1)
    pure = [len(set(topics[cluster])) == 1 for cluster in clusters(tree)]
    # Two first means of one topic may cut another in two, as 2-means does; by chance no cluster would be pure.
    assert len(pure) == 16 and sum(pure) >= 12


def test_labels_without_features_fill_up_clusters():
    rng = np.random.default_rng(0)
    features = np.zeros((60, 8))
    features[:10, :4] = rng.random((10, 4)) + 1
    features[10:20, 4:] = rng.random((10, 4)) + 1
    features[20] = 1e-42
    first, second = clusters(build_label_tree(features, cluster_size=30))
    assert {tuple(cluster[cluster < 20]) for cluster in (first, second)} == {tuple(range(10)), tuple(range(10, 20))}
    assert len(first) == len(second) == 30


def test_another_seed_gives_another_tree():
    features = np.random.default_rng(0).random((200, 20))
    assert not same(build_label_tree(features, cluster_size=10), build_label_tree(features, cluster_size=10, seed=1))


@pytest.mark.parametrize("way", ["small groups", "large groups"])
def test_a_failing_worker_fails_the_run(monkeypatch, request, way):
    if way == "large groups":
        request.getfixturevalue("small_pieces")
    bisect, calls = label_bisection.bisect, []

    def failing(group, key, *run):
        calls.append(key)
        if key[1:] == (2, 3):
            raise MemoryError("no room")
        return bisect(group, key, *run)

    monkeypatch.setattr(label_tree, "bisect", failing)
    with pytest.raises(MemoryError, match="no room"):
        build_label_tree(np.random.default_rng(0).random((64, 5)), cluster_size=2, workers=2)
    assert (0, 2, 3) in calls


def test_progress_is_shown_where_asked_for(capsys, monkeypatch):
    features = np.random.default_rng(0).random((64, 5))
    build_label_tree(features, cluster_size=8, show_progress=False)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    build_label_tree(features, cluster_size=8)
    assert "label tree: 100%" in capsys.readouterr().err


def test_a_tree_comes_back_from_its_file(tmp_path):
    tree = build_label_tree(np.random.default_rng(0).random((100, 5)), cluster_size=4, height=3, branching=4)
    path = tmp_path / "tree"
    tree.save(path)
    written = path.read_bytes()
    loaded = LabelTree.load(path)
    assert same(tree, loaded) and loaded.level_sizes == tree.level_sizes == [2, 8, 32]
    loaded.save(path)
    assert path.read_bytes() == written and list(tmp_path.iterdir()) == [path]


def test_broken_files_are_refused(tmp_path):
    tree = build_label_tree(np.random.default_rng(0).random((100, 5)), cluster_size=10)
    path = tmp_path / "tree.npz"
    tree.save(path)
    whole = path.read_bytes()
    for content in (
        b"",
        whole[:-200],
        whole[: len(whole) // 2],
        whole.replace(b"label_order", b"label_0rder"),
        b"text",
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"tree\.npz does not hold a whole label tree .*; build it again"):
            LabelTree.load(path)
    np.save(path.with_suffix(".npy"), tree.label_order)
    with pytest.raises(ValueError, match="does not hold a whole label tree"):
        LabelTree.load(path.with_suffix(".npy"))
    with pytest.raises(FileNotFoundError):
        LabelTree.load(tmp_path / "missing")


@pytest.mark.parametrize(
    ("starts", "order", "message"),
    [
        ([[0, 2, 4]], [0, 1, 3, 3], "every label from 0 to 3 once"),
        ([[0, 2, 5]], [0, 1, 2, 3], r"child_starts\[0\] must rise from 0 to 4"),
        ([[0, 4, 4]], [0, 1, 2, 3], r"child_starts\[0\] must rise from 0 to 4"),
        ([[0, 1], [0, 2, 4]], [0, 1, 2, 3], r"child_starts\[0\] must rise from 0 to 2"),
        ([], [0, 1], "at least one level"),
    ],
)
def test_trees_that_are_none_are_refused(tmp_path, starts, order, message):
    arrays = {f"child_starts_{level}": np.array(row) for level, row in enumerate(starts)}
    np.savez(tmp_path / "tree.npz", label_order=np.array(order), **arrays)
    with pytest.raises(ValueError, match=message):
        LabelTree(tuple(map(np.array, starts)), np.array(order))
    with pytest.raises(ValueError, match=message):
        LabelTree.load(tmp_path / "tree.npz")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cluster_size": 1}, "cluster_size is 1, it must be at least 2"),
        (
            {"cluster_size": 20},
            "20 labels and cluster_size is 20, which makes a single cluster; use the model without",
        ),
        ({"height": 0}, "height is 0, it must be at least 1"),
        ({"branching": 12}, "branching is 12, it must be a power of two"),
        ({"branching": 1}, "branching is 1, it must be a power of two"),
        ({"seed": -1}, "seed is -1, it must be at least 0"),
        ({"workers": 0}, "workers is 0, it must be at least 1"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        build_label_tree(np.ones((20, 3)), **{"cluster_size": 5, **options})


def test_wrong_features_are_named():
    with pytest.raises(ValueError, match=r"features have the shape \(20,\)"):
        build_label_tree(np.ones(20))
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="infinite or not a number"):
            build_label_tree(csr_matrix([[bad, 1.0]] * 20), cluster_size=5)
