"""Runs with the encoder that is made from the training texts."""

import json

import numpy as np
import pytest
from tiny_encoders import WORDS
from transformers import AutoModel, AutoTokenizer

from glocal_xml import explain
from glocal_xml.cli.train import main

VECTORS = np.random.default_rng(0).normal(size=(6, 8))


@pytest.fixture
def vectors(tmp_path):
    path = tmp_path / "vectors.npz"
    np.savez(path, words=np.array(WORDS[:6]), vectors=VECTORS)
    return str(path)


@pytest.fixture
def flags(text_file, tmp_path):
    return [
        *("--model_type", "light_attention", "--encoder", "word_lstm", "--use_cpu", "true"),
        *("--model_config", '{"mlp_sizes": [32, 16], "label_bias": true, "top_k": 4}', "--learning_rate", "1e-2"),
        *("--train_file", text_file("train.jsonl", 96), "--test_file", text_file("test.jsonl", 16, first=96)),
        *("--metrics_at", "1", "2", "--num_train_epochs", "16", "--per_device_train_batch_size", "8"),
        *("--output_dir", str(tmp_path / "run"), "--experts", "none", "--blend", "false"),
    ]


def with_options(flags, **options):
    return [*flags, "--encoder_options", json.dumps({"lstm_size": 16, "output_dropout": 0.1, **options})]


def test_trains_saves_and_is_used_again(flags, vectors, text_file, tmp_path):
    results = main(with_options(flags, vectors=vectors))
    rows, folder = results["test"], tmp_path / "run"
    assert set(rows) == {"attention", "label frequency"}
    assert rows["attention"]["precision@2"] > 0.9 > rows["label frequency"]["precision@2"]
    assert results["hub_ids"]["base_model"] is None and results["settings"]["data"]["max_length"] == 256
    assert "LightAttention" in (folder / "README.md").read_text()
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    assert model.config.encoder.vocab_size == len(tokenizer) == len(WORDS) + 2
    assert model.encoder.embeddings.weight.shape[1] == 8 and (model.encoder.embeddings.weight[0] == 0).all()
    best = explain(model, tokenizer, "Apple, banana: ICE!", top_k=2).labels
    assert {label.label for label in best} == {"is apple", "is banana"}
    assert {word for word, _ in best[0].words} == {"Apple", "banana", "ICE"}
    # Neither the vectors nor the training texts are needed any more.
    other = ["--model", str(folder), "--test_file", text_file("again.jsonl", 16, first=96), "--use_cpu", "true"]
    again = main([*other, "--metrics_at", "1", "2", "--output_dir", str(tmp_path / "other")])
    assert again["test"]["attention"]["precision@2"] == rows["attention"]["precision@2"]


def test_starts_from_the_vectors(flags, vectors, tmp_path):
    main([*with_options(flags, vectors=vectors), "--learning_rate", "0", "--max_steps", "1"])
    folder = tmp_path / "run"
    weight = AutoModel.from_pretrained(folder).encoder.embeddings.weight
    tokenizer = AutoTokenizer.from_pretrained(folder)
    np.testing.assert_allclose(weight[tokenizer.convert_tokens_to_ids(WORDS[:6])].detach(), VECTORS, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "further", "message"),
    [
        ({"lstm_sizes": 8}, [], "no options ..lstm_sizes.*; it has vectors, max_words"),
        ({"vectors": "v.npz", "embedding_size": 8}, [], "size of their own"),
        ({"vectors": "no-such.npz"}, [], "no-such.npz does not exist"),
        ({"min_texts": 1000}, [], "lower min_texts"),
        ({"lstm_size": 0}, [], "`lstm_size` must be at least 1"),
        ({}, ["--streaming", "true", "--max_steps", "2"], "leave out `--streaming`"),
    ],
)
def test_mistakes_end_before_training(flags, options, further, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        main([*with_options(flags, **options), *further])
