"""Labels of models of every family come and go, and the others keep their scores."""

import dataclasses
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.data import LabelSpace
from glocal_xml.labels import edit_labels, plan_changes, tree_rows
from glocal_xml.modeling import FAMILIES
from glocal_xml.modeling.label_tree import CandidateTree

sys.path.append(str(Path(__file__).parents[1] / "modeling"))
from plain_candidates import children_of, make_tree
from test_families import CASES, LABEL_COUNTS, NUM_LABELS, make_batch, tell_about_labels

NAMES = [f"{first} {second}" for first in ("apple", "dog", "moon", "queen", "ice") for second in "abcde"][:NUM_LABELS]
REMOVED = ["apple b", "dog c", "queen e"]
ADDED = ["apple f", "kite"]


def make_model(case):
    config_class, fields = CASES[case]
    torch.manual_seed(0)
    encoder = ENCODER_CONFIGS["bert"]().to_dict()
    model = FAMILIES[config_class](config_class(encoder=encoder, num_labels=NUM_LABELS, top_k=5, **fields))
    tell_about_labels(model)
    model.start_epoch(99)
    model.set_label_names(NAMES)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


def make_space():
    return LabelSpace(names=list(NAMES), counts=LABEL_COUNTS.tolist(), num_texts=100)


def all_probabilities(model):
    batch = make_batch(model)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    return model.score_labels(torch.arange(model.config.num_labels), **inputs)


@pytest.mark.parametrize("case", sorted(CASES))
def test_labels_that_stay_keep_their_scores(case, tokenizer, tmp_path):
    model = make_model(case)
    before = all_probabilities(model)
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    new, space = edit_labels(model, make_space(), tokenizer, add=ADDED, remove=REMOVED, rename={"moon a": "sun"})
    kept = [i for i, name in enumerate(NAMES) if name not in REMOVED]
    assert new.label_names == space.names == [*("sun" if NAMES[i] == "moon a" else NAMES[i] for i in kept), *ADDED]
    assert space.counts == [*LABEL_COUNTS[kept].tolist(), 0, 0]
    after = all_probabilities(new)
    for branch, scores in before.items():
        torch.testing.assert_close(after[branch][:, : len(kept)], scores[:, kept], rtol=0, atol=1e-12)
    # A new label is a copy of an old one; of which one, the test below tells.
    for column in after["final"][:, len(kept) :].T:
        assert (before["final"] - column.unsqueeze(1)).abs().amax(dim=0).min() < 1e-12
    assert all(torch.equal(values, weights[name]) for name, values in model.state_dict().items())
    new.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.label_names == new.label_names
    for branch, scores in all_probabilities(loaded).items():
        # Weights from a file lie elsewhere in memory, by which products may round otherwise.
        torch.testing.assert_close(scores, after[branch], rtol=0, atol=1e-12)
    # Best labels, and a step of training.
    batch = make_batch(loaded)
    batch["labels"][batch["labels"] >= loaded.config.num_labels] = -100
    output = loaded.train()(**batch)
    output.loss.backward()
    assert output.loss.isfinite()


# To the tokenizer, two spaces are like one.
def test_a_new_label_starts_as_the_one_with_the_most_similar_name(tokenizer):
    model = make_model("glocal_xml-pooler")
    new, _ = edit_labels(model, make_space(), tokenizer, add=["moon  d", "queen  b"])
    table, old = new.global_head.label_embeddings, model.global_head.label_embeddings
    for row, name in ((-2, "moon d"), (-1, "queen b")):
        assert torch.equal(table.weight[row], old.weight[NAMES.index(name)])
        assert table.bias[row] == old.bias[NAMES.index(name)]


def test_new_labels_join_the_cluster_of_the_similar_one_and_empty_clusters_go(tokenizer):
    model = make_model("glocal_xml-tree")
    tree = model.label_tree
    cluster = tree.label_clusters[NAMES.index("moon d")]
    emptied = next(i for i in range(8) if i != cluster)
    gone = [NAMES[i] for i in children_of(tree, 1, emptied)]
    new, space = edit_labels(model, make_space(), tokenizer, add=["moon  d"], remove=gone)
    assert new.config.tree_levels == [3, 7]
    assert len(new.level_classifiers[1].label_embeddings.weight) == 7
    clusters = new.label_tree.label_clusters
    assert clusters[space.names.index("moon  d")] == clusters[space.names.index("moon d")]


def test_removed_labels_can_be_what_new_ones_start_as(tokenizer):
    model = make_model("light_attention-tree")
    before = all_probabilities(model)["final"]
    new, _ = edit_labels(model, make_space(), tokenizer, add=["moon  d"], remove=NAMES)
    assert new.config.tree_levels == [1, 1] and new.label_names == ["moon  d"]
    torch.testing.assert_close(all_probabilities(new)["final"][:, 0], before[:, NAMES.index("moon d")])


def test_clusters_by_frequency(tokenizer):
    model = make_model("aplc_xlnet-tails")
    head = model.head
    new, _ = edit_labels(model, make_space(), tokenizer, add=ADDED, remove=REMOVED)
    # New labels are in the last cluster, as if they were the rarest.
    assert {23 - 3, 23 - 2} <= set(new.head.label_order[new.head.runs[-1]].tolist())
    gone = {NAMES.index(name) for name in REMOVED}
    lost = [len(gone & set(head.label_order[run].tolist())) for run in head.runs]
    assert new.head.sizes == [
        size - n + 2 * (i == 2) for i, (size, n) in enumerate(zip(head.sizes, lost, strict=True))
    ]
    frequent = [NAMES[i] for i in head.label_order[head.runs[0]]]
    with pytest.raises(ValueError, match="No label of cluster 0"):
        edit_labels(model, make_space(), tokenizer, remove=frequent)


def test_me_xml_keeps_counts(tokenizer):
    model = make_model("me_xml")
    new, space = edit_labels(model, make_space(), tokenizer, add=ADDED)
    assert new.label_counts.tolist() == space.counts


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "No change"),
        ({"remove": ["plum"]}, "does not have, such as 'plum'"),
        ({"rename": {"plum": "pear"}}, "does not have, such as 'plum'"),
        ({"add": ["dog a"]}, "'dog a', which is a label of the model already"),
        ({"add": ["dog a"], "remove": ["dog a"]}, "'dog a' is to be removed and"),
        ({"rename": {"dog a": "pear"}, "remove": ["dog a"]}, "'dog a' is to be removed and"),
        ({"rename": {"dog a": "dog b"}}, "'dog b' occurs 2 times"),
        ({"add": ["x", "x"]}, "'x' occurs 2 times"),
        ({"remove": NAMES}, "no labels"),
    ],
)
def test_changes_that_make_no_sense(changes, message):
    with pytest.raises(ValueError, match=message):
        plan_changes(make_space(), **{"add": [], "remove": [], "rename": {}, **changes})


def test_a_new_label_that_is_another_spelling_of_one_is_named(caplog):
    plan_changes(make_space(), ["Apple  A"], [], {})
    assert "1 labels are written in several ways" in caplog.text and "'apple a' and 'Apple  A'" in caplog.text


def test_names_can_be_swapped(tokenizer):
    swapped = {"dog a": "dog b", "dog b": "dog a"}
    new, space = edit_labels(make_model("glocal_xml"), make_space(), tokenizer, rename=swapped)
    assert space.names[5:7] == ["dog b", "dog a"] == new.label_names[5:7]


def test_what_cannot_be_edited(tokenizer):
    model = make_model("aplc_xlnet")
    model.head.cluster_sizes.zero_()
    with pytest.raises(ValueError, match="train it first"):
        edit_labels(model, make_space(), tokenizer, remove=["dog a"])
    with pytest.raises(ValueError, match="from one folder"):
        edit_labels(model, dataclasses.replace(make_space(), names=["a"], counts=[1]), tokenizer, add=["b"])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_trees_keep_their_shape(data):
    """Every label that is left lies below the nodes it lay below before."""
    levels = data.draw(st.sampled_from([[3], [2, 5], [2, 4, 9]]))
    tree = CandidateTree(NUM_LABELS, levels)
    tree.set_tree(*make_tree(NUM_LABELS, levels, seed=data.draw(st.integers(0, 5))))
    kept = data.draw(st.lists(st.integers(0, NUM_LABELS - 1), unique=True)).copy()
    joined = data.draw(st.lists(st.integers(0, NUM_LABELS - 1), min_size=not kept, max_size=4))
    origins = torch.tensor(sorted(kept) + joined)
    child_starts, label_order, nodes = tree_rows(tree, origins)
    new = CandidateTree(len(origins), [len(level) for level in nodes])
    new.set_tree(child_starts, label_order)
    for level, (before, after) in enumerate(
        zip(tree.ancestors(origins), new.ancestors(torch.arange(len(origins))), strict=True)
    ):
        assert torch.equal(nodes[level][after], before)
