"""Models that have collapsed to the base rate, and models that have not."""

import importlib.util
import json
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModel

from glocal_xml import GlocalXMLForMultiLabel, LabelSpace
from glocal_xml.cli.train import main
from glocal_xml.metrics import RankedLabels, ndcg_at_k, pad_label_lists
from glocal_xml.training import XMTCTrainingArguments
from glocal_xml.training.collapse import CollapseWatch

EXAMPLES = Path(__file__).parents[2] / "examples"
TEXTS, LABELS = 60, 12
WARNING = "collapsed to the base rate"


@pytest.fixture(scope="module")
def model(encoder_folder):
    return GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=[f"label {i}" for i in range(LABELS)])


@pytest.fixture
def watch(model, tmp_path):
    args = XMTCTrainingArguments(output_dir=str(tmp_path), metrics_at=[1, 3], use_cpu=True)
    space = LabelSpace(names=model.label_names, counts=[*range(2 * LABELS, LABELS, -1)], num_texts=100)
    return CollapseWatch(space, args, model)


# Label 0 is frequent, the others depend on the text.
TRUE = pad_label_lists([[0, 1 + i % (LABELS - 1)] if i % 2 else [1 + i % (LABELS - 1)] for i in range(TEXTS)])
PERFECT = np.stack([[*[i for i in row if i >= 0], 11, 10, 9][:3] for row in TRUE.tolist()])
CONSTANT = np.tile([0, 1, 2], (TEXTS, 1))


def test_constant_rankings_are_a_collapse_and_good_ones_are_not(watch):
    assert "no better than their frequency" in watch.symptom(CONSTANT, TRUE)
    assert watch.symptom(PERFECT, TRUE) is None
    # Little better than frequency, on a few texts alone.
    barely = CONSTANT.copy()
    barely[:2] = PERFECT[:2]
    assert "% of the best 3 labels of all texts are the same 3" in watch.symptom(barely, TRUE)
    # As little learned, but other labels for other texts: no collapse.
    weak = barely.copy()
    weak[2:, 1:] = (np.arange(2, TEXTS)[:, None] * 5 + [0, 2]) % (LABELS - 1) + 1
    assert watch.symptom(weak, TRUE) is None


def test_nothing_to_learn_is_no_collapse(watch):
    for labels in ([[0]] * TEXTS, [[0]] * (TEXTS - 1) + [[5]], [[0, 1, 2]] * TEXTS, [[]] * TEXTS):
        assert watch.symptom(CONSTANT, pad_label_lists(labels).reshape(TEXTS, -1)) is None


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(5, 40), st.integers(1, 2), st.permutations(range(LABELS)))
def test_any_ranking_that_is_the_same_for_all_texts_is_a_collapse(model, seed, texts, k, ranking):
    """Also one that beats the frequencies of the training texts, as some do on few texts."""
    args = XMTCTrainingArguments(output_dir="unused", metrics_at=[k], use_cpu=True)
    rng = np.random.default_rng(seed)
    true = pad_label_lists([rng.choice(LABELS, size=rng.integers(1, 4), replace=False) for _ in range(texts)])
    space = LabelSpace(names=model.label_names, counts=rng.integers(0, 100, LABELS).tolist(), num_texts=100)
    found = CollapseWatch(space, args, model).symptom(np.tile(ranking[:k], (texts, 1)), true)
    best = max(
        ndcg_at_k(RankedLabels(np.tile(order, (texts, 1)), true, LABELS), k)
        for order in permutations(range(LABELS), k)
    )
    assert (found is None) == (1 - best < 0.05)


def test_warns_once_and_not_at_the_first_evaluation(watch, caplog):
    for epoch, ranking, warnings in ((1, CONSTANT, 0), (2, PERFECT, 0), (3, CONSTANT, 0), (4, CONSTANT, 1)):
        watch.look(ranking, TRUE, epoch)
        assert caplog.text.count(WARNING) == warnings
    watch.look(CONSTANT, TRUE, 5)
    assert caplog.text.count(WARNING) == 1
    assert watch.conclude(PERFECT, TRUE) is False and caplog.text.count(WARNING) == 1
    assert watch.conclude(CONSTANT, TRUE) is True and caplog.text.count(WARNING) == 2


def test_labels_that_are_not_yet_trained_are_not_judged(watch, monkeypatch, caplog):
    monkeypatch.setattr(type(watch.model.config), "whole_loss_epoch", 2)
    for epoch in (1, 2, 3):
        watch.look(CONSTANT, TRUE, epoch)
    assert WARNING not in caplog.text
    watch.look(CONSTANT, TRUE, 4)
    assert WARNING in caplog.text


def test_advice_follows_the_settings(watch):
    watch.args.learning_rate, watch.args.warmup_steps = 2e-4, 0
    watch.model.config.label_bias = False
    advice = "; ".join(watch.advice())
    assert "label_bias" in advice and "encoder than 0.0002" in advice and "heads than 0.0002" in advice
    assert "warm-up" in advice and "more training than 3 epochs" in advice and "tree" not in advice
    watch.args.learning_rate, watch.args.warmup_steps = 2e-3, 0.1
    watch.args.module_learning_rates = {"encoder": 5e-5}
    advice = "; ".join(watch.advice())
    assert "learning rate" not in advice and "warm-up" not in advice


@pytest.fixture(scope="module")
def flags(encoder_folder, tmp_path_factory):
    """Texts that name their labels, one of which is on most texts."""
    words = ["apple", "banana", "cherry", "dog", "elephant", "fox"]
    rows = [{"text": words[i % 6], "labels": ["any"] * (i % 3 > 0) + [f"is {words[i % 6]}"]} for i in range(96)]
    path = tmp_path_factory.mktemp("data") / "train.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [
        *("--encoder", encoder_folder, "--train_file", str(path), "--validation_size", "30", "--use_cpu", "true"),
        *("--model_config", '{"mlp_size": 32, "label_bias": true}', "--metrics_at", "1", "2"),
        *("--per_device_train_batch_size", "8", "--num_train_epochs", "3", "--save_total_limit", "1"),
    ]


def test_a_run_that_learns_nothing_says_so_twice_with_trainer_and_without(flags, tmp_path, caplog):
    """Nothing moves: the labels keep the frequencies that their biases start at."""
    still = [*flags, "--learning_rate", "0", "--experts", "none", "--output_dir"]
    results = main([*still, str(tmp_path / "run")])
    assert results["collapsed"] is True
    assert json.loads((tmp_path / "run" / "results.json").read_text())["collapsed"] is True
    said = [record.getMessage() for record in caplog.records if WARNING in record.getMessage()]
    assert [("second time" in line, "end of training" in line) for line in said] == [(True, False), (False, True)]
    assert "more training than 3 epochs" in said[0]
    # The heads are weighed all the same.
    assert results["blend"]["validation"]["brier"] < 0.25

    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLES / "run_xmtc_no_trainer.py")
    own_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_loop)
    caplog.clear()
    own_loop.main([*still, str(tmp_path / "loop")])
    assert [record.getMessage() for record in caplog.records if WARNING in record.getMessage()] == said
    other = json.loads((tmp_path / "loop" / "results.json").read_text())
    assert other["collapsed"] is True
    for name in ("brier", "cross_entropy"):
        assert other["blend"]["validation"][name] == pytest.approx(results["blend"]["validation"][name], rel=1e-4)
    assert other["validation"]["blend"].keys() <= results["validation"]["blend"].keys()
    assert AutoModel.from_pretrained(tmp_path / "loop").config.blend["weights"] == results["blend"]["weights"]


def test_a_run_that_learns_says_nothing(flags, tmp_path, caplog):
    rates = ["--learning_rate", "1e-2", "--module_learning_rates", '{"encoder": 3e-3}']
    steps = ["--per_device_train_batch_size", "2", "--num_train_epochs", "2"]
    results = main([*flags, *rates, *steps, "--output_dir", str(tmp_path / "run")])
    assert results["collapsed"] is False and WARNING not in caplog.text
