"""The example with a training loop of its own fits experts and the blend as `run_xmtc.py` does."""

import importlib.util
import json
import logging
from pathlib import Path

import pytest
from transformers import AutoModel, pipeline

SCRIPT = Path(__file__).parents[2] / "examples" / "run_xmtc_no_trainer.py"


@pytest.fixture
def own_loop():
    spec = importlib.util.spec_from_file_location("own_loop", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def flags(encoder_folder, text_file, tmp_path):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 16, "top_k": 4}', "--metrics_at", "1", "2"),
        *("--train_file", text_file("train.jsonl", 160), "--test_file", text_file("test.jsonl", 16, first=160)),
        *("--num_train_epochs", "1", "--use_cpu", "true", "--output_dir", str(tmp_path / "run")),
    ]


def test_experts_and_blend(own_loop, flags, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        own_loop.main([*flags, "--validation_size", "60"])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    # Texts name their labels, which one epoch of a random encoder does not find out.
    assert results["test"]["lexical"]["precision@1"] > 0.9
    assert {"blend", "global", "local", "lexical", "memory", "dense"} <= set(results["test"])
    assert results["test"]["blend"]["precision@1"] > 0.9
    assert results["blend"]["texts"] == 60
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert model.branch_names == ["global", "local", "lexical", "memory", "dense"]
    assert model.config.blend["weights"] == pytest.approx(results["blend"]["weights"])
    # Fitted again with the validation texts.
    assert "fitted again with the 60 held-out texts" in caplog.text and model.config.memory["texts"] >= 160
    assert model.config.dense["texts"] >= 160
    best = pipeline("extreme-multi-label-classification", model=str(tmp_path / "run"))("dog fox kite", top_k=2)
    assert {row["label"] for row in best} == {"is dog", "is fox"}


def test_heads_alone(own_loop, flags, tmp_path):
    own_loop.main([*flags, "--experts", "none", "--blend", "false"])
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert set(results["test"]) >= {"both", "global", "local"} and "blend" not in results
    assert not AutoModel.from_pretrained(tmp_path / "run").text_experts()


def test_models_without_an_encoder_are_for_the_other_script(own_loop, flags):
    with pytest.raises(ValueError, match="--encoder none.*run_xmtc.py does"):
        own_loop.main([*flags, "--encoder", "none"])
