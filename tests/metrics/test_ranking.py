import subprocess
import sys
from math import log2
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from napkinxc import metrics as napkinxc

from glocal_xml import metrics
from glocal_xml.metrics import (
    RankedLabels,
    coverage_at_k,
    macro_at_k,
    ndcg_at_k,
    pad_label_lists,
    precision_at_k,
    ps_ndcg_at_k,
    ps_precision_at_k,
    r_precision_at_k,
    recall_at_k,
    xmtc_metrics,
)

NUM_LABELS = 12
KS = range(1, 6)
LABEL = st.integers(0, NUM_LABELS - 1)
TEXT = st.tuples(st.lists(LABEL, max_size=5, unique=True), st.lists(LABEL, max_size=8))
# Lists of one length that repeat nothing but 0 and 1 look like a multi-hot matrix, which is refused.
TEXTS = st.lists(TEXT, min_size=1, max_size=12).filter(
    lambda texts: len({len(true) for _, true in texts}) > 1 or any(len(true) < 3 or max(true) > 1 for _, true in texts)
)
# napkinXC divides by zero in coverage and PSP when no text has a label, and its macro averages fail when there is no
# hit, no false or no missed prediction at all. These two texts give one of each; those cases are tested by hand.
ANCHORS = [([0, 2], [0, 1]), ([2], [1])]
PROPERTY = settings(deadline=None, max_examples=60)


def rank(texts, num_labels=NUM_LABELS):
    predictions = pad_label_lists([prediction + [-1] * (5 - len(prediction)) for prediction, _ in texts])
    return RankedLabels(predictions, [true for _, true in texts], num_labels)


def weights(seed):
    return 1 + 9 * np.random.default_rng(seed).random(NUM_LABELS)


# --- by hand

HAND = RankedLabels(
    [[0, 1, 2], [3, 4, -1], [1, 1, 0], [5, 0, 1]],
    [[0, 2, 3, 2], [4], [0, 1], []],
)


@pytest.mark.parametrize(
    ("metric", "expected"),
    [
        (precision_at_k, (2 + 1 + 2 + 0) / 12),
        (recall_at_k, (2 / 3 + 1 + 1 + 0) / 4),
        (r_precision_at_k, (2 / 3 + 1 + 1 + 0) / 4),
        (
            ndcg_at_k,
            ((1 + 1 / 2) / (1 + 1 / log2(3) + 1 / 2) + 1 / log2(3) + (1 + 1 / 2) / (1 + 1 / log2(3)) + 0) / 4,
        ),
        (coverage_at_k, 4 / 5),
    ],
)
def test_values_by_hand(metric, expected):
    assert metric(HAND, 3) == pytest.approx(expected, abs=1e-12)


def test_r_precision_forgives_what_recall_and_precision_cannot():
    ranked = RankedLabels([[0, 1], [2, 3]], [[0, 1, 4, 5], [2]])
    assert r_precision_at_k(ranked, 2) == 1
    assert recall_at_k(ranked, 2) == 0.75
    assert precision_at_k(ranked, 2) == 0.75


def test_propensity_scored_values_by_hand():
    # Text 0 finds its lighter label, text 1 finds nothing, text 2 has no label.
    ranked = RankedLabels([[0, 5], [5, 4], [0, 1]], [[0, 1], [2], []])
    inverse_propensities = [1.0, 4.0, 2.0, 1.0, 1.0, 1.0]
    assert ps_precision_at_k(ranked, 1, inverse_propensities) == pytest.approx(1 / (4 + 2))
    assert ps_precision_at_k(ranked, 2, inverse_propensities) == pytest.approx(1 / (4 + 1 + 2))
    second, ideal = 1 / log2(3), 1 + 1 / log2(3)
    expected = (1 / ideal) / ((4 + second) / ideal + 2)
    assert ps_ndcg_at_k(ranked, 2, inverse_propensities) == pytest.approx(expected)


def test_macro_values_by_hand():
    # Label 0: 1 hit, 1 false, 1 missed. Label 1: 1 hit. Label 2: false only. Label 3: missed only. Label 4: nowhere.
    ranked = RankedLabels([[0, 1], [0, 2], [-1, -1]], [[0, 1], [3], [0]], num_labels=5)
    everything = macro_at_k(ranked, 2)
    assert everything == pytest.approx({"precision": 1.5 / 5, "recall": 1.5 / 5, "f1": (0.5 + 1) / 5})
    assert macro_at_k(ranked, 2, [0, 3, 0]) == pytest.approx({"precision": 0.25, "recall": 0.25, "f1": 0.25})
    assert macro_at_k(ranked, 1, [1]) == {"precision": 0, "recall": 0, "f1": 0}


def test_macro_f1_is_the_mean_of_label_f1():
    # Label 0 has P 1/2, R 1; label 1 has P 0, R 0: the F1 of the means would be 1/3.
    ranked = RankedLabels([[0], [0]], [[0], [1]])
    assert macro_at_k(ranked, 1)["f1"] == pytest.approx((2 / 3) / 2)


@pytest.mark.parametrize("predictions", [[[0, 1], [2, 3]], [[-1, -1], [-100, -1]]])
def test_no_true_label_anywhere_gives_zeros(predictions):
    values = xmtc_metrics(predictions, [[], []], ks=(1, 2), inverse_propensities=np.ones(4))
    assert set(values.values()) == {0.0}


def test_hits_only_and_misses_only():
    perfect = xmtc_metrics([[0], [1]], [[0], [1]], ks=(1,), inverse_propensities=[1.0, 3.0])
    assert set(perfect.values()) == {1.0}
    missed = xmtc_metrics([[1], [0]], [[0], [1]], ks=(1,), inverse_propensities=[1.0, 3.0])
    assert set(missed.values()) == {0.0}


# --- against napkinXC


@PROPERTY
@given(texts=TEXTS, seed=st.integers(0, 5))
def test_equals_napkinxc(texts, seed):
    texts = texts + ANCHORS
    ranked, inverse_propensities = rank(texts), weights(seed)
    predictions = [prediction for prediction, _ in texts]
    true = [sorted(set(labels)) for _, labels in texts]
    pairs = [
        (precision_at_k, napkinxc.precision_at_k(true, predictions)),
        (recall_at_k, napkinxc.recall_at_k(true, predictions)),
        (ndcg_at_k, napkinxc.ndcg_at_k(true, predictions)),
        (coverage_at_k, napkinxc.coverage_at_k(true, predictions)),
        (ps_precision_at_k, napkinxc.psprecision_at_k(true, predictions, inverse_propensities)),
        (ps_ndcg_at_k, napkinxc.psndcg_at_k(true, predictions, inverse_propensities)),
    ]
    for metric, expected in pairs:
        extra = (inverse_propensities,) if metric in (ps_precision_at_k, ps_ndcg_at_k) else ()
        assert [metric(ranked, k, *extra) for k in KS] == pytest.approx(expected, abs=1e-6), metric.__name__


@PROPERTY
@given(texts=TEXTS)
def test_macro_equals_napkinxc(texts):
    texts = texts + ANCHORS
    ranked = rank(texts)
    predictions = [prediction for prediction, _ in texts]
    true = [sorted(set(labels)) for _, labels in texts]
    expected = {
        "precision": napkinxc.macro_precision_at_k(true, predictions),
        "recall": napkinxc.macro_recall_at_k(true, predictions),
        "f1": napkinxc.macro_f1_measure_at_k(true, predictions),
    }
    for k in KS:
        # napkinXC averages over the labels up to the highest one true or predicted within k.
        highest = max(max(labels[:k] + known, default=0) for labels, known in zip(predictions, true, strict=True))
        for name, value in macro_at_k(ranked, k, np.arange(highest + 1)).items():
            assert value == pytest.approx(expected[name][k - 1], abs=1e-6), (name, k)


# --- properties


@PROPERTY
@given(texts=TEXTS, seed=st.integers(0, 5), data=st.data())
def test_bounds_order_and_form_of_the_input(texts, seed, data):
    shuffled = data.draw(st.permutations(texts))
    options = {"ks": tuple(KS), "inverse_propensities": weights(seed), "bands": {"low": range(4), "empty": []}}
    values = xmtc_metrics(rank(texts).ids, [true for _, true in texts], **options)
    assert all(type(value) is float and 0 <= value <= 1 for value in values.values())
    assert "macro_f1@5_low" in values
    assert not any("empty" in name for name in values)
    padded = pad_label_lists([true for _, true in shuffled], padding=-1)
    assert xmtc_metrics(rank(shuffled).ids, padded, **options) == pytest.approx(values, abs=1e-12)


@PROPERTY
@given(
    true=st.lists(st.lists(LABEL, min_size=5, max_size=8, unique=True), min_size=1, max_size=8), seed=st.integers(0, 5)
)
def test_perfect_prediction_gives_one(true, seed):
    inverse_propensities = weights(seed)
    heaviest_first = [sorted(labels, key=lambda label: -inverse_propensities[label])[:5] for labels in true]
    values = xmtc_metrics(heaviest_first, true, inverse_propensities=inverse_propensities)
    for k in (1, 3, 5):
        for name in ("precision", "r_precision", "ndcg", "psp", "psndcg"):
            assert values[f"{name}@{k}"] == pytest.approx(1, abs=1e-12), name


# --- label space and keys


def test_keys():
    plain = xmtc_metrics([[0, 1]], [[0]], ks=(1, 2))
    per_k = ("precision", "recall", "r_precision", "ndcg", "coverage")
    macro = ("macro_precision", "macro_recall", "macro_f1")
    assert set(plain) == {f"{name}@{k}" for name in per_k for k in (1, 2)} | {f"{name}@2" for name in macro}
    full = xmtc_metrics([[0, 1]], [[0]], ks=(1, 2), inverse_propensities=[1, 1], bands={"few": [0], "none": []})
    assert set(full) - set(plain) == {"psp@1", "psp@2", "psndcg@1", "psndcg@2"} | {f"{name}@2_few" for name in macro}


def test_label_space_is_the_widest_known():
    options = {"ks": (1,)}
    assert xmtc_metrics([[0]], [[0]], **options)["macro_recall@1"] == 1
    assert xmtc_metrics([[0]], [[0]], num_labels=10, **options)["macro_recall@1"] == 0.1
    assert xmtc_metrics([[0]], [[0]], inverse_propensities=np.ones(5), **options)["macro_recall@1"] == 0.2
    assert xmtc_metrics([[0]], [[0]], bands={"unseen": [3]}, **options)["macro_recall@1"] == 0.25


def test_many_texts_and_a_million_labels():
    generator = np.random.default_rng(0)
    true = generator.integers(0, 1_000_000, (30_000, 5))
    predictions = true.copy()
    predictions[:15_000] = 999_999 - np.arange(5)
    values = xmtc_metrics(predictions, true, inverse_propensities=np.ones(1_000_000))
    assert values["precision@5"] == pytest.approx(0.5, abs=1e-3)


def test_importing_the_room_does_not_import_evaluate():
    room = Path(metrics.__file__).parent
    # The parent package is left out: what the other packages import is not asked here.
    code = f"import sys; sys.path.insert(0, {str(room.parent)!r}); import metrics; sys.exit('evaluate' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
