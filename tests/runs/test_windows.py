"""Texts longer than the model reads, trained and evaluated in windows."""

import json
import random

import pytest
import torch
from close_rankings import assert_best
from safetensors.torch import load_file
from tiny_encoders import WORDS
from transformers import pipeline

from glocal_xml.cli.train import main

FILLER = WORDS[8:]


@pytest.fixture
def flags(encoder_folder):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 32, "top_k": 4, "label_bias": true}'),
        *("--module_learning_rates", '{"encoder": 3e-3, "local_head": 1e-2}', "--learning_rate", "1e-2"),
        *("--metrics_at", "1", "--per_device_train_batch_size", "16", "--use_cpu", "true", "--max_length", "10"),
        *("--validation_size", "8", "--num_train_epochs", "6"),
    ]


def write_texts(path, number, length, seed):
    """Texts with one word that tells their label, which may stand anywhere."""
    rng, rows = random.Random(seed), []
    for i in range(number):
        words = rng.choices(FILLER, k=length)
        words[rng.randrange(length)] = WORDS[i % 4]
        rows.append({"text": " ".join(words), "labels": [f"is {WORDS[i % 4]}"]})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def ranking_metrics(results):
    """Without times, and the loss, which windows do not have."""
    rows = results["test"].items()
    return {row: {name: value for name, value in values.items() if "@" in name} for row, values in rows}


def predictions(folder):
    return [json.loads(line)["predictions"] for line in (folder / "predictions.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("score", ["max", "mean"])
def test_windows_of_short_texts_change_nothing(flags, tmp_path, score):
    files = ["--train_file", write_texts(tmp_path / "train.jsonl", 40, 6, seed=0)]
    files += ["--test_file", write_texts(tmp_path / "test.jsonl", 12, 6, seed=1), "--num_train_epochs", "2"]
    plain = main([*flags, *files, "--output_dir", str(tmp_path / "plain")])
    windows = main([*flags, *files, "--windows", score, "--output_dir", str(tmp_path / "windows")])
    assert ranking_metrics(windows) == ranking_metrics(plain)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "windows"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    for first, second in zip(predictions(tmp_path / "plain"), predictions(tmp_path / "windows"), strict=True):
        # All labels there are; products of other shapes round otherwise, and files have six digits.
        assert len(first) == len(second) == 4
        assert_best(first, second)


def test_windows_find_what_stands_late(flags, tmp_path):
    files = ["--train_file", write_texts(tmp_path / "train.jsonl", 96, 24, seed=0)]
    files += ["--test_file", write_texts(tmp_path / "test.jsonl", 24, 24, seed=1)]
    # Experts would find it without windows.
    files += ["--experts", "none", "--blend", "false"]
    cut = main([*flags, *files, "--output_dir", str(tmp_path / "cut")])
    folder = tmp_path / "windows"
    whole = main([*flags, *files, "--windows", "max", "--window_overlap", "2", "--output_dir", str(folder)])
    assert whole["settings"]["data"]["windows"] == "max"
    assert whole["test"]["both"]["precision@1"] > cut["test"]["both"]["precision@1"] + 0.2
    # The pipeline scores a text in the same way.
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    tagger = pipeline("extreme-multi-label-classification", model=str(folder))
    found = tagger([line["text"] for line in lines], windows="max", window_overlap=2, top_k=1)
    for line, best in zip(lines, found, strict=True):
        assert len(best) == 1
        assert_best(best, line["predictions"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--windows", "median"], "must be one of max, mean"),
        (["--windows", "max", "--max_windows", "0"], "at least 1"),
        (["--windows", "max", "--window_overlap", "9"], "half a window"),
        (["--windows", "max", "--streaming", "true", "--max_steps", "2"], "not read in windows"),
    ],
)
def test_windows_that_cannot_be(flags, tmp_path, options, message):
    file = write_texts(tmp_path / "train.jsonl", 16, 6, seed=0)
    flags = [flag for flag in flags if "--streaming" not in options or flag not in ("--validation_size", "8")]
    with pytest.raises(ValueError, match=message):
        main([*flags, "--train_file", file, *options, "--output_dir", str(tmp_path / "run")])
