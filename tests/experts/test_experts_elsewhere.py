"""Experts on another device: no tensor stays behind."""

import sys
from pathlib import Path

import pytest
import torch
from expert_models import MODELS, NUM_LABELS, make_inputs, make_model

from glocal_xml.explain.blended_logit import lexical_contributions

sys.path.append(str(Path(__file__).parents[1] / "modeling"))
from other_device import OtherTensor, other_device, to_other_device


@pytest.mark.parametrize("case", MODELS)
def test_no_tensor_stays_on_the_cpu(case):
    expected, inputs = make_model(case), make_inputs()
    model = to_other_device(make_model(case))
    text_ids = inputs["input_ids"].masked_fill(inputs["input_ids"] < 5, -100)
    other = {name: OtherTensor(values) for name, values in {**inputs, "text_ids": text_ids}.items()}
    with other_device():
        best = model.predict_top_k(**other)
        some = model.predict_top_k(**other, candidate_ids=[3, 1, 8], top_k=2)
        scores = model.score_labels(torch.arange(NUM_LABELS), **other)
    twin = expected.predict_top_k(**inputs, text_ids=text_ids)
    torch.testing.assert_close(best.top_k_scores.inner, twin.top_k_scores)
    torch.testing.assert_close(
        some.top_k_scores.inner, expected.predict_top_k(**inputs, candidate_ids=[3, 1, 8], top_k=2).top_k_scores
    )
    for name, values in expected.score_labels(torch.arange(NUM_LABELS), **inputs).items():
        torch.testing.assert_close(scores[name].inner, values, rtol=1e-4, atol=1e-5)


def test_contributions_and_similar_texts_elsewhere():
    model, expected = to_other_device(make_model("text_experts")), make_model("text_experts")
    ids, labels = torch.tensor([7, 9, 7, 60]), torch.tensor([2, 5])
    with other_device():
        shares, start = lexical_contributions(model.lexical, OtherTensor(labels), OtherTensor(ids))
        similarities, rows = model.memory.similar(OtherTensor(ids[None]), 4)
        found = model.memory.labels_of(int(rows.inner[0, 0]))
    own_shares, own_start = lexical_contributions(expected.lexical, labels, ids)
    torch.testing.assert_close(shares.inner, own_shares)
    torch.testing.assert_close(start.inner, own_start)
    torch.testing.assert_close(similarities.inner, expected.memory.similar(ids[None], 4)[0])
    assert found == expected.memory.labels_of(int(rows.inner[0, 0]))
