"""Labels of models with experts come and go: in the lexical tables, the memory, and the frequencies of the blend."""

import copy
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from test_edit_labels import ADDED, NAMES, REMOVED, make_space
from transformers import AutoModel

from glocal_xml.labels import edit_labels
from glocal_xml.modeling.experts import add_branch

sys.path.append(str(Path(__file__).parents[1] / "experts"))
from expert_models import MODELS, NUM_LABELS, TEXT_EXPERTS, make_inputs
from expert_models import make_model as make_expert_model

KEPT = [i for i, name in enumerate(NAMES) if name not in REMOVED]


def make_model(case, **fields):
    model = make_expert_model(case, **fields)
    model.set_label_names(NAMES)
    return model


def logits_of(model, inputs):
    with torch.no_grad():
        output = model(**inputs, candidate_ids=torch.arange(model.config.num_labels))
    return dict(zip(model.branch_names, output.branch_logits.unbind(dim=1), strict=True)) | {"final": output.logits}


@pytest.mark.parametrize("case", MODELS)
def test_labels_that_stay_keep_their_scores(case, tokenizer, tmp_path):
    model, inputs = make_model(case), make_inputs()
    before, weights = logits_of(model, inputs), copy.deepcopy(model.state_dict())
    new, space = edit_labels(model, make_space(), tokenizer, add=ADDED, remove=REMOVED, rename={"moon a": "sun"})
    after = logits_of(new, inputs)
    memories, votes = {"memory", "dense"} & before.keys(), 0.0
    for name in memories:
        old, left = (torch.zeros_like(before[name][:, KEPT]) for _ in range(2))
        weights_of = model.config.blend["weights"]
        add_branch(old, name, before[name][:, KEPT], weights_of)
        votes = votes + add_branch(left, name, after[name][:, : len(KEPT)], weights_of) - old
    for branch, values in before.items():
        if branch in memories:
            continue
        # The final ones, but for the votes of texts that are forgotten.
        expected = values[:, KEPT] + (votes if branch == "final" else 0)
        torch.testing.assert_close(after[branch][:, : len(KEPT)], expected, rtol=1e-4, atol=1e-4)
    assert new.label_names == space.names and new.config.blend == model.config.blend
    assert all(torch.equal(values, weights[name]) for name, values in model.state_dict().items())
    new.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    for branch, values in logits_of(loaded, inputs).items():
        torch.testing.assert_close(values, after[branch], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", [TEXT_EXPERTS, "glocal_xml-tree"])
def test_only_new_names_change_no_score(case, tokenizer):
    model, inputs = make_model(case), make_inputs()
    new, _ = edit_labels(model, make_space(), tokenizer, rename={"moon a": "sun"})
    for branch, values in logits_of(model, inputs).items():
        torch.testing.assert_close(logits_of(new, inputs)[branch], values)
    added, _ = edit_labels(model, make_space(), tokenizer, add=["plum"])
    for branch, values in logits_of(model, inputs).items():
        torch.testing.assert_close(logits_of(added, inputs)[branch][:, :-1], values)


def test_experts_know_nothing_of_a_new_label(tokenizer):
    model, inputs = make_model("glocal_xml"), make_inputs()
    new, space = edit_labels(model, make_space(), tokenizer, add=["moon  d"])
    after = logits_of(new, inputs)
    # The heads have it as a copy.
    torch.testing.assert_close(after["global"][:, -1], after["global"][:, NAMES.index("moon d")])
    # Below the cluster of the similar one, with the margin of no.
    own, parents = new.lexical.tables[-1], new.lexical.parents_1
    assert not (own.rows == NUM_LABELS).any() and new.lexical.biases_1[-1] == -1
    assert parents[-1] == parents[NAMES.index("moon d")]
    assert (after["lexical"][:, -1] < -3).all()
    torch.testing.assert_close(after["memory"][:, -1], torch.full((8,), float(np.log(0.05 / 1.05))))
    assert new.log_frequencies[-1].item() == pytest.approx(np.log(1 / (space.num_texts + 2)))


def test_texts_without_a_label_left_are_forgotten(tokenizer):
    model = make_model(TEXT_EXPERTS)
    old = [model.memory.labels_of(row) for row in range(len(model.memory.text_numbers))]
    new, _ = edit_labels(model, make_space(), tokenizer, remove=REMOVED)
    gone = {NAMES.index(name) for name in REMOVED}
    expected = {
        number: [KEPT.index(label) for label in labels if label not in gone]
        for number, labels in enumerate(old)
        if set(labels) - gone
    }
    found = {number: new.memory.labels_of(row) for row, number in enumerate(new.memory.text_numbers.tolist())}
    assert found == expected and 0 < len(found) < len(old)


def test_names_are_compared_by_their_tokens_without_an_encoder(tokenizer):
    model = make_model(TEXT_EXPERTS)
    parents = model.lexical.parents_1
    new, _ = edit_labels(model, make_space(), tokenizer, add=["moon  d", "d d queen"])
    assert new.lexical.parents_1[-2] == parents[NAMES.index("moon d")]
    assert new.lexical.parents_1[-1] == parents[NAMES.index("queen d")]


def test_a_name_that_is_like_no_other_is_told(tokenizer, caplog):
    edit_labels(make_model(TEXT_EXPERTS), make_space(), tokenizer, add=["moon  d", "house"])
    assert "No label has a name like that of 1 new ones, such as 'house'" in caplog.text


@pytest.mark.parametrize("expert", ["lexical", "memory"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_one_expert_in_another_precision(expert, dtype, tokenizer):
    model, inputs = make_model(TEXT_EXPERTS, experts=[expert]).to(dtype), make_inputs()
    before = logits_of(model, inputs)[expert]
    new, _ = edit_labels(model, make_space(), tokenizer, add=["plum"])
    assert new.dtype == dtype and new.text_experts()[expert].counter.weights.dtype == dtype
    torch.testing.assert_close(logits_of(new, inputs)[expert][:, :-1], before)
