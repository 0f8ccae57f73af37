"""Sparse rows of texts, and their products with tables, against dense numpy twins."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from plain_experts import dense_table, plain_row
from scipy.sparse import random as random_matrix

from glocal_xml.experts.token_rows import matrix_of, padded_ids, sparse_rows, table_tensors
from glocal_xml.modeling import token_counts
from glocal_xml.modeling.token_counts import SparseTable, TextCounter


@st.composite
def counters(draw):
    """A counter over a few tokens, some with the weight 0, pairs of them, and first tokens that count apart."""
    tokens = draw(st.integers(1, 9))
    keys = sorted(draw(st.sets(st.integers(0, tokens * tokens - 1), max_size=8)))
    counter = TextCounter(tokens, len(keys), lead=draw(st.integers(0, 4)))
    size = len(counter.weights)
    weights = draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.25]), min_size=size, max_size=size))
    counter.weights.copy_(torch.tensor(weights))
    counter.pair_keys.copy_(torch.tensor(keys, dtype=torch.long))
    return counter


# Padding, ids of the vocabulary, and ids beyond it.
texts_of_ids = st.lists(st.lists(st.sampled_from([-100, *range(12)]), max_size=14), min_size=1, max_size=5)


def dense_rows(counter, token_ids):
    features, values = counter(token_ids)
    dense = torch.zeros(len(token_ids), len(counter.weights))
    return dense.scatter_add_(1, features, values).numpy()


@given(counters(), texts_of_ids)
def test_counts_are_those_of_a_plain_twin(counter, texts):
    found = dense_rows(counter, padded_ids(texts))
    weights = counter.weights.numpy()
    expected = [plain_row(text, weights, counter.tokens, counter.pair_keys.tolist(), counter.lead) for text in texts]
    np.testing.assert_allclose(found, np.array(expected), atol=1e-6)
    # Features that a text has stand in it once: products count each entry once.
    for features, values in zip(*counter(padded_ids(texts)), strict=True):
        present = features[values != 0].tolist()
        assert len(present) == len(set(present))


@given(counters(), texts_of_ids)
def test_rows_of_a_matrix_are_what_the_model_counts(counter, texts):
    matrix = sparse_rows([np.array(text, dtype=np.int32) for text in texts], counter)
    np.testing.assert_allclose(matrix.toarray(), dense_rows(counter, padded_ids(texts)), atol=1e-6)


def test_texts_without_a_token_are_rows_of_zeros():
    counter = TextCounter(4, 2)
    counter.weights.fill_(1.0)
    for ids in (torch.full((2, 3), -100), torch.zeros(2, 0, dtype=torch.long)):
        _, values = counter(ids)
        assert not values.any()
    assert sparse_rows([], counter).shape == (0, 6)


def test_order_and_side_of_padding_change_nothing_but_pairs():
    counter = TextCounter(5, 1)
    counter.weights.copy_(torch.tensor([0.0, 1.0, 2.0, 1.0, 1.0, 4.0]))
    counter.pair_keys.copy_(torch.tensor([1 * 5 + 2]))
    right, left, other = torch.tensor([[1, 2, 3, -100], [-100, 1, 2, 3], [2, 1, 3, -100]])
    rows = dense_rows(counter, torch.stack([right, left, other]))
    np.testing.assert_array_equal(rows[0], rows[1])
    assert rows[0, 5] > 0 and rows[2, 5] == 0
    # A token with the weight 0, such as one that separates sentences, keeps its neighbours apart.
    assert dense_rows(counter, torch.tensor([[1, 0, 2]]))[0, 5] == 0


def make_table(rows, features, density, seed=0):
    matrix = random_matrix(rows, features, density, format="csr", random_state=seed, dtype=np.float32)
    table = SparseTable(features, rows, matrix.nnz)
    table.load_state_dict(table_tensors(matrix))
    return table, matrix


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([0.0, 0.3, 1.0]), st.integers(1, 6), st.data())
def test_products_are_those_of_dense_matrices(rows, features, density, texts, data):
    table, matrix = make_table(rows, features, density)
    np.testing.assert_allclose(dense_table(table), matrix.toarray())
    np.testing.assert_array_equal(matrix_of(table).toarray(), matrix.toarray())
    width = data.draw(st.integers(1, features))
    ids = torch.stack([torch.randperm(features)[:width] for _ in range(texts)])
    values = torch.rand(texts, width) * torch.randint(0, 2, (texts, width))
    dense = torch.zeros(texts, features).scatter_(1, ids, values)
    expected = dense @ torch.from_numpy(matrix.toarray()).T
    for product in (table, table._of_entries, table._of_matrices)[: 3 if torch.backends.mkl.is_available() else 2]:
        torch.testing.assert_close(product(ids, values), expected, rtol=1e-5, atol=1e-6)
    # One text alone has the same product.
    torch.testing.assert_close(table(ids[-1:], values[-1:]), expected[-1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("piece", [1, 7, 10**6])
def test_pieces_change_nothing(piece, monkeypatch):
    table, matrix = make_table(30, 20, 0.5)
    ids = torch.stack([torch.randperm(20)[:8] for _ in range(13)])
    values = torch.rand(13, 8)
    values[4] = 0
    monkeypatch.setattr(token_counts, "_PIECE_ENTRIES", piece)
    expected = torch.zeros(13, 20).scatter_(1, ids, values) @ torch.from_numpy(matrix.toarray()).T
    torch.testing.assert_close(table._of_entries(ids, values), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_products_are_single_precision_whatever_the_table_is_kept_in(dtype):
    table, matrix = make_table(12, 20, 0.5)
    ids, values = torch.stack([torch.randperm(20)[:8] for _ in range(3)]), torch.rand(3, 8)
    table = table.to(dtype)
    kept = torch.from_numpy(matrix.toarray()).to(dtype).float()
    expected = torch.zeros(3, 20).scatter_(1, ids, values) @ kept.T
    for product in (table, table._of_entries):
        assert product(ids, values).dtype == torch.float
        torch.testing.assert_close(product(ids, values), expected, rtol=1e-5, atol=1e-6)


def test_no_warning_of_torch_reaches_the_user(recwarn):
    table, _ = make_table(12, 20, 0.5)
    table(torch.arange(20)[None], torch.rand(1, 20))
    assert not recwarn.list
