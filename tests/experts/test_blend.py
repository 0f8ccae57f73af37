"""Fitting the blend: its pairs, its regression, and what happens with too few texts."""

import logging

import numpy as np
import pytest
import torch
from expert_models import (
    MODELS,
    NUM_LABELS,
    SHORTLIST,
    TREE_CASES,
    all_scores,
    log_frequencies,
    make_inputs,
    make_model,
)
from sklearn.linear_model import LogisticRegression

from glocal_xml.calibration import best_threshold
from glocal_xml.experts import blend_pairs, fit_blend, fixed_blend
from glocal_xml.experts.fit_blend import CANDIDATES, BlendPairs
from glocal_xml.explain.blended_logit import takes_part
from glocal_xml.modeling.experts import add_branch


def batches(texts=12):
    inputs = make_inputs(texts)
    labels = torch.randint(0, NUM_LABELS, (texts, 3), generator=torch.Generator().manual_seed(2))
    labels[0], labels[1, 1:] = -100, -100
    cut = texts // 2
    whole = {**inputs, "labels": labels}
    return [{name: values[part] for name, values in whole.items()} for part in (slice(cut), slice(cut, None))], whole


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("number", [3, CANDIDATES])
def test_pairs_are_the_best_labels_of_every_branch(case, number):
    model = make_model(case)
    parts, whole = batches()
    pairs = blend_pairs(model, parts, number)
    inputs = {name: whole[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        output = model(**inputs, candidate_ids=torch.arange(NUM_LABELS))
    keys = list(zip(pairs.texts.tolist(), pairs.labels.tolist(), strict=True))
    assert len(keys) == len(set(keys)) and pairs.texts.tolist() == sorted(pairs.texts)
    for place, (text, label) in enumerate(keys):
        np.testing.assert_allclose(pairs.logits[place], output.branch_logits[text, :, label], rtol=1e-3, atol=1e-4)
        assert pairs.final_logits[place] == pytest.approx(output.logits[text, label].item(), rel=1e-3, abs=1e-4)
        assert pairs.is_true[place] == (label in whole["labels"][text].tolist())
    found = set(keys)
    # With a tree or a shortlist heads find labels by their own way; experts rank all labels everywhere.
    places = {name: i for i, name in enumerate(model.branch_names)}
    searched = case in TREE_CASES or case == SHORTLIST
    for name in list(model.text_experts()) if searched else model.branch_names:
        best = output.branch_logits[:, places[name]].topk(number).indices
        top = {(text, label) for text, row in enumerate(best.tolist()) for label in row[:1]}
        assert top <= found
    assert [row.tolist() for row in pairs.true_labels] == [
        [label for label in row if label >= 0] for row in whole["labels"].tolist()
    ]


def test_pairs_do_not_change_the_mode_of_the_model():
    model = make_model("glocal_xml").train()
    blend_pairs(model, batches()[0])
    assert model.training


def made_pairs(texts=80, seed=0):
    random = np.random.default_rng(seed)
    per_text = 15
    number = texts * per_text
    labels = np.concatenate([random.permutation(NUM_LABELS)[:per_text] for _ in range(texts)])
    logits = random.normal(-2, 2, size=(number, 3)).astype(np.float32)
    # The lexical logit counts less above the knot, and a vote beside its size.
    further = [np.maximum(logits[:, 1] + 2, 0), logits[:, 2] > -3.04]
    weighed = np.column_stack([logits, *further]) @ [1.0, 1.5, 0.5, -1.0, 1.0]
    chance = 1 / (1 + np.exp(-weighed - 4))
    is_true = random.random(number) < chance
    text = np.repeat(np.arange(texts), per_text)
    true_labels = [np.append(labels[(text == i) & is_true], NUM_LABELS - 1) for i in range(texts)]
    return BlendPairs(text, labels, logits, logits.mean(axis=1), is_true, true_labels)


@pytest.mark.parametrize("f", ["micro", "macro", "samples"])
def test_weights_are_those_of_a_logistic_regression(f):
    pairs, names = made_pairs(), ["global", "lexical", "memory"]
    blend = fit_blend(pairs, names, log_frequencies(), f=f)
    heads, lexical, memory = pairs.logits.T.astype(np.float64)
    columns = [
        heads,
        lexical,
        memory,
        np.maximum(lexical + 2, 0),
        np.clip(1000 * (memory - np.log(0.05 / 1.05)), 0, 1),
    ]
    features = np.column_stack([*columns, log_frequencies()[pairs.labels]])
    twin = LogisticRegression(C=100.0, max_iter=1000).fit(features, pairs.is_true)
    further = ["lexical_bend", "memory_vote", "frequency", "bias"]
    assert list(blend["weights"]) == [*names, *further]
    weights = blend["weights"]
    expected = dict(zip([*names, *further], [*twin.coef_[0], twin.intercept_[0]], strict=True))
    assert weights == pytest.approx(expected, rel=0.01, abs=0.01)
    assert weights["global"] > 0.8 and weights["lexical"] > 1 and weights["lexical_bend"] < -0.5
    logits = pairs.blended(blend, names, log_frequencies())
    np.testing.assert_allclose(logits, twin.decision_function(features), rtol=0.01, atol=0.01)
    assert blend["threshold"] == pytest.approx(best_threshold(pairs.scored(logits, NUM_LABELS), f, 1.0), abs=1e-6)
    assert (blend["texts"], blend["f"], blend["beta"]) == (80, f, 1.0)


@pytest.mark.parametrize("against", ["global", "lexical", "memory"])
def test_no_branch_speaks_against_labels(against):
    pairs, names = made_pairs(200), ["global", "lexical", "memory"]
    pairs.logits[:, names.index(against)] = -2.0 * (
        pairs.is_true + np.random.default_rng(1).normal(size=len(pairs.texts))
    )
    blend = fit_blend(pairs, names, log_frequencies())
    for name in names:
        rising = torch.linspace(-3.04, 6, 50)
        assert (branch_part(name, rising, blend["weights"]).diff() >= -1e-6).all()
    assert not takes_part(against, blend["weights"])
    assert all(takes_part(name, blend["weights"]) for name in {"global", "lexical"} - {against})


def branch_part(name, logits, weights):
    return add_branch(torch.zeros_like(logits), name, logits, weights)


def test_parts_of_experts_beside_their_logits():
    # The first are the log-odds of no vote.
    none = np.float32(np.log(0.05 / 1.05)).item()
    logits = torch.tensor([none, -3.0, -2.0, -1.0, 3.0])
    weights = {"lexical": 0.5, "lexical_bend": -0.25, "memory": 2.0, "memory_vote": 1.5, "global": 1.0}
    assert branch_part("lexical", logits, weights).tolist() == pytest.approx([none / 2, -1.5, -1.0, -0.75, 0.25])
    assert branch_part("memory", logits, weights).tolist() == pytest.approx([2 * none, -4.5, -2.5, -0.5, 7.5])
    assert branch_part("global", logits, weights).tolist() == logits.tolist()
    assert not branch_part("local", logits, weights).any() and not takes_part("local", weights)
    assert takes_part("memory", {"memory": 0.0, "memory_vote": 1.0}) and not takes_part("memory", {"memory": 0.0})


def test_a_model_takes_it_over_as_it_was_fitted():
    """The logits of the model are those that the fit saw."""
    model = make_model("glocal_xml", blend=False)
    parts, _ = batches(120)
    pairs = blend_pairs(model, parts)
    blend = fit_blend(pairs, model.branch_names, log_frequencies())
    assert blend["texts"] == 120
    model.set_blend(blend, log_frequencies())
    after = blend_pairs(model, parts)
    expected = dict(
        zip(
            zip(pairs.texts, pairs.labels, strict=True),
            pairs.blended(blend, model.branch_names, log_frequencies()),
            strict=True,
        )
    )
    for place, key in enumerate(zip(after.texts, after.labels, strict=True)):
        if key in expected:
            assert after.final_logits[place] == pytest.approx(expected[key], rel=1e-3, abs=1e-3)
    model.config.validate()


@pytest.mark.parametrize("what", ["few texts", "few true", "all true"])
def test_too_few_texts_have_fixed_weights(what, caplog):
    pairs = made_pairs(20 if what == "few texts" else 80)
    if what == "few true":
        pairs.is_true[:] = False
    if what == "all true":
        pairs.is_true[:] = True
    with caplog.at_level(logging.WARNING):
        blend = fit_blend(pairs, ["global", "local", "lexical", "memory"], log_frequencies())
    assert "too few to fit the blend" in caplog.text
    assert blend["texts"] == 0 and blend == fixed_blend(["global", "local", "lexical", "memory"])
    assert sum(blend["weights"].values()) == pytest.approx(1) and blend["threshold"] == 0.5


def test_fixed_weights_work_in_a_model():
    for case in ("text_experts", "glocal_xml"):
        model = make_model(case)
        model.set_blend(fixed_blend(model.branch_names), log_frequencies())
        model.config.validate()
        scores = all_scores(model, make_inputs())
        assert scores["final"].isfinite().all()


def test_a_measure_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="micro"):
        fit_blend(made_pairs(), ["global", "lexical", "memory"], log_frequencies(), f="mean")


def test_a_blend_can_be_taken_out_again(tmp_path):
    model, inputs = make_model("glocal_xml"), make_inputs()
    model.set_blend(None, None)
    for name in list(model.text_experts()):
        model.set_expert(name, None, None)
    bare = make_model("glocal_xml", blend=False, experts=())
    assert torch.equal(model.predict_top_k(**inputs).top_k_scores, bare.predict_top_k(**inputs).top_k_scores)
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert loaded.config.blend is None and not loaded.text_experts()
