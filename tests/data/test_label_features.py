"""Features of labels: sums of the rows of their texts, against the same on dense arrays."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfVectorizer

from glocal_xml.data import (
    label_features,
    label_features_from_embeddings,
    label_features_from_matrix,
    label_features_from_texts,
)

quick = settings(deadline=None, max_examples=50)


def unit(rows):
    norms = np.linalg.norm(rows, axis=-1, keepdims=True)
    return np.divide(rows, norms, out=np.zeros_like(rows), where=norms > 0)


def plain_features(dense, label_ids, num_labels):
    sums = np.zeros((num_labels, dense.shape[1]))
    for row, ids in zip(unit(dense), label_ids, strict=True):
        for label in set(ids):
            sums[label] += row
    return unit(sums)


@quick
@given(
    label_ids=st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=20),
    seed=st.integers(0, 9),
    chunk=st.sampled_from([1, 10, 10**6]),
)
def test_rows_are_sums_of_the_texts_of_a_label(label_ids, seed, chunk):
    rng = np.random.default_rng(seed)
    dense = rng.random((len(label_ids), 9)) * (rng.random((len(label_ids), 9)) < 0.4)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_features, "_CHUNK_ENTRIES", chunk)
        found = label_features_from_matrix(csr_matrix(dense), label_ids, 8, features_per_label=None)
    assert found.dtype == np.float32 and found.has_canonical_format
    np.testing.assert_allclose(found.toarray(), plain_features(dense, label_ids, 8), atol=1e-6)
    assert found[7].nnz == 0


def test_the_strongest_features_are_kept():
    rng = np.random.default_rng(0)
    dense = rng.random((30, 20))
    label_ids = [[i % 4, i % 7] for i in range(30)]
    found = label_features_from_matrix(csr_matrix(dense), label_ids, 7, features_per_label=5).toarray()
    expected = plain_features(dense, label_ids, 7)
    expected[expected < np.sort(expected, axis=1)[:, [-5]]] = 0
    assert ((found > 0).sum(axis=1) == 5).all()
    np.testing.assert_allclose(found, unit(expected), atol=1e-6)


def test_equal_features_are_kept_in_the_order_of_their_columns():
    found = label_features_from_matrix(csr_matrix(np.ones((1, 6))), [[0]], 1, features_per_label=2)
    np.testing.assert_allclose(found.toarray(), [[0.5**0.5, 0.5**0.5, 0, 0, 0, 0]], atol=1e-6)


def test_texts_become_tf_idf_rows():
    texts = ["red apple red", "green apple", "blue sky", ""]
    label_ids = [[0, 1], [1], [2], [2]]
    tf_idf = TfidfVectorizer(sublinear_tf=True).fit_transform(texts).toarray()
    found = label_features_from_texts(iter(texts), label_ids, 4, show_progress=False)
    np.testing.assert_allclose(found.toarray(), plain_features(tf_idf, label_ids, 4), atol=1e-6)
    assert label_features_from_texts(texts, label_ids, 4, max_features=2).shape == (4, 2)


def test_words_of_one_text_are_left_out_of_many_texts():
    texts = [f"common word{i}" for i in range(1000)]
    assert label_features_from_texts(texts, [[0]] * 1000, 1).shape == (1, 1)
    assert label_features_from_texts(texts[:999], [[0]] * 999, 1).shape == (1, 1000)


def test_embeddings_are_averaged():
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((5, 3))
    found = label_features_from_embeddings(embeddings, [[0], [0, 1], [1, 1], [], [0]], 3)
    expected = [embeddings[[0, 1, 4]].mean(axis=0), embeddings[[1, 2]].mean(axis=0), np.zeros(3)]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_what_does_not_fit_is_named():
    matrix = csr_matrix(np.ones((2, 3)))
    with pytest.raises(ValueError, match="2 texts but 1 lists of label ids"):
        label_features_from_matrix(matrix, [[0]], 4)
    with pytest.raises(ValueError, match="label id 4 is not between 0 and 3"):
        label_features_from_matrix(matrix, [[0], [4]], 4)
    with pytest.raises(ValueError, match="label id -100 is not between 0 and 3; leave padding"):
        label_features_from_embeddings(np.ones((2, 3)), [[0], [1, -100]], 4)
    with pytest.raises(ValueError, match="features_per_label is 0; give at least 1, or None"):
        label_features_from_matrix(matrix, [[0], [1]], 4, features_per_label=0)
    with pytest.raises(ValueError, match="num_labels is 0"):
        label_features_from_matrix(matrix, [[], []], 0)
    with pytest.raises(ValueError, match="no TF-IDF could be made of the texts"):
        label_features_from_texts(["", " "], [[0], [1]], 2)
