"""Programs of torch.export and int8 encoders give what the models give, or say why they cannot be had."""

import sys
from pathlib import Path

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS, FURTHER_ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.cli import main
from glocal_xml.export import exported, onnx_program, quantized
from glocal_xml.modeling import FAMILIES

sys.path.append(str(Path(__file__).parents[1] / "modeling"))
from test_families import CASES, NUM_LABELS, make_batch, tell_about_labels


def make_model(case, encoder="bert", layers=None, **further):
    config_class, fields = CASES[case]
    torch.manual_seed(0)
    encoder_config = {**ENCODER_CONFIGS, **FURTHER_ENCODER_CONFIGS}[encoder]().to_dict()
    if layers is not None:
        encoder_config["n_layers" if encoder == "distilbert" else "num_hidden_layers"] = layers
        # One for each layer, made anew.
        encoder_config.pop("layer_types", None)
    config = config_class(encoder=encoder_config, num_labels=NUM_LABELS, **fields, **further)
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
PROGRAMS = [
    ("glocal_xml-pooler", "bert"),
    ("glocal_xml-local", "distilbert"),
    ("me_xml-three-experts", "roberta"),
    ("light_attention", "modernbert"),
    ("aplc_xlnet-tails", "bert"),
    ("glocal_xml-tree", "bert"),
    ("blend", "bert"),
    ("glocal_xml-mean", "bert"),
    ("glocal_xml-global", "qwen2"),
]
TOP_K = 4


def model_of(case, encoder):
    # What a program takes grows with the layers.
    layers = None if case == "me_xml-three-experts" else 2
    if case == "glocal_xml-mean":
        return make_model("glocal_xml-global", encoder, layers, document_pooling="mean")
    if case != "blend":
        return make_model(case, encoder, layers)
    model = make_model("glocal_xml-tree", encoder, layers)
    weights = {"global": 0.7, "local": 0.4, "frequency": 0.3, "bias": 0.1}
    model.set_blend({"weights": weights, "threshold": 0.5}, torch.linspace(-3, 0, NUM_LABELS))
    return model


def assert_gives_what_the_model_gives(model, probabilities_of=None, best_of=None):
    for texts, tokens in ((8, 9), (1, 9), (3, 2), (2, 20)):
        batch = make_batch(model, max(texts, 2), tokens)
        inputs = batch["input_ids"][:texts], batch["attention_mask"][:texts]
        # A program has products of its own, which may round otherwise.
        if probabilities_of is not None:
            torch.testing.assert_close(probabilities_of(*inputs), probabilities(model, *inputs), rtol=1e-4, atol=1e-5)
        if best_of is not None:
            ids, scores = best_of(*inputs)
            expected = model.predict_top_k(*inputs, top_k=TOP_K)
            torch.testing.assert_close(scores, expected.top_k_scores, rtol=1e-4, atol=1e-5)
            # Of scores that are almost equal any may come first.
            own = model.score_labels(ids, *inputs)["final"]
            torch.testing.assert_close(own, expected.top_k_scores, rtol=1e-4, atol=1e-5)


@pytest.mark.compatibility(
    "Other libraries", "`torch.export`", "works in every family, also with rankings", since="0.1"
)
@pytest.mark.parametrize(("case", "encoder"), PROGRAMS)
def test_a_program_gives_what_the_model_gives(case, encoder):
    model = model_of(case, encoder).train()
    program, best = exported(model).module(), exported(model, top_k=TOP_K).module()
    assert model.training
    assert_gives_what_the_model_gives(model, program, best)


@pytest.mark.compatibility(
    "Other libraries",
    "ONNX and onnxruntime",
    "works in every family, within 1e-5 of the model; needs the extra `onnx`",
    since="0.1",
)
@pytest.mark.parametrize(("case", "encoder"), PROGRAMS)
def test_onnx_gives_what_the_model_gives(case, encoder, tmp_path):
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    model = model_of(case, encoder)

    def program(name, top_k=None):
        onnx_program(model, top_k).save(tmp_path / name)
        session = onnxruntime.InferenceSession(tmp_path / name, providers=["CPUExecutionProvider"])
        names = ["probabilities"] if top_k is None else ["top_k_ids", "top_k_scores"]

        def run(input_ids, attention_mask):
            found = session.run(names, {"input_ids": input_ids.numpy(), "attention_mask": attention_mask.numpy()})
            return torch.tensor(found[0]) if top_k is None else tuple(map(torch.tensor, found))

        return run

    # Of the two kinds of probabilities, one program each; the best labels in a tree are those of the blend too.
    probabilities_of = program("all.onnx") if case in ("glocal_xml-pooler", "glocal_xml-tree") else None
    best_of = program("best.onnx", TOP_K) if case != "glocal_xml-tree" else None
    assert_gives_what_the_model_gives(model, probabilities_of, best_of)


def test_a_model_that_torch_exports_by_itself():
    """As somebody does who does not know the functions here."""
    model = make_model("glocal_xml")
    batch = make_batch(model)
    inputs = batch["input_ids"], batch["attention_mask"]
    shape = {0: torch.export.Dim("texts"), 1: torch.export.Dim("tokens", min=2, max=64)}
    with torch.no_grad():
        program = torch.export.export(model, inputs, dynamic_shapes={"input_ids": shape, "attention_mask": shape})
        found, expected = program.module()(inputs[0][:3], inputs[1][:3]), model(inputs[0][:3], inputs[1][:3])
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-4, atol=1e-5)
    assert torch.equal(found.top_k_ids, expected.top_k_ids)


def test_no_onnx_without_its_packages(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"onnx and onnxscript: `pip install glocal-xml\[onnx\]`"):
        onnx_program(make_model("glocal_xml"))


@pytest.mark.parametrize(
    ("case", "encoder", "message"),
    [
        ("glocal_xml", "xlnet", "encoder xlnet"),
        ("light_attention", "word_lstm", "encoder word_lstm"),
    ],
)
def test_no_program(case, encoder, message):
    with pytest.raises(ValueError, match=message):
        exported(make_model(case, encoder))


def test_no_program_of_a_new_model():
    config_class, fields = CASES["aplc_xlnet"]
    config = config_class(encoder=ENCODER_CONFIGS["bert"]().to_dict(), num_labels=NUM_LABELS, **fields)
    with pytest.raises(ValueError, match="set_label_counts"):
        exported(FAMILIES[config_class](config))


def test_the_command_writes_all_that_is_needed(tokenizer, tmp_path, capsys):
    model = make_model("glocal_xml-global", layers=1)
    model.set_label_names([f"label {i}" for i in range(NUM_LABELS)])
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    command = ["export", str(tmp_path / "model"), "--output_dir", str(tmp_path / "program")]
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
    pytest.importorskip("onnxscript")
    assert main([*command, "--onnx", "--top_k", "3"]) == 0
    assert (tmp_path / "program" / "model.onnx").is_file()
    assert "the best 3 labels" in capsys.readouterr().out


@pytest.mark.compatibility(
    "Other libraries",
    "int8 on a CPU (`glocal_xml.export.quantized`)",
    "works for prediction: scores within 0.1; saving and training are refused",
    since="0.1",
)
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
