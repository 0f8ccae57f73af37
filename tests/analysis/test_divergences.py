"""Divergences against the plain formulas, and over texts and label chunks against a dense computation."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from glocal_xml import GlocalXMLForMultiLabel
from glocal_xml.analysis.divergences import bernoulli_jsd, bernoulli_kl, branch_divergences

logits = st.floats(-12, 12)


def sigmoid(logit):
    return 1 / (1 + math.exp(-logit))


def plain_kl(p, q):
    return p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))


@given(logits, logits)
def test_equal_to_the_plain_formulas(first, second):
    p, q = sigmoid(first), sigmoid(second)
    a, b = torch.tensor([first], dtype=torch.float64), torch.tensor([second], dtype=torch.float64)
    assert bernoulli_kl(a, b).item() == pytest.approx(plain_kl(p, q), rel=1e-6, abs=1e-9)
    middle = (p + q) / 2
    jsd = (plain_kl(p, middle) + plain_kl(q, middle)) / 2
    assert bernoulli_jsd(a, b).item() == pytest.approx(jsd, rel=1e-6, abs=1e-9)


@given(st.floats(-1e4, 1e4, width=32), st.floats(-1e4, 1e4, width=32))
def test_finite_bounded_and_symmetric_for_any_logits(first, second):
    a, b = (torch.tensor(logit, dtype=torch.float64) for logit in (first, second))
    kl, jsd = bernoulli_kl(a, b).item(), bernoulli_jsd(a, b).item()
    # Rounding can bring the divergence of two equal distributions just below zero.
    assert -1e-12 <= kl < 3e4
    assert -1e-12 <= jsd <= math.log(2) * (1 + 1e-12)
    assert jsd == pytest.approx(bernoulli_jsd(b, a).item(), abs=1e-12)


def test_certain_and_opposite():
    yes, no = torch.tensor([1e4]), torch.tensor([-1e4])
    assert bernoulli_jsd(yes, no).item() == pytest.approx(math.log(2))
    assert bernoulli_kl(yes, no).item() == pytest.approx(1e4)
    assert bernoulli_kl(yes, yes).item() == 0


@pytest.mark.parametrize("chunk_bytes", [2**9, 2**23])
def test_branches_over_texts_and_chunks(encoder_folder, chunk_bytes):
    model = GlocalXMLForMultiLabel.from_encoder(
        encoder_folder, num_labels=13, label_chunk_bytes=chunk_bytes, mlp_size=8
    )
    with torch.no_grad():
        # Fresh branches hardly differ.
        for parameter in model.global_head.parameters():
            parameter.normal_()
    inputs = {"input_ids": torch.randint(5, 20, (3, 7)), "attention_mask": torch.ones(3, 7, dtype=torch.long)}
    # The last text has no label that the model knows.
    labels = torch.tensor([[0, 12, 5], [7, -100, -100], [13, -100, -100]])
    halves = [
        {**{name: value[part] for name, value in inputs.items()}, "labels": labels[part]}
        for part in (slice(2), slice(2, 3))
    ]
    several = chunk_bytes == 2**9
    assert (model(**inputs, output_scores=True).scores.run_size < 13) == several
    measured = branch_divergences(model.train(), halves)
    assert model.training, "left as it was"

    scores = model.score_labels(torch.arange(13), **inputs)
    first, second = scores["global"].double(), scores["local"].double()
    kl = sum(plain_kl(first[t, i].item(), second[t, i].item()) for t, i in [(0, 0), (0, 12), (0, 5), (1, 7)])
    jsd = 0.0
    for p, q in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
        jsd += (plain_kl(p, (p + q) / 2) + plain_kl(q, (p + q) / 2)) / 2
    assert (measured["texts"], measured["labels"], measured["positives"]) == (3, 13, 4)
    (pair,) = measured["pairs"]
    assert (pair["first"], pair["second"]) == ("global", "local")
    assert pair["jsd"] == pytest.approx(jsd / 39, rel=1e-4) and pair["jsd"] > 1e-4
    assert pair["kl_per_text"] == pytest.approx(kl / 3, rel=1e-4)
    assert pair["kl_per_positive"] == pytest.approx(kl / 4, rel=1e-4)


def test_one_branch_has_no_pairs(encoder_folder):
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, branches="global")
    batch = {"input_ids": torch.tensor([[6, 7]]), "attention_mask": torch.ones(1, 2), "labels": torch.tensor([[0, 2]])}
    assert branch_divergences(model, [batch]) == {"texts": 1, "labels": 3, "positives": 2, "pairs": []}
