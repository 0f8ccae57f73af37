"""The running top-k against a stable sort of all scores."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from glocal_xml.modeling.label_ranking import RunningTopK, best_columns


def stable(scores, top_k):
    best, order = scores.sort(dim=1, descending=True, stable=True)
    return best[:, :top_k], order[:, :top_k]


@settings(deadline=None, max_examples=150)
@given(
    texts=st.integers(1, 4),
    labels=st.integers(1, 60),
    top_k=st.integers(1, 12),
    chunk=st.integers(1, 25),
    values=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_equals_a_stable_sort_with_many_ties(texts, labels, top_k, chunk, values, seed):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(0, values, (texts, labels), generator=generator).float() - values / 2
    ranking = RunningTopK(top_k)
    for start in range(0, labels, chunk):
        ranking.update(scores[:, start : start + chunk], start)
    expected_scores, expected_ids = stable(scores, top_k)
    assert torch.equal(ranking.ids, expected_ids)
    assert torch.equal(ranking.scores, expected_scores)


@pytest.mark.parametrize("special", [torch.nan, torch.inf, -torch.inf])
def test_special_values(special):
    scores = torch.randint(0, 4, (3, 40)).float()
    scores[:, ::3] = special
    for top_k in (1, 5, 30, 50):
        assert torch.equal(best_columns(scores, top_k)[1], stable(scores, top_k)[1])


def test_no_ties_take_no_full_sort(monkeypatch):
    widths = []
    sort = torch.Tensor.sort
    monkeypatch.setattr(torch.Tensor, "sort", lambda x, *a, **k: widths.append(x.shape[1]) or sort(x, *a, **k))
    best_columns(torch.randperm(5000).float().view(2, 2500), 5)
    assert max(widths) == 5
