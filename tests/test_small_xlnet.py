"""The encoder made from training texts loads like any other, and trains."""

import importlib.util
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from glocal_xml.cli.train import main as train

SCRIPT = Path(__file__).parents[1] / "examples" / "small_xlnet.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("small_xlnet", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tokenizer_and_encoder_load_and_train(script, text_file, tmp_path):
    folder, file = str(tmp_path / "xlnet"), text_file("train.jsonl", 64)
    sizes = ["--vocabulary_size", "60", "--hidden_size", "16", "--heads", "2", "--layers", "1"]
    script.main([file, folder, *sizes])
    tokenizer, encoder = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    batch = tokenizer(["apple banana", "Apple banana moon fox"], padding=True, return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(batch["input_ids"][0])[-2:] == ["<sep>", "<cls>"]
    # Padding on the left, and capitals make no difference.
    assert batch["attention_mask"][0, 0] == 0 and batch["attention_mask"][:, -1].all()
    text = tokenizer.decode(batch["input_ids"][1], skip_special_tokens=True)
    assert text == "apple banana moon fox"
    assert encoder(**batch, use_mems=False).last_hidden_state.shape == (*batch["input_ids"].shape, 16)
    assert encoder.config.pad_token_id == tokenizer.pad_token_id
    flags = ["--model_type", "aplc_xlnet", "--encoder", folder, "--train_file", file, "--use_cpu", "true"]
    results = train([*flags, "--test_file", file, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "run")])
    assert (
        set(results["test"]) == {"blend", "clusters", "lexical", "memory", "dense", "label frequency"}
        and results["training"]["train_loss"] < 1.0
    )
    # The same seed gives the same weights.
    script.main([file, str(tmp_path / "again"), *sizes])
    again = AutoModel.from_pretrained(tmp_path / "again")
    assert torch.equal(again.word_embedding.weight, encoder.word_embedding.weight)


def test_sizes_that_do_not_fit_are_refused(script, text_file, tmp_path):
    with pytest.raises(ValueError, match="must be a multiple"):
        script.main([text_file("train.jsonl", 8), str(tmp_path), "--hidden_size", "10", "--heads", "4"])
