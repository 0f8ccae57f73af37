"""Programs of torch.export and int8 encoders give what the models give, or say why they cannot be had."""

import sys
from pathlib import Path

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS, FURTHER_ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.cli import main
from glocal_xml.export import exported, quantized
from glocal_xml.modeling import FAMILIES

sys.path.append(str(Path(__file__).parents[1] / "modeling"))
from test_families import CASES, NUM_LABELS, make_batch, tell_about_labels


def make_model(case, encoder="bert", **further):
    config_class, fields = CASES[case]
    torch.manual_seed(0)
    encoder_config = {**ENCODER_CONFIGS, **FURTHER_ENCODER_CONFIGS}[encoder]()
    config = config_class(encoder=encoder_config.to_dict(), num_labels=NUM_LABELS, **fields, **further)
    model = FAMILIES[config_class](config)
    tell_about_labels(model)
    # Fresh heads score so close to zero that wrong code could pass by comparing almost nothing.
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder."):
                parameter.normal_(std=0.5)
    return model.eval()


def probabilities(model, input_ids, attention_mask):
    return model.score_labels(torch.arange(NUM_LABELS), input_ids, attention_mask)["final"]


# An export takes seconds: each kind of head once, and each encoder.
@pytest.mark.parametrize(
    ("case", "encoder", "fields"),
    [
        ("glocal_xml-pooler", "bert", {}),
        ("glocal_xml-local", "distilbert", {}),
        ("me_xml-three-experts", "roberta", {}),
        ("light_attention", "modernbert", {}),
        ("glocal_xml-global", "bert", {"document_pooling": "mean"}),
        ("glocal_xml-global", "qwen2", {"document_pooling": "last"}),
    ],
)
def test_a_program_gives_what_the_model_gives(case, encoder, fields):
    model = make_model(case, encoder, **fields).train()
    program = exported(model).module()
    assert model.training
    for texts, tokens in ((8, 9), (1, 9), (3, 2), (2, 20)):
        batch = make_batch(model, max(texts, 2), tokens)
        inputs = batch["input_ids"][:texts], batch["attention_mask"][:texts]
        # A program has products of its own, which may round otherwise.
        torch.testing.assert_close(program(*inputs), probabilities(model, *inputs), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("case", "encoder", "message"),
    [
        ("glocal_xml-clusters", "bert", "label tree"),
        ("glocal_xml", "xlnet", "encoder xlnet"),
        ("light_attention", "word_lstm", "encoder word_lstm"),
    ],
)
def test_no_program(case, encoder, message):
    with pytest.raises(ValueError, match=message):
        exported(make_model(case, encoder))


def test_the_command_writes_all_that_is_needed(tokenizer, tmp_path, capsys):
    model = make_model("glocal_xml")
    model.set_label_names([f"label {i}" for i in range(NUM_LABELS)])
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = ["export", str(tmp_path / "model"), "--output", str(tmp_path / "program")]
    assert main(command) == 0
    batch = make_batch(model)
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    found = program(batch["input_ids"], batch["attention_mask"])
    loaded = AutoModel.from_pretrained(tmp_path / "model")
    torch.testing.assert_close(found, probabilities(loaded, batch["input_ids"], batch["attention_mask"]))
    assert (tmp_path / "program" / "labels.txt").read_text().splitlines()[-1] == "label 22"
    assert (tmp_path / "program" / "tokenizer.json").is_file()
    assert main(command) == 2
    assert "is there already" in capsys.readouterr().err


@pytest.mark.parametrize(
    "case", ["glocal_xml", "glocal_xml-tree", "me_xml", "aplc_xlnet-tails", "light_attention-static"]
)
@pytest.mark.parametrize("encoder", ["bert", "xlnet"])
def test_int8_encoders_stay_close(case, encoder):
    model = make_model(case, encoder)
    weights = {name: values.clone() for name, values in model.state_dict().items()}
    small = quantized(model)
    linear = [type(module).__module__ for module in small.encoder.modules() if type(module).__name__ == "Linear"]
    assert linear and all("quantized" in name for name in linear)
    batch = make_batch(model)
    inputs = batch["input_ids"], batch["attention_mask"]
    difference = (probabilities(small, *inputs) - probabilities(model, *inputs)).abs()
    assert 0 < difference.max() < 0.1
    assert small.predict_top_k(*inputs, top_k=3).top_k_ids.shape == (8, 3)
    assert all(torch.equal(values, weights[name]) for name, values in model.state_dict().items())


def test_no_int8_without_linear_layers():
    with pytest.raises(ValueError, match="word_lstm has no linear layers"):
        quantized(make_model("light_attention", "word_lstm"))
