"""Training from memory: the pipeline that comes back knows what it was taught, and slips are named."""

import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from close_rankings import assert_best
from transformers import pipeline

import glocal_xml
from glocal_xml.data import LabelSpace
from glocal_xml.experts import remember


@pytest.fixture(scope="module")
def rows(text_file):
    lines = Path(text_file("fit.jsonl", 96)).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def fitted(rows, encoder_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "fit"
    tag = glocal_xml.fit(
        (row["text"] for row in rows),
        [row["labels"] for row in rows],
        encoder=encoder_folder,
        validation_size=8,
        output_dir=folder,
        num_train_epochs=6,
        learning_rate=2e-2,
        module_learning_rates={"encoder": 3e-3},
        threshold_f="macro",
    )
    return tag, folder


def test_labels_are_learned_and_the_run_is_kept(fitted, rows):
    tag, folder = fitted
    best = tag([row["text"] for row in rows], top_k=2, batch_size=32)
    found = sum(label["label"] in row["labels"] for row, labels in zip(rows, best, strict=True) for label in labels)
    assert found / sum(len(row["labels"]) for row in rows) > 0.7
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["data"]["texts"] == {"train": 88, "validation": 8}
    assert results["settings"]["data"]["train_file"] is None
    assert "texts that were given in Python" in (folder / "README.md").read_text(encoding="utf-8")
    assert not list(folder.glob("checkpoint-*"))
    assert tag.model.config.label_bias
    again = pipeline("extreme-multi-label-classification", model=str(folder))
    # Weights from a file lie elsewhere in memory, by which products may round otherwise.
    assert len(again(rows[0]["text"])) == len(tag(rows[0]["text"])) > 1
    assert_best(again(rows[0]["text"]), tag(rows[0]["text"], top_k=8))
    assert again.model.config.blend["f"] == "macro"
    assert again(rows[0]["text"], threshold="calibrated") is not None


def test_nothing_is_left_without_a_folder(rows, encoder_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts, labels = [row["text"] for row in rows[:16]], [tuple(row["labels"]) for row in rows[:16]]
    before = random.getstate()[1], torch.get_rng_state().tolist(), np.random.get_state()[1].tolist()
    tag = glocal_xml.fit(texts, labels, encoder=Path(encoder_folder), num_train_epochs=1, model_config={"mlp_size": 8})
    assert len(tag(texts[0], top_k=3)) == 3
    assert tag.model.config.mlp_size == 8 and tag.model.config.label_bias
    assert list(tmp_path.iterdir()) == []
    # Seeded by the run, and by nobody else.
    assert before == (random.getstate()[1], torch.get_rng_state().tolist(), np.random.get_state()[1].tolist())
    tag.save_pretrained(tmp_path / "model")
    again = pipeline("extreme-multi-label-classification", model=str(tmp_path / "model"))
    everything = tag(texts[0], top_k=tag.model.config.num_labels)
    assert len(again(texts[0])) == len(tag(texts[0])) > 1
    assert_best(again(texts[0]), everything)
    # What was saved can be edited and trained further.
    assert LabelSpace.load(tmp_path / "model").num_texts == 16


SLIPS = {
    "lengths differ": ((["a", "b"], [["x"]]), {}, "2 texts, but 1 lists"),
    "one text": (("a", ["x"]), {}, "got one string"),
    "a string for a list": ((["a", "b"], [["x"], "y"]), {}, r"labels\[1\]` is 'y'; give a list, such as \['y'\]"),
    "no list": ((["a"], [None]), {}, r"labels\[0\]` is None; give a list of its labels, or leave the text out"),
    "missing list": ((["a"], [float("nan")]), {}, "leave the text out"),
    "several in a string": ((["a"], ["x;y"]), {}, r"split it where it holds several: `labels.split\(';'\)`"),
    "a list as a string": ((["a"], ["['x', 'y']"]), {}, "ast.literal_eval"),
    "a list of such strings": ((["a"], [["['x', 'y']"]]), {}, "ast.literal_eval"),
    "a table": ((["a"], pd.DataFrame({"x": [1], "y": [0]})), {}, r"a table with the columns \['x', 'y'\]"),
    "no text": ((["a", None], [["x"], ["y"]]), {}, r"texts\[1\]"),
    "missing value": ((["a", "b"], [["x"], ["y", None]]), {}, r"labels\[1\]` holds None"),
    "number that is none": ((["a"], [[float("nan")]]), {}, r"labels\[0\]` holds nan"),
    "lists of lists": ((["a"], [[["x"]]]), {}, r"labels\[0\]` holds \['x'\]"),
    "multi-hot": ((["a", "b"], np.array([[0, 1, 0], [1, 0, 1]])), {}, "3 numbers for each text"),
    "multi-hot of truth values": ((["a", "b"], np.eye(2, 3) > 0), {}, "multi-hot"),
    "no labels given": ((["a", "b"], None), {}, "must be lists, got None"),
    "no labels at all": ((["a", "b"], [[], []]), {}, "None of the 2 texts"),
    "a text without labels": ((["a", "b"], [["x"], []]), {}, "no labels"),
    "unknown option": ((["a"], [["x"]]), {"epochs": 3}, "Unknown options epochs"),
    "a number as a string": ((["a"], [["x"]]), {"num_train_epochs": "3"}, "num_train_epochs` must be a number, got"),
    "minutes as a string": ((["a"], [["x"]]), {"minutes": "5"}, "minutes` must be a number"),
    "a share as a string": ((["a"], [["x"]]), {"validation_size": "0.1"}, "validation_size` must be a number"),
    "a truth value as a string": ((["a"], [["x"]]), {"refit_experts": "no"}, "refit_experts` must be a truth value"),
    "no encoder": ((["a"], [["x"]]), {"encoder": False}, "`encoder` must be a folder, a Hub id"),
    "unknown family": ((["a"], [["x"]]), {"model_type": "bert"}, "model_type"),
}


@pytest.mark.parametrize("slip", sorted(SLIPS))
def test_slips_are_named(slip, encoder_folder):
    inputs, options, message = SLIPS[slip]
    with pytest.raises(ValueError, match=message):
        glocal_xml.fit(*inputs, **{"encoder": encoder_folder, **options})


def test_a_blend_that_stays_keeps_its_frequencies(tmp_path):
    texts, labels = [f"red apple {i}" if i % 2 else f"blue sky {i}" for i in range(40)], [["air"], ["fruit"]] * 20
    tag = glocal_xml.fit(texts, labels, encoder=None, metrics_at=[1])
    # Labels become more frequent, but the blend goes on with what it was fitted with.
    more = ([f"green pear {i}" for i in range(30)], [["fruit"]] * 30)
    tag.label_space = remember(tag.model, tag.label_space, tag.tokenizer, *more)
    tag.save_pretrained(tmp_path / "first")
    further = glocal_xml.fit(["a lemon", "a lime"], [["fruit"]] * 2, model=tmp_path / "first", metrics_at=[1])
    assert further.model.config.blend == tag.model.config.blend
    assert torch.equal(further.model.log_frequencies, tag.model.log_frequencies)
