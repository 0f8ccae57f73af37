"""Ranking and combination of scores that are never whole, against plain forms of them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal_xml.modeling.label_scores import LabelScores, TopLabels, mean_probability, product_logits


class WholeScores(LabelScores):
    """A matrix that is whole, asked for in runs."""

    def __init__(self, logits, run_size):
        self.logits, self.run_size = logits, run_size
        self.num_texts, self.num_labels = logits.shape

    def run(self, start, stop):
        return self.logits[:, start:stop]

    def chosen(self, label_ids):
        return self.logits[:, label_ids] if label_ids.dim() == 1 else self.logits.gather(1, label_ids)


def stable(scores, top_k):
    best, order = scores.sort(dim=1, descending=True, stable=True)
    return best[:, :top_k], order[:, :top_k]


@settings(deadline=None, max_examples=150)
@given(
    texts=st.integers(1, 4),
    labels=st.integers(1, 60),
    top_k=st.integers(1, 12),
    run=st.integers(1, 25),
    values=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_ranking_equals_a_stable_sort_with_many_ties(texts, labels, top_k, run, values, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, values, (texts, labels), generator=generator).float() - values // 2
    # Zeros of both signs are equal.
    negative_zero = (scores == 0) & (torch.rand(scores.shape, generator=generator) < 0.5)
    scores[negative_zero] = -0.0
    ranking = WholeScores(scores, run).top_k(top_k)
    expected_scores, expected_ids = stable(scores, top_k)
    assert torch.equal(ranking.ids, expected_ids)
    assert torch.equal(ranking.logits, expected_scores)


@settings(max_examples=40)
@given(labels=st.integers(120, 2000), top_k=st.integers(1, 6), values=st.integers(1, 900), seed=st.integers(0, 1000))
def test_best_blocks_hold_the_best_labels(labels, top_k, values, seed):
    """Runs so long that blocks are looked for first."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, values, (3, labels), generator=generator).float()
    expected_scores, expected_ids = stable(scores, top_k)
    for run in (labels, labels // 2 + 1):
        ranking = WholeScores(scores, run).top_k(top_k)
        assert torch.equal(ranking.ids, expected_ids) and torch.equal(ranking.logits, expected_scores)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf, 1e-45, -1e-45, 3e38])
def test_special_values_rank_as_a_sort_ranks_them(special):
    scores = torch.randint(0, 4, (3, 500)).float()
    scores[:, ::3] = special
    for top_k in (1, 5, 30, 50):
        best = TopLabels(top_k)
        best.update(scores, 0)
        expected_scores, expected_ids = stable(scores, top_k)
        assert torch.equal(best.result()[1], expected_ids)
        torch.testing.assert_close(best.result()[0], expected_scores, equal_nan=True, rtol=0, atol=0)


def test_labels_may_be_named_for_every_column():
    best = TopLabels(2)
    best.update(torch.tensor([[1.0, 3.0, 3.0]]), torch.tensor([[9, 8, 7]]))
    best.update(torch.tensor([[3.0]]), torch.tensor([2_000_000_000]))
    assert best.result()[1].tolist() == [[7, 8]]


def test_padding_is_lower_than_any_score():
    best = TopLabels(3)
    best.update(torch.tensor([[-torch.inf]]), 5)
    best.pad()
    logits, ids = best.result()
    assert ids[0, 0] == 5 and logits.tolist() == [[-torch.inf] * 3]
    best.update(torch.tensor([[-3e38, -torch.inf]]), 7)
    assert best.result()[1][0].tolist() == [7, 5, 8]


@settings(deadline=None, max_examples=60)
@given(branches=st.integers(1, 4), run=st.integers(1, 12), seed=st.integers(0, 1000))
def test_the_mean_ranks_its_branches_too(branches, run, seed):
    generator = torch.Generator().manual_seed(seed)
    logits = {str(i): 5 * torch.randn(3, 11, generator=generator) for i in range(branches)}
    scores = mean_probability({name: WholeScores(values, run + int(name)) for name, values in logits.items()})
    expected = torch.stack([values.double().sigmoid() for values in logits.values()]).mean(dim=0).logit().float()
    ranking, whole = scores.top_k_and_all(4)
    torch.testing.assert_close(whole, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(scores.all(), whole)
    for found in (ranking, scores.top_k(4)):
        assert torch.equal(found.ids, stable(whole, 4)[1])
        torch.testing.assert_close(found.logits, stable(whole, 4)[0])
        assert (found.branch_ids is None) == (branches == 1)
        for i, values in enumerate(logits.values() if branches > 1 else ()):
            assert torch.equal(found.branch_ids[:, i], stable(values, 4)[1])
    chosen = torch.tensor([10, 2, 5])
    found, of_branches = scores.top_k_of(chosen, 2)
    assert torch.equal(found.ids, chosen[stable(whole[:, chosen], 2)[1]])
    assert of_branches.shape == (branches, 3, 3)
    per_text = torch.tensor([[1, 2], [3, 4], [10, 0]])
    assert torch.equal(
        scores.top_k_of(per_text, 2)[0].ids, per_text.gather(1, stable(whole.gather(1, per_text), 2)[1])
    )


def test_means_and_products_do_not_saturate():
    """The mean of two probabilities next to one, and of two next to zero, keeps its digits."""
    for logits in ([40.0, 42.0], [-80.0, -81.0]):
        scores = mean_probability({str(x): WholeScores(torch.tensor([[x]]), 1) for x in logits})
        twin = torch.tensor(logits, dtype=torch.float64)
        sign = 1 if twin[0] > 0 else -1
        expected = -sign * torch.log(torch.exp(-sign * twin).mean())
        torch.testing.assert_close(scores.run(0, 1).double().squeeze(), expected, rtol=1e-6, atol=0)
    assert product_logits(torch.tensor(50.0), torch.tensor(50.0)).item() == pytest.approx(50 - 0.6931, abs=1e-3)
