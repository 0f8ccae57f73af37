"""Thresholds and the quality of probabilities against plain twins that try everything."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.metrics import fbeta_score, precision_score, recall_score

from glocal_xml.calibration import (
    ScoredLabels,
    best_threshold,
    expected_calibration_error,
    judge_scores,
    measures_at,
    reliability_bins,
    report_lines,
)
from glocal_xml.modeling.configuration_base import F_KINDS


@st.composite
def rankings(draw):
    """Ids, scores with many ties, and true labels, some of them beyond the candidates."""
    texts, labels = draw(st.integers(1, 6)), draw(st.integers(1, 8))
    candidates = draw(st.integers(1, labels))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = draw(st.sampled_from([2, 5, 1000]))
    ids = np.stack([rng.permutation(labels)[:candidates] for _ in range(texts)])
    scores = np.sort(rng.integers(0, levels, size=ids.shape) / levels, axis=1)[:, ::-1]
    truth = rng.random((texts, labels)) < draw(st.sampled_from([0.1, 0.4, 0.8]))
    return ids, scores, truth


def pairs_of(ids, scores, truth):
    return ScoredLabels.from_rankings(ids, scores, [np.flatnonzero(row) for row in truth], truth.shape[1])


def given_at(ids, scores, truth, threshold):
    """What a threshold gives, as a whole matrix."""
    chosen = np.zeros_like(truth)
    for row, (row_ids, row_scores) in enumerate(zip(ids, scores, strict=True)):
        chosen[row, row_ids[row_scores >= threshold]] = True
    return chosen


def plain_f(truth, chosen, average, beta):
    axis = {"micro": None, "macro": 0, "samples": 1}[average]
    found, given, true = (np.atleast_1d(part.sum(axis=axis)) for part in (truth & chosen, chosen, truth))
    below = given + beta**2 * true
    return np.mean([(1 + beta**2) * hits / size if size else 0.0 for hits, size in zip(found, below, strict=True)])


@settings(max_examples=100, deadline=None)
@given(rankings(), st.sampled_from(F_KINDS), st.sampled_from([0.5, 1.0, 2.0]))
def test_no_threshold_is_better(ranking, average, beta):
    ids, scores, truth = ranking
    pairs = pairs_of(*ranking)
    if not pairs.is_true.any():
        with pytest.raises(ValueError, match="None of the"):
            best_threshold(pairs, average, beta)
        return
    found = best_threshold(pairs, average, beta)
    chosen, measures = given_at(ids, scores, truth, found), measures_at(pairs, found, average, beta)
    cuts = [*np.unique(scores), 2.0]
    best = max(plain_f(truth, given_at(ids, scores, truth, cut), average, beta) for cut in cuts)
    assert measures["f"] == pytest.approx(best, abs=1e-12)
    # One label alone is a binary task to scikit-learn.
    if truth.shape[1] > 1:
        options = {"average": average, "zero_division": 0}
        assert measures["f"] == pytest.approx(fbeta_score(truth, chosen, beta=beta, **options), abs=1e-12)
        assert measures["precision"] == pytest.approx(precision_score(truth, chosen, **options), abs=1e-12)
        assert measures["recall"] == pytest.approx(recall_score(truth, chosen, **options), abs=1e-12)
    assert measures["labels_per_text"] == pytest.approx(chosen.sum(axis=1).mean())
    assert measures["texts_without_labels"] == pytest.approx((chosen.sum(axis=1) == 0).mean())
    assert found not in scores or found == 0, "half-way between two scores"


def test_labels_beyond_the_candidates_are_missed():
    pairs = ScoredLabels.from_rankings([[0, 1]], [[0.9, 0.8]], [[0, 1, 2, 3]], 4)
    assert measures_at(pairs, 0.5)["recall"] == 0.5 and measures_at(pairs, 0.5)["precision"] == 1.0
    blend = {"threshold": 0.5, "f": "micro", "beta": 1.0}
    assert judge_scores(pairs, blend)["true_labels_scored"] == 0.5


def test_equally_good_thresholds_give_the_highest():
    # The second label may be given or not: both have F = 2/3.
    pairs = ScoredLabels.from_rankings([[0, 1, 2]], [[0.9, 0.5, 0.1]], [[0, 3]], 4)
    assert best_threshold(pairs) == pytest.approx(0.7)


def drawn_pairs(steepness, number=20_000):
    """Labels that are true as often as the scores say, if these are as steep as they should be (1)."""
    rng = np.random.default_rng(0)
    logits = rng.normal(-2.0, 2.0, size=number)
    return expit(logits * steepness), rng.random(number) < expit(logits)


@pytest.mark.parametrize("steepness", [0.5, 2.0])
def test_scores_that_are_too_sure_or_too_unsure_have_a_larger_error(steepness):
    wrong, right = (expected_calibration_error(*drawn_pairs(value)) for value in (steepness, 1.0))
    assert right < 0.01 and wrong > 5 * right


def test_bins_hold_equal_mass_and_every_pair_once():
    scores, is_true = drawn_pairs(1.0)
    bins = reliability_bins(scores, is_true, bins=10)
    mass = bins.mean_scores * bins.counts
    assert bins.counts.sum() == len(scores) and len(mass) == 10
    assert mass == pytest.approx(np.full(10, scores.sum() / 10), rel=0.01)
    assert (np.diff(bins.mean_scores) > 0).all()
    assert bins.true_shares @ bins.counts == pytest.approx(is_true.sum())
    assert bins.true_shares == pytest.approx(bins.mean_scores, abs=0.1)


@settings(max_examples=50, deadline=None)
@given(rankings())
def test_equal_scores_share_a_bin(ranking):
    pairs = pairs_of(*ranking)
    bins = reliability_bins(pairs.scores, pairs.is_true)
    assert bins.counts.sum() == len(pairs) and len(bins.counts) <= len(np.unique(pairs.scores))
    plain = sum(
        abs(mean - share) * count
        for mean, share, count in zip(bins.mean_scores, bins.true_shares, bins.counts, strict=True)
    )
    assert expected_calibration_error(pairs.scores, pairs.is_true) == pytest.approx(plain / len(pairs))


def test_report_says_what_was_found():
    scores, is_true = drawn_pairs(2.0, number=300)
    ids = np.tile(np.arange(10), (30, 1))
    pairs = ScoredLabels.from_rankings(
        ids, scores.reshape(30, 10), [np.flatnonzero(row) for row in is_true.reshape(30, 10)], 10
    )
    threshold = best_threshold(pairs, "samples", 2)
    blend = {"weights": {"global": 0.5, "bias": -1.25}, "threshold": threshold, "f": "samples", "beta": 2.0}
    judged = judge_scores(pairs, blend)
    assert judged["f"] == measures_at(pairs, threshold, "samples", 2)["f"] and judged["texts"] == 30
    assert judged["cross_entropy"] == pytest.approx(-np.log(np.where(is_true, scores, 1 - scores)).mean(), rel=1e-6), (
        "the mean over pairs"
    )
    shown = "\n".join(report_lines(blend, judged))
    assert f"samples F (beta 2) {100 * judged['f']:.2f}" in shown and "of 30 texts" in shown
    assert f"weights: global 0.50, bias -1.25; threshold {threshold:.4f}" in shown


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: best_threshold(pairs_of(*EASY), "weighted"), "micro, macro, samples, got 'weighted'"),
        (lambda: best_threshold(pairs_of(*EASY), beta=0), "above 0, got 0"),
        (lambda: ScoredLabels.from_rankings([[0]], [[np.nan]], [[0]], 1), "diverged"),
        (lambda: ScoredLabels.from_rankings([[0, 1]], [[0.5]], [[0]], 2), "shape"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


EASY = np.array([[0, 1]]), np.array([[0.9, 0.1]]), np.array([[True, False]])
