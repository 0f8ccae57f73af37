"""Ensembles of tiny models, against a plain loop over all labels."""

import json
import logging
import shutil

import numpy as np
import pytest
import torch
from close_rankings import assert_best
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_strategies
from transformers import AutoModel, AutoTokenizer

from glocal_xml.cli import main as cli
from glocal_xml.cli.ensemble import main
from glocal_xml.data import LabelSpace, build_label_tree
from glocal_xml.ensembles import ensemble_top_k
from glocal_xml.ensembles.checkpoints import member_names, union_of_labels
from glocal_xml.modeling import GlocalXMLForMultiLabel, MEXMLForMultiLabel
from glocal_xml.training import XMTCTrainingArguments

LABELS = [f"is {word}" for word in ("apple", "banana", "cherry", "dog", "elephant", "fox", "green", "house")]
TEXTS = ["apple dog moon", "fox", "green house kite lemon moon night", "banana cherry", "queen paper ocean"]


@pytest.fixture
def member(encoder_folder, tokenizer, tmp_path):
    """Saves a random model of the labels as a run would leave it."""

    def save(name, family=GlocalXMLForMultiLabel, seed=0, tree_seed=None, labels=LABELS, max_length=64, **fields):
        tree = None
        if tree_seed is not None:
            features = np.random.default_rng(tree_seed).random((len(labels), 5))
            tree = build_label_tree(features, cluster_size=3, seed=tree_seed, show_progress=False)
            fields["tree_levels"] = tree.level_sizes
        if family is GlocalXMLForMultiLabel:
            fields["mlp_size"] = 8
        torch.manual_seed(seed)
        model = family.from_encoder(encoder_folder, label_names=labels, top_k=4, **fields)
        if tree is not None:
            model.set_label_tree(tree.child_starts, tree.label_order)
        model.set_label_counts([3] * len(labels))
        with torch.no_grad():
            # As they start, models hardly tell labels or texts apart.
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.2)
            model.encoder.get_input_embeddings().weight.normal_(std=3.0)
        folder = tmp_path / name
        model.save_pretrained(folder)
        tokenizer.model_max_length = max_length
        tokenizer.save_pretrained(folder)
        tokenizer.model_max_length = 64
        LabelSpace(labels, [3] * len(labels), num_texts=12).save(folder)
        return str(folder)

    return save


@pytest.fixture
def rank(tmp_path):
    def call(members, top_k, candidates):
        args = XMTCTrainingArguments(output_dir=str(tmp_path), use_cpu=True, per_device_eval_batch_size=2)
        texts = Dataset.from_dict({"text": TEXTS})
        label_space = LabelSpace.load(members[0])
        return ensemble_top_k(members, texts, label_space, args, top_k=top_k, candidates=candidates)

    return call


def plain_probabilities(folder):
    """Final probabilities of all labels of every text, a text at a time."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    rows = []
    for text in TEXTS:
        inputs = tokenizer(text, truncation=True, return_tensors="pt")
        with torch.no_grad():
            rows.append(model(**inputs, output_logits=True).logits[0].sigmoid().double().numpy())
    return np.stack(rows)


def plain_ranking(probabilities, top_k):
    order = [sorted(range(len(row)), key=lambda label: (-row[label], label))[:top_k] for row in probabilities]
    return np.array(order), np.take_along_axis(probabilities, np.array(order), axis=1)


def assert_ranked(ids, probabilities, top_k):
    """A batch of texts rounds otherwise than one: labels closer than that may change places."""
    assert all(len(set(row)) == top_k for row in ids.tolist())
    found = np.take_along_axis(probabilities, ids, axis=1)
    np.testing.assert_allclose(found, plain_ranking(probabilities, top_k)[1], rtol=1e-4)


@pytest.mark.parametrize("tree_seed", [None, 1])
def test_a_model_with_itself_is_the_model(member, rank, tree_seed):
    folder = member("one", tree_seed=tree_seed)
    ids, scores, members = rank([folder, folder], top_k=4, candidates=4)
    probabilities = plain_probabilities(folder)
    assert_ranked(ids, probabilities, 4)
    np.testing.assert_allclose(scores, plain_ranking(probabilities, 4)[1], rtol=1e-4)
    assert_ranked(members[0], probabilities, 4)


def test_exact_where_all_labels_are_candidates(member, rank):
    """Other families, label trees and lengths of text: the mean over members, as a loop over all labels gives it."""
    folders = [
        member("plain", seed=1),
        member("first tree", seed=2, tree_seed=1),
        member("second tree", seed=3, tree_seed=2),
        member("experts", MEXMLForMultiLabel, seed=4, max_length=4, experts=["A-1", "D--1"]),
    ]
    each = [plain_probabilities(folder) for folder in folders]
    expected_ids, expected_scores = plain_ranking(np.mean(each, axis=0), 5)
    assert len(np.unique(expected_ids, axis=0)) > 1, "texts have rankings of their own"
    ids, scores, members = rank(folders, top_k=5, candidates=len(LABELS))
    assert_ranked(ids, np.mean(each, axis=0), 5)
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4)
    for found, probabilities in zip(members, each, strict=True):
        assert_ranked(found, probabilities, 5)
        assert (found != ids).any(), "no member decides alone"


def test_few_candidates_are_ranked_by_exact_means(member, rank):
    folders = [member("one", seed=1), member("two", seed=2), member("three", seed=3)]
    each = [plain_probabilities(folder) for folder in folders]
    mean, chosen = np.mean(each, axis=0), np.zeros((len(TEXTS), len(LABELS)), dtype=bool)
    for probabilities in each:
        np.put_along_axis(chosen, plain_ranking(probabilities, 2)[0], True, axis=1)
    assert len(set(chosen.sum(axis=1))) > 1, "texts differ in how many labels are brought in"
    ids, scores, _ = rank(folders, top_k=2, candidates=2)
    assert_ranked(ids, np.where(chosen, mean, -1.0), 2)
    np.testing.assert_allclose(scores, np.take_along_axis(mean, ids, axis=1), rtol=1e-4)


RANKINGS = st.tuples(st.integers(1, 4), st.integers(1, 3), st.integers(1, 5)).flatmap(
    lambda shape: numpy_strategies.arrays(np.int64, shape, elements=st.integers(0, 6))
)


@given(rankings=RANKINGS)
def test_the_union_holds_every_label_once(rankings):
    label_ids, is_own = union_of_labels(list(rankings))
    assert is_own.all(axis=0).shape == is_own.any(axis=0).shape == (is_own.sum(axis=1).max(),)
    for row, own, lists in zip(label_ids, is_own, rankings.swapaxes(0, 1), strict=True):
        assert row[own].tolist() == sorted(set(lists.ravel().tolist()))
        assert set(row[~own].tolist()) <= set(row[own].tolist())
        assert own.tolist() == sorted(own.tolist(), reverse=True), "what counts comes first"


def test_names_of_members(tmp_path):
    assert member_names(["a/run", "b/run/", "org/run", "ensemble", "run-2"]) == [
        *("run", "run-2", "run-3", "ensemble-2", "run-2-2"),
    ]


def test_command_from_files_to_results(member, text_file, tmp_path, caplog, capsys):
    folders = [member("a", seed=1, tree_seed=1), member("a folder of a very long name", seed=2, tree_seed=2)]
    new = tmp_path / "new.jsonl"
    new.write_text('{"text": "apple dog moon"}\n{"text": "fox"}\n', encoding="utf-8")
    options = [
        *("--test_file", text_file("test.jsonl", 6), "--predict_file", str(new), "--metrics_at", "1", "3"),
        *("--top_k", "2", "--candidates", "8", "--per_device_eval_batch_size", "4", "--use_cpu", "true"),
        *("--output_dir", str(tmp_path / "out" / "both")),
    ]
    with caplog.at_level(logging.INFO):
        assert cli(["ensemble", *folders, *options]) == 0
    assert any("P@3" in line and "R@3" in line and "a folder of a very long name " in line for line in caplog.messages)
    results = json.loads((tmp_path / "out" / "both" / "results.json").read_text(encoding="utf-8"))
    assert list(results["test"]) == ["ensemble", "a", "a folder of a very long name"]
    assert list(results["ensemble"]["members"].values()) == folders
    lines = [json.loads(line) for line in (tmp_path / "out" / "both" / "predictions.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines] == ["test"] * 6 + ["predict"] * 2
    assert all(len(line["predictions"]) == 2 for line in lines)
    assert all(item["label"] in LABELS for line in lines for item in line["predictions"])
    # The file agrees with the metrics, and with the mean of the two.
    hits = [line["predictions"][0]["label"] in line["labels"] for line in lines[:6]]
    assert np.mean(hits) == pytest.approx(results["test"]["ensemble"]["precision@1"])
    mean = np.mean([plain_probabilities(folder) for folder in folders], axis=0)
    for line, row in zip(lines[6:], mean[:2], strict=True):
        everything = zip(LABELS, row.tolist(), strict=True)
        assert_best(line["predictions"], [{"label": label, "score": score} for label, score in everything])
    # Members are measured as they are on their own.
    alone = ["evaluate", folders[0], options[1], *options[4:7], "--use_cpu", "true", "--output_dir"]
    assert cli([*alone, str(tmp_path / "alone")]) == 0
    measured = json.loads((tmp_path / "alone" / "results.json").read_text(encoding="utf-8"))["test"]["both"]
    expected = {name: value for name, value in measured.items() if name in results["test"]["a"]}
    assert "psp@3" in expected and results["test"]["a"] == pytest.approx(expected)
    capsys.readouterr()
    assert cli(["ensemble", *folders, *options]) == 2
    assert "holds another run" in capsys.readouterr().err
    assert cli(["ensemble", *folders, *options, "--overwrite_output", "true"]) == 0
    assert cli(["card", str(tmp_path / "out" / "both")]) == 2


def test_mistakes_are_named(member, text_file, tmp_path):
    first, second = member("first"), member("second", seed=1)
    data = ["--test_file", text_file("test.jsonl", 2), "--use_cpu", "true", "--output_dir", str(tmp_path / "out")]
    other = member("other", labels=[*LABELS[:3], "is cat", *LABELS[4:]])
    with pytest.raises(ValueError, match="Label 3 is 'is dog' in .*first and 'is cat' in .*other"):
        main([first, other, *data])
    fewer = member("fewer", labels=LABELS[:6])
    with pytest.raises(ValueError, match="Label 6 is 'is green' in .*first and missing in .*fewer"):
        main([first, fewer, *data])
    short = member("short", shortlist=5)
    with pytest.raises(ValueError, match="shortlist of 5 labels"):
        main([first, short, *data])
    both = [first, second]
    for arguments, message in {
        (first, *data): "two members or more",
        (*both, *data[2:]): "Nothing to do",
        (*both, *data, "--candidates", "3"): "`candidates` is 3, but 8 labels",
        (*both, *data, "--top_k", "0"): "`top_k` must be at least 1",
        (*both, *data, "--encoder", "minilm"): "unrecognized arguments: --encoder",
        (*both, *data, "--streaming", "true"): "unrecognized arguments: --streaming",
        (*both, *data, "--output_dir", second, "--overwrite_output", "true"): "holds the model",
    }.items():
        with pytest.raises(ValueError, match=message):
            main(list(arguments))
    shutil.rmtree(second)
    with pytest.raises((ValueError, OSError)):
        main([*both, *data])
    assert not (tmp_path / "out").exists()
