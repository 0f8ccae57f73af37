import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal_xml.metrics import (
    RankedLabels,
    macro_at_k,
    ndcg_at_k,
    pad_label_lists,
    precision_at_k,
    ps_ndcg_at_k,
    ps_precision_at_k,
    top_k_from_scores,
    xmtc_metrics,
)

RANKED = RankedLabels([[0, 1, 5]], [[0]])


def test_repeated_prediction_counts_once():
    repeated = RankedLabels([[3, 3, 1, 3]], [[3, 1]])
    assert repeated.hits.tolist() == [[True, False, True, False]]
    assert repeated.ids.tolist() == [[3, -1, 1, -1]]
    assert macro_at_k(repeated, 4, [3])["precision"] == 1


def test_pad_label_lists():
    padded = pad_label_lists(iter([[3, 1], [], (2,), np.array([4, 5, 6])]))
    assert padded.dtype == np.int64
    assert padded.tolist() == [[3, 1, -100], [-100] * 3, [2, -100, -100], [4, 5, 6]]
    assert pad_label_lists([]).shape == (0, 0)
    assert pad_label_lists([[], []]).shape == (2, 0)


@settings(deadline=None, max_examples=60)
@given(
    scores=st.integers(1, 6).flatmap(
        lambda width: st.lists(st.lists(st.integers(0, 3), min_size=width, max_size=width), min_size=1, max_size=6)
    ),
    dtype=st.sampled_from([np.float64, np.float32, np.uint8, np.int64, bool]),
    data=st.data(),
)
def test_ties_go_to_the_lower_id(scores, dtype, data):
    scores = np.asarray(scores).astype(dtype)
    k = data.draw(st.integers(1, scores.shape[1]))
    slow = [sorted(range(len(row)), key=lambda label, row=row: (-int(row[label]), label))[:k] for row in scores]
    assert top_k_from_scores(scores, k).tolist() == slow
    assert top_k_from_scores(np.asfortranarray(scores), k).tolist() == slow


def test_top_k_from_scores_with_infinities():
    assert top_k_from_scores(np.array([[-np.inf, np.inf, -np.inf]]), 3).tolist() == [[1, 0, 2]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RankedLabels([[0.5]], [[0]]), "top_k_ids must be integer"),
        (lambda: RankedLabels([[0], [1]], np.array([[0, 1, 0], [1, 0, 1]])), "multi-hot"),
        (lambda: RankedLabels([[0], [1]], [[0, 1, 0], [1, 0, 1]]), "multi-hot"),
        (lambda: RankedLabels([0, 1], [[0], [1]]), "shape"),
        (lambda: RankedLabels([[0, 1], [2]], [[0], [1]]), "pad_label_lists"),
        (lambda: RankedLabels([[0]], [[0.5]]), "true_labels"),
        (lambda: RankedLabels([[0]], [0]), "one list of integer label ids per text"),
        (lambda: RankedLabels([[0]], np.array([[0.0]])), "true_labels must be integer"),
        (lambda: RankedLabels([[0]], [[0], [1]]), "1 texts and true_labels 2"),
        (lambda: RankedLabels(np.zeros((0, 5), dtype=int), []), "at least one"),
        (lambda: RankedLabels([[0]], [[7]], num_labels=7), "Label id 7 is outside"),
        (lambda: RankedLabels([[0]], [[0]], num_labels=0), "num_labels=0"),
        (lambda: RankedLabels([[2**62], [0]], [[0], [0]]), "64 bits"),
        (lambda: precision_at_k(RANKED, 4), "predictions hold only 3 labels"),
        (lambda: precision_at_k(RANKED, 0), "k=0"),
        (lambda: ndcg_at_k(RANKED, 1.0), "k=1.0"),
        (lambda: ps_precision_at_k(RANKED, 1, np.ones(3)), "each of the 6 labels"),
        (lambda: ps_precision_at_k(RANKED, 1, np.zeros(6)), "positive"),
        (lambda: ps_ndcg_at_k(RANKED, 1, np.full(6, np.nan)), "finite"),
        (lambda: macro_at_k(RANKED, 1, []), "at least one id"),
        (lambda: macro_at_k(RANKED, 1, [6]), "from 0 to 5"),
        (lambda: macro_at_k(RANKED, 1, [True, False]), "label_ids must be a flat array"),
        (lambda: xmtc_metrics([[0]], [[0]], ks=()), "ks is empty"),
        (lambda: xmtc_metrics([[0]], [[0]]), "predictions hold only 1 labels"),
        (lambda: xmtc_metrics([[0]], [[0]], ks=(1,), bands={"few": [[0]]}), "bands\\['few'\\]"),
        (lambda: top_k_from_scores(np.array([[np.nan]]), 1), "NaN"),
        (lambda: top_k_from_scores(np.zeros(3), 1), "shape"),
        (lambda: top_k_from_scores(np.zeros((2, 3)), 4), "only 3 labels"),
        (lambda: pad_label_lists([[0]], padding=0), "padding=0"),
        (lambda: pad_label_lists([["a"]]), "integer label ids"),
    ],
)
def test_errors_say_what_to_do(call, message):
    with pytest.raises(ValueError, match=message):
        call()
