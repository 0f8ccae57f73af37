"""Checkpoints written before the core was rebuilt load, and give the loss, gradients and predictions they gave."""

import json
import logging
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

FOLDERS = sorted(Path(__file__).parents[1].joinpath("checkpoints").iterdir())
# What was computed in double precision is kept in single.
TOLERANCE = {"rtol": 2e-6, "atol": 2e-6}


@pytest.fixture(params=FOLDERS, ids=lambda folder: folder.name)
def checkpoint(request):
    """A model in double precision, its inputs, and what the old code made of them."""
    model, report = AutoModel.from_pretrained(request.param, output_loading_info=True)
    assert not any(report.values()), report
    expected = load_file(request.param / "expected.safetensors")
    inputs = {name: expected.pop(name) for name in ("input_ids", "attention_mask")}
    return model.double(), inputs, expected.pop("labels"), expected


def named(expected, prefix):
    return {name.removeprefix(prefix): value for name, value in expected.items() if name.startswith(prefix)}


def assert_close(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name].to(value.dtype), value, **TOLERANCE, msg=lambda m, n=name: f"{n}: {m}")


def test_training_is_the_same(checkpoint):
    model, inputs, labels, expected = checkpoint
    loss = model.train()(**inputs, labels=labels).loss
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected["training_loss"])
    gradients = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    gradients = {name: value.to_dense() if value.is_sparse else value for name, value in gradients.items()}
    assert_close(gradients, named(expected, "gradient."))


@torch.no_grad()
def test_evaluation_is_the_same(checkpoint):
    model, inputs, labels, expected = checkpoint
    output = model.eval()(**inputs, labels=labels, output_logits=True)
    torch.testing.assert_close(output.loss, expected["loss"])
    torch.testing.assert_close(output.logits.float(), expected["logits"], **TOLERANCE)
    assert_close(output.loss_terms, named(expected, "term."))


def test_prediction_is_the_same(checkpoint):
    model, inputs, _, expected = checkpoint
    best = model.predict_top_k(**inputs)
    assert torch.equal(best.top_k_ids, expected["top_k_ids"])
    torch.testing.assert_close(best.top_k_scores, expected["top_k_scores"], **TOLERANCE)
    for i, (name, ids) in enumerate(sorted(named(expected, "branch_top_k_ids.").items())):
        assert name == sorted(model.branch_names)[i]
        assert torch.equal(best.branch_top_k_ids[:, model.branch_names.index(name)], ids)
    scores = model.score_labels(torch.arange(model.config.num_labels), **inputs)
    assert_close(scores, named(expected, "score."))
    if "attention" in expected:
        weights = model.label_word_attention(torch.tensor([3, 1]), **inputs)
        torch.testing.assert_close(weights.float(), expected["attention"], **TOLERANCE)


def test_a_temperature_is_ignored_with_one_warning(tmp_path, caplog, monkeypatch):
    folder = shutil.copytree(Path(__file__).parents[1] / "checkpoints" / "glocal_xml", tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["calibration"] = {"temperature": 2.0, "threshold": 0.3, "f": "micro", "beta": 1.0, "texts": 9}
    (folder / "config.json").write_text(json.dumps(config))
    # Loggers of Transformers keep what they say from those above them, and say this once per process.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    logging.Logger.warning_once.cache_clear()
    models = [AutoModel.from_pretrained(folder) for _ in range(2)]
    assert caplog.text.count("glocal-xml calibrate MODEL FILE") == 1
    assert models[0].config.blend is None and "calibration" not in models[0].config.to_dict()
