"""How models are loaded and saved with the options of Transformers."""

import json

import peft
import pytest
import torch
from test_families import NUM_LABELS
from test_other_libraries import assert_same, behaviour, inputs_of, make_model
from transformers import AutoModel, BitsAndBytesConfig, pipeline

from glocal_xml import GlocalXMLForMultiLabel
from glocal_xml.hub import publish
from glocal_xml.runs.blend import keep_blend

pytest_plugins = ["local_hub"]

TASK = "extreme-multi-label-classification"


@pytest.fixture
def saved(tokenizer, tmp_path):
    """A function that saves a model of a kind; gives its folder and what it answers."""

    def save(case="glocal_xml"):
        model, folder = make_model(case), tmp_path / case
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder, behaviour(model, inputs_of(model))

    return save


@pytest.mark.compatibility(
    "Loading and saving",
    "`device_map`",
    "works: `auto`, a device, or a place for each module; the same scores",
    since="0.1",
)
@pytest.mark.parametrize("device_map", ["auto", "cpu", {"encoder": "cpu", "global_head": "cpu", "local_head": "cpu"}])
def test_device_map(saved, device_map):
    folder, expected = saved()
    model = AutoModel.from_pretrained(folder, device_map=device_map)
    assert_same(behaviour(model, inputs_of(model)), expected)
    assert len(pipeline(TASK, model=str(folder), device_map=device_map)("apple moon", top_k=3)) == 3


@pytest.mark.compatibility(
    "Loading and saving",
    "`dtype=torch.bfloat16`",
    "works in every family: scores within 0.05 of single precision, in the pipeline too",
    since="0.1",
)
@pytest.mark.parametrize("case", ["glocal_xml", "me_xml-three-experts", "aplc_xlnet-tails", "light_attention"])
def test_bfloat16(saved, case):
    folder, expected = saved(case)
    model = AutoModel.from_pretrained(folder, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    seen = behaviour(model, inputs_of(model))
    for name in ("chosen", "scores"):
        torch.testing.assert_close(seen[name].float(), expected[name], rtol=0, atol=0.05)
    plain = pipeline(TASK, model=str(folder), dtype=torch.float32)("apple moon", top_k=NUM_LABELS)
    half = pipeline(TASK, model=str(folder), dtype=torch.bfloat16)("apple moon", top_k=NUM_LABELS)
    scores = {row["label"]: row["score"] for row in plain}
    assert {row["label"]: pytest.approx(row["score"], abs=0.05) for row in half} == scores


@pytest.mark.compatibility(
    "Loading and saving",
    "`attn_implementation`",
    "`eager` and `sdpa` work in `from_pretrained` and in `from_encoder(encoder_options=...)`; the same scores",
    since="0.1",
)
@pytest.mark.parametrize("kind", ["eager", "sdpa"])
def test_attention_implementations(saved, encoder_folder, kind):
    folder, expected = saved()
    model = AutoModel.from_pretrained(folder, attn_implementation=kind)
    assert model.encoder.config._attn_implementation == kind
    assert_same(behaviour(model, inputs_of(model)), expected)
    options = {"attn_implementation": kind}
    started = GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, encoder_options=options)
    assert started.encoder.config._attn_implementation == started.config._attn_implementation == kind
    started(torch.tensor([[7, 8]]), labels=torch.tensor([[1]])).loss.backward()
    with pytest.raises(ValueError, match="flash"):
        AutoModel.from_pretrained(folder, attn_implementation="flash-nothing")


@pytest.mark.compatibility(
    "Loading and saving",
    "`save_pretrained(max_shard_size=...)`",
    "works: several files load, a blend is kept in them, and `publish` sends all of them",
    since="0.1",
)
def test_several_files_of_weights(hub, run_folder):
    model = AutoModel.from_pretrained(run_folder)
    inputs = torch.tensor([[7, 8, 9]])
    expected = model(inputs).logits
    (run_folder / "model.safetensors").unlink()
    model.save_pretrained(run_folder, max_shard_size="8KB")
    shards = sorted(path.name for path in run_folder.glob("model-*-of-*.safetensors"))
    assert len(shards) > 2 and not (run_folder / "model.safetensors").exists()
    loaded = AutoModel.from_pretrained(run_folder)
    torch.testing.assert_close(loaded(inputs).logits, expected)
    # The frequencies of labels are in one of the files, so that the configuration alone changes.
    blend = {**loaded.config.blend, "threshold": 0.123}
    loaded.set_blend(blend, loaded.log_frequencies)
    keep_blend(run_folder, loaded)
    assert shards == sorted(path.name for path in run_folder.glob("model-*-of-*.safetensors"))
    assert AutoModel.from_pretrained(run_folder).config.blend["threshold"] == 0.123
    # Other frequencies have to be written: the model is saved anew, and no file of the old one stays.
    loaded.set_blend(blend, loaded.log_frequencies + 1)
    keep_blend(run_folder, loaded)
    found = AutoModel.from_pretrained(run_folder)
    torch.testing.assert_close(found.log_frequencies, loaded.log_frequencies)
    assert not list(run_folder.glob("model-*")) and (run_folder / "model.safetensors").exists()
    found.save_pretrained(run_folder, max_shard_size="8KB")
    (run_folder / "model.safetensors").unlink(missing_ok=True)
    publish(run_folder, "me/shards", token="hf_writer0")
    held = hub.repos["models/me/shards"].files()
    assert set(shards) <= set(held) and "model.safetensors" not in held
    index = json.loads(held["model.safetensors.index.json"].content)
    assert set(index["weight_map"].values()) == set(shards)
    again = AutoModel.from_pretrained("me/shards")
    torch.testing.assert_close(again(inputs).logits, found(inputs).logits)


EIGHT_BITS = BitsAndBytesConfig(load_in_8bit=True)


@pytest.mark.compatibility(
    "Loading and saving",
    "8-bit weights of bitsandbytes (`quantization_config`)",
    "`from_pretrained` works: linear layers of the encoder have 8 bits, label tables stay as they are; can be saved",
    since="0.1",
)
@pytest.mark.parametrize("case", ["glocal_xml", "aplc_xlnet-tails", "light_attention"])
def test_a_model_in_8_bits(saved, tmp_path, case):
    folder, expected = saved(case)
    model = AutoModel.from_pretrained(folder, quantization_config=EIGHT_BITS)
    assert {type(layer.output.dense).__name__ for layer in model.encoder.encoder.layer} == {"Linear8bitLt"}
    inputs = inputs_of(model)
    torch.testing.assert_close(model(**inputs).logits.sigmoid(), expected["logits"].sigmoid(), rtol=0, atol=0.05)
    model.save_pretrained(tmp_path / "small")
    again = AutoModel.from_pretrained(tmp_path / "small")
    torch.testing.assert_close(again(**inputs).logits, model(**inputs).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.compatibility(
    "Training",
    "8-bit encoders of bitsandbytes in `from_encoder`",
    "heads and LoRA adapters are trained on them; saving the whole model is refused with what to do",
    since="0.1",
)
def test_heads_on_an_encoder_in_8_bits(encoder_folder, tmp_path):
    def start():
        torch.manual_seed(0)
        options = {"quantization_config": EIGHT_BITS}
        return GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=5, encoder_options=options)

    model, inputs = start(), torch.tensor([[7, 8]])
    model(inputs, labels=torch.tensor([[1]])).loss.backward()
    assert model.global_head.label_embeddings.weight.grad.abs().sum() > 0
    with pytest.raises(ValueError, match="train without `quantization_config`"):
        model.save_pretrained(tmp_path / "never")
    assert not (tmp_path / "never").exists()
    heads = ["pooler", "global_head", "local_head"]
    lora = peft.LoraConfig(target_modules=r"encoder\..*\.(query|value)", modules_to_save=heads, r=4)
    model = peft.get_peft_model(start(), lora)
    optimizer = torch.optim.SGD([value for value in model.parameters() if value.requires_grad], lr=0.5)
    model(inputs, labels=torch.tensor([[1]])).loss.backward()
    optimizer.step()
    model.save_pretrained(tmp_path / "adapter")
    again = peft.PeftModel.from_pretrained(start(), tmp_path / "adapter")
    found, expected = (one.eval().predict_top_k(inputs).top_k_scores for one in (again, model))
    torch.testing.assert_close(found, expected)
