"""Encoders of any kind give right results or are refused: decoders, those with a decoder, those for long texts."""

import copy
import json
import logging

import pytest
import torch
import warm_process
from tiny_encoders import ENCODER_CONFIGS, FURTHER_ENCODER_CONFIGS
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertGenerationConfig,
    CLIPTextConfig,
    FNetConfig,
    Gemma3Config,
    Gemma3TextConfig,
    GPTNeoXConfig,
    MarianConfig,
    Qwen2Config,
    ReformerConfig,
    T5EncoderModel,
    T5ForConditionalGeneration,
    ViTConfig,
)

from glocal_xml.modeling import (
    FAMILIES,
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    TextExpertsConfig,
    TextExpertsForMultiLabel,
)

NUM_LABELS = 11
ALL_LABELS = torch.arange(NUM_LABELS)
KINDS = {**ENCODER_CONFIGS, **FURTHER_ENCODER_CONFIGS}
DECODERS = ("qwen2", "qwen3", "gpt2")
LAYERED = sorted(KINDS.keys() - {"word_lstm"})


def random_heads(model):
    """Fresh heads score so close to zero that wrong code could pass by comparing almost nothing."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith(("encoder.", "level_encoders.")):
                parameter.normal_(std=0.5)
    return model.eval()


def start(kind, family=GlocalXMLForMultiLabel, **fields):
    """A model around a fresh encoder, as from a folder of pretrained ones."""
    torch.manual_seed(0)
    model = family.from_encoder(AutoModel.from_config(KINDS[kind]()), num_labels=NUM_LABELS, **fields)
    model.set_label_counts(torch.arange(NUM_LABELS, 0, -1))
    return random_heads(model)


# The same first word; the other one is as long.
TEXTS = torch.tensor([[7, 8, 9, 10, 11], [7, 12, 13, 14, 15]])
LABELS = torch.tensor([[1, 4], [2, -100]])


def padded(kind, side):
    pad = torch.full((2, 3), KINDS[kind]().pad_token_id or 0)
    parts = [(TEXTS, 1), (pad, 0)] if side == "right" else [(pad, 0), (TEXTS, 1)]
    mask = torch.cat([torch.full_like(ids, value) for ids, value in parts], dim=1)
    return {"input_ids": torch.cat([ids for ids, _ in parts], dim=1), "attention_mask": mask}


@pytest.mark.parametrize("kind", LAYERED)
def test_scores_depend_on_the_text_and_not_on_padding(kind):
    model = start(kind)
    scores = model.score_labels(ALL_LABELS, TEXTS)
    for name, values in scores.items():
        assert not torch.allclose(values[0], values[1], atol=1e-4), f"{name}: texts with the same first word"
    for side in ("left", "right"):
        for name, values in model.score_labels(ALL_LABELS, **padded(kind, side)).items():
            torch.testing.assert_close(values, scores[name], rtol=1e-4, atol=1e-5)


@pytest.mark.compatibility(
    "Encoders",
    "BERT, RoBERTa, XLNet, DistilBERT, ELECTRA, MPNet",
    "train, are saved and loaded, in half precision too",
    since="0.1",
)
@pytest.mark.parametrize("kind", LAYERED)
def test_training_saving_and_half_precision(kind, tmp_path):
    model = start(kind)
    loss = model.train()(TEXTS, labels=LABELS).loss
    loss.backward()
    # XLNet has parameters for what no text classifier does.
    unused = {name for name, parameter in model.named_parameters() if parameter.grad is None}
    assert loss.isfinite() and (not unused or kind == "xlnet"), unused
    model.eval().save_pretrained(tmp_path)
    expected = model.score_labels(ALL_LABELS, TEXTS)["final"]
    loaded = GlocalXMLForMultiLabel.from_pretrained(tmp_path)
    assert loaded.config.document_pooling == model.config.document_pooling
    assert loaded.state_dict().keys() == model.state_dict().keys()
    torch.testing.assert_close(loaded.score_labels(ALL_LABELS, TEXTS)["final"], expected, rtol=1e-4, atol=1e-5)
    half = GlocalXMLForMultiLabel.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16}
    torch.testing.assert_close(half.score_labels(ALL_LABELS, TEXTS)["final"].float(), expected, rtol=0, atol=0.05)
    half.train()(TEXTS, labels=LABELS).loss.backward()


@pytest.mark.parametrize("config_class", [family for family in FAMILIES if family is not LightAttentionConfig])
@pytest.mark.parametrize("kind", ["qwen2", "t5"])
def test_every_family_reads_whole_documents(config_class, kind):
    fields = {"experts": ["D-3"], "diversity_weight": 0} if config_class.model_type == "me_xml" else {}
    model = start(kind, FAMILIES[config_class], **fields)
    scores = model.score_labels(ALL_LABELS, TEXTS)["final"]
    assert not torch.allclose(scores[0], scores[1], atol=1e-4)
    model.train()(TEXTS, labels=LABELS).loss.backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("pooling", ["first", "last", "mean"])
def test_what_stands_for_a_text(pooling, dtype):
    model = start("bert", document_pooling=pooling).to(dtype)
    inputs = padded("bert", "left")
    inputs["attention_mask"][0, 3] = 0
    documents = model.encode({3}, *inputs.values(), None, None).document(3)
    for text, document in enumerate(documents):
        states = model.encoder(inputs["input_ids"][text, inputs["attention_mask"][text] == 1][None]).last_hidden_state
        expected = {"first": states[0, 0], "last": states[0, -1], "mean": states[0].mean(dim=0)}[pooling]
        tolerance = {} if dtype == torch.float64 else {"rtol": 0.05, "atol": 0.05}
        torch.testing.assert_close(document, expected, **tolerance)


def test_another_pooling_is_refused():
    with pytest.raises(ValueError, match="`document_pooling` must be one of first, last, mean, got 'max'"):
        start("bert", document_pooling="max")


def sizes(kind):
    return {name: getattr(KINDS[kind](), name) for name in ("hidden_size", "num_hidden_layers", "vocab_size")}


SMALL = {**sizes("bert"), "num_attention_heads": 2, "intermediate_size": 32}
READERS = {
    **{kind: (KINDS[kind], "last" if kind in (*DECODERS, "xlnet") else "first") for kind in LAYERED},
    "bert as a decoder": (lambda: BertConfig(**SMALL, is_decoder=True), "last"),
    "gpt_neox": (lambda: GPTNeoXConfig(**SMALL), "last"),
    "bert for generation": (lambda: BertGenerationConfig(**SMALL), "first"),
    "qwen2 in both directions": (lambda: Qwen2Config(**SMALL, num_key_value_heads=2, is_causal=False), "first"),
    "gemma for generation": (lambda: Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8), "last"),
    "clip": (lambda: CLIPTextConfig(**SMALL), "last"),
    "gemma for embeddings": (
        lambda: Gemma3TextConfig(**SMALL, num_key_value_heads=2, head_dim=8, use_bidirectional_attention=True),
        "first",
    ),
}


@pytest.mark.compatibility(
    "Encoders",
    "Qwen, Llama, GPT-2 and other decoders",
    "work: the last token stands for a text, or what `document_pooling` says",
    since="0.1",
)
@pytest.mark.parametrize("kind", sorted(READERS))
def test_the_default_is_a_token_that_sees_the_text(kind):
    make, expected = READERS[kind]
    model = random_heads(GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=make(), num_labels=NUM_LABELS)))
    assert model.config.document_pooling == expected
    states = model.encode({3}, TEXTS, None, None, None).hidden_states[3]
    first_sees_all = not torch.allclose(states[0, 0], states[1, 0], atol=1e-6)
    # Tokens of XLNet see all of the text too, but its special token is the last.
    assert first_sees_all == (expected == "first" or kind == "xlnet")


def test_translation_models_are_read_by_their_encoder():
    config = MarianConfig(d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2)
    assert GlocalXMLConfig(encoder=config, num_labels=3).document_pooling == "first"


@pytest.mark.parametrize(("kind", "expected"), [("qwen2", "first"), ("bert", "first"), ("xlnet", "last")])
def test_a_file_without_the_field_means_what_it_meant(kind, expected, tmp_path):
    model = start(kind)
    model.save_pretrained(tmp_path)
    fields = json.loads((tmp_path / "config.json").read_text())
    assert fields.pop("document_pooling") == model.config.document_pooling
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert AutoModel.from_pretrained(tmp_path).config.document_pooling == expected
    assert AutoModel.from_pretrained(tmp_path, document_pooling="mean").config.document_pooling == "mean"


def test_without_an_encoder_nothing_is_pooled(tmp_path):
    TextExpertsConfig(num_labels=3).save_pretrained(tmp_path)
    assert TextExpertsConfig.from_pretrained(tmp_path).document_pooling is None


def write_pooling(folder, **pooling):
    """Makes a folder one of sentence-transformers."""
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16, **pooling}))


FLAGS = {f"pooling_mode_{name}": False for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")}
POOLINGS = [
    ("bert", {**FLAGS, "pooling_mode_mean_tokens": True}, "mean"),
    ("bert", {**FLAGS, "pooling_mode_cls_token": True}, "first"),
    ("qwen2", {**FLAGS, "pooling_mode_lasttoken": True}, "last"),
    ("qwen2", {"pooling_mode": "mean"}, "mean"),
    ("bert", {"pooling_mode": "lasttoken", "include_prompt": True}, "last"),
    ("bert", {"pooling_mode": ["cls"]}, "first"),
    ("bert", {}, "mean"),
]


@pytest.mark.parametrize(("kind", "pooling", "expected"), POOLINGS, ids=str)
def test_sentence_transformers_say_how_they_pool(kind, pooling, expected, tmp_path):
    AutoModel.from_config(KINDS[kind]()).save_pretrained(tmp_path)
    write_pooling(tmp_path, **pooling)
    # Also where the encoder was loaded before.
    for encoder in (tmp_path, str(tmp_path), AutoModel.from_pretrained(tmp_path)):
        model = GlocalXMLForMultiLabel.from_encoder(encoder, num_labels=3)
        assert model.config.document_pooling == expected
        assert str(tmp_path) not in model.config.to_json_string()
    model = GlocalXMLForMultiLabel.from_encoder(tmp_path, num_labels=3, document_pooling="last")
    assert model.config.document_pooling == "last"


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        ({**FLAGS, "pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "weightedmean"}, "weightedmean"),
        ({**FLAGS, "pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode": ["cls", "mean"]}, "cls and mean"),
    ],
)
def test_a_pooling_that_is_not_known_is_told(pooling, name, tmp_path, caplog, monkeypatch):
    AutoModel.from_config(KINDS["bert"]()).save_pretrained(tmp_path)
    write_pooling(tmp_path, **pooling)
    # Loggers of Transformers keep what they say from those above them.
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("glocal_xml"), "propagate", True)
    model = GlocalXMLForMultiLabel.from_encoder(tmp_path, num_labels=3)
    assert model.config.document_pooling == "mean"
    assert f"pools by {name}, which is not known" in caplog.text and "`document_pooling`" in caplog.text


def test_an_encoder_outlives_its_folder(tmp_path):
    AutoModel.from_config(KINDS["bert"]()).save_pretrained(tmp_path / "encoder")
    encoder = AutoModel.from_pretrained(tmp_path / "encoder")
    (tmp_path / "encoder").rename(tmp_path / "elsewhere")
    model = GlocalXMLForMultiLabel.from_encoder(encoder, num_labels=3)
    assert model.config.document_pooling == "first" and str(tmp_path) not in model.config.to_json_string()


ALL_FAMILIES = {**FAMILIES, TextExpertsConfig: TextExpertsForMultiLabel}


@pytest.mark.compatibility(
    "Loading and saving", "`from_pretrained` of a bare encoder", "refused; `from_encoder` starts a model", since="0.1"
)
@pytest.mark.parametrize("family", ALL_FAMILIES.values(), ids=lambda family: family.config_class.model_type)
@pytest.mark.parametrize("kind", ["bert", "xlnet"])
def test_files_of_another_model_are_refused(family, kind, tmp_path):
    AutoModel.from_config(KINDS[kind]()).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"type {kind}, not {family.config_class.model_type}.*`from_encoder`"):
        family.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="`from_encoder`"):
        family.config_class.from_pretrained(tmp_path)


@pytest.mark.parametrize("family", ALL_FAMILIES.values(), ids=lambda family: family.config_class.model_type)
def test_files_of_another_family_are_refused(family, tmp_path):
    own = family.config_class.model_type
    other = next(config for config in FAMILIES if config.model_type != own)
    start("bert", FAMILIES[other]).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=f"type {other.model_type}, not {own}.*`AutoModel.from_pretrained`"):
        family.from_pretrained(tmp_path)


def test_weights_of_an_encoder_alone_are_refused_where_a_configuration_is_given(tmp_path):
    AutoModel.from_config(KINDS["bert"]()).save_pretrained(tmp_path)
    config = GlocalXMLConfig(encoder=KINDS["bert"](), num_labels=3)
    with pytest.raises(ValueError, match="an encoder alone.*`from_encoder`"):
        GlocalXMLForMultiLabel.from_pretrained(tmp_path, config=config)


def encoder_weights(model):
    return {name: value for name, value in model.state_dict().items() if name.startswith("encoder.")}


@pytest.mark.compatibility(
    "Encoders", "T5, BART and other models with a decoder", "the encoder alone is taken, saved and loaded", since="0.1"
)
@pytest.mark.parametrize("make", [T5EncoderModel, AutoModel.from_config, T5ForConditionalGeneration], ids=str)
def test_of_t5_the_encoder_is_taken(make, tmp_path, caplog, monkeypatch):
    whole = make(KINDS["t5"]())
    whole.save_pretrained(tmp_path / "whole")
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    for source in (whole, tmp_path / "whole"):
        model = random_heads(GlocalXMLForMultiLabel.from_encoder(source, num_labels=NUM_LABELS))
        expected = whole.get_encoder()(TEXTS).last_hidden_state
        states = model.encode({3, 1}, TEXTS, None, None, None).hidden_states
        torch.testing.assert_close(states[3], expected)
        assert not [name for name in model.state_dict() if "decoder" in name]
        model.save_pretrained(tmp_path / "model")
        loaded = AutoModel.from_pretrained(tmp_path / "model")
        assert all(torch.equal(value, encoder_weights(loaded)[name]) for name, value in encoder_weights(model).items())
        torch.testing.assert_close(loaded(TEXTS).logits, model(TEXTS).logits)
    # Nothing was made up, and no weights of a decoder were missed.
    assert "MISSING" not in caplog.text


def test_the_encoder_of_models_with_a_head_is_taken():
    whole = BertForMaskedLM(KINDS["bert"]())
    model = GlocalXMLForMultiLabel.from_encoder(whole, num_labels=3)
    again = GlocalXMLForMultiLabel.from_encoder(model, num_labels=5)
    for name, value in whole.bert.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], value)
        assert torch.equal(again.encoder.state_dict()[name], value)


REMOTE = """
import json
import sys

# The package is not there.
sys.modules["glocal_xml"] = None

import torch
from transformers import AutoModel

folder, input_ids = json.loads(sys.stdin.read())
model = AutoModel.from_pretrained(folder, trust_remote_code=True)
logits = model(torch.tensor(input_ids)).logits
try:
    type(model).from_encoder(model, num_labels=3)
except ValueError as error:
    print(json.dumps([logits.tolist(), model.config.document_pooling, str(error)]))
"""


def test_t5_loads_as_remote_code_without_the_package(tmp_path):
    model = start("t5", document_pooling="mean")
    model.save_pretrained(tmp_path / "model")
    payload = json.dumps([str(tmp_path / "model"), TEXTS.tolist()])
    process = warm_process.run(REMOTE, input=payload, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    logits, pooling, error = json.loads(process.stdout.splitlines()[-1])
    torch.testing.assert_close(torch.tensor(logits), model(TEXTS).logits)
    assert pooling == "mean" and "pip install glocal-xml" in error


@pytest.mark.compatibility("Encoders", "Longformer, LED", "works: the document token sees the whole text", since="0.1")
@pytest.mark.parametrize("kind", ["led", "longformer"])
def test_the_first_token_sees_a_long_text(kind):
    model = start(kind, local_layer=2)
    long = torch.randint(6, 60, (1, 45)).repeat(2, 1)
    long[1, -1] = 61
    # Three layers see six tokens to either side.
    states = model.encode({2, 3}, long, None, None, None)
    assert not torch.allclose(states.document(3)[0], states.document(3)[1], atol=1e-7)
    # Layers are as they come out of the whole encoder, without the padding to whole windows.
    mask = torch.zeros_like(long)
    mask[:, 0] = 1
    outputs = model.encoder(long, global_attention_mask=mask, output_hidden_states=True)
    torch.testing.assert_close(states.hidden_states[2], outputs.hidden_states[2])
    torch.testing.assert_close(states.hidden_states[3], outputs.last_hidden_state)


@pytest.mark.compatibility(
    "Training",
    "`gradient_checkpointing`",
    "works where the encoder has it, else refused; the same gradients",
    since="0.1",
)
@pytest.mark.parametrize("kind", [*LAYERED, "word_lstm"])
def test_gradient_checkpointing_where_the_encoder_has_it(kind):
    family = FAMILIES[LightAttentionConfig] if kind == "word_lstm" else GlocalXMLForMultiLabel
    model = start(kind, family).train()
    assert model.supports_gradient_checkpointing == (kind not in ("mpnet", "xlnet", "word_lstm"))
    if not model.supports_gradient_checkpointing:
        # Transformers says "activation" from 5.23 on.
        with pytest.raises(ValueError, match="does not support (gradient|activation) checkpointing"):
            model.gradient_checkpointing_enable()
        return
    plain = copy.deepcopy(model)
    model.gradient_checkpointing_enable()
    for one in (plain, model):
        one(TEXTS, labels=LABELS).loss.backward()
    for (name, parameter), other in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_heads_have_the_precision_that_an_encoder_is_asked_for_in(encoder_folder):
    options = {"dtype": torch.bfloat16}
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, encoder_options=options)
    assert model(torch.tensor([[2, 7, 3]])).logits.isfinite().all() and model.dtype == torch.bfloat16


def test_decoders_keep_nothing_for_generation():
    model = start("qwen2")
    assert model.encoder(TEXTS).past_key_values is None


@pytest.mark.compatibility(
    "Encoders",
    "texts longer than the encoder has positions for",
    "refused with what to do; pipeline and commands cut texts or read them by windows",
    since="0.1",
)
@pytest.mark.parametrize("kind", ["gpt2", "bart", "led"])
def test_texts_longer_than_the_positions_are_refused(kind):
    model = start(kind)
    model(torch.full((1, 64), 7))
    with pytest.raises(ValueError, match="positions for 64"):
        model(torch.full((1, 65), 7))


@pytest.mark.compatibility(
    "Loading and saving", "`resize_token_embeddings`", "works: saved and loaded with the new size", since="0.1"
)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_resized_embeddings_are_saved_and_loaded(kind, tmp_path):
    words = kind == "word_lstm"
    fields = {"tree_levels": [3], "negatives": "static", "level_epochs": 1} if words else {}
    model = start(kind, FAMILIES[LightAttentionConfig] if words else GlocalXMLForMultiLabel, **fields)
    if words:
        model.set_label_tree([torch.tensor([0, 4, 8, NUM_LABELS])], ALL_LABELS)
        model.start_epoch(9)
    expected = model(TEXTS).logits
    model.save_pretrained(tmp_path / "small")
    # Loaded ones are built in another way than new ones.
    model = AutoModel.from_pretrained(tmp_path / "small")
    embeddings = model.resize_token_embeddings(70)
    assert len(embeddings.weight) == 70 == model.config.encoder.vocab_size == model.encoder.config.vocab_size
    assert model.get_input_embeddings() is embeddings and model.resize_token_embeddings() is embeddings
    torch.testing.assert_close(model(TEXTS).logits, expected, rtol=1e-4, atol=1e-5)
    model.save_pretrained(tmp_path / "large")
    loaded, report = AutoModel.from_pretrained(tmp_path / "large", output_loading_info=True)
    assert not any(report.values()), report
    new = torch.tensor([[7, 69, 8]])
    torch.testing.assert_close(loaded(new).logits, model(new).logits, rtol=1e-4, atol=1e-5)


VISION = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32},
    **{"image_size": 8, "patch_size": 4},
}
NO_ENCODERS = {
    "images": (lambda: ViTConfig(**VISION), "no encoder of texts alone"),
    "texts and images": (
        lambda: Gemma3Config(text_config={**SMALL, "num_key_value_heads": 2, "head_dim": 8}, vision_config=VISION),
        "no encoder of texts alone",
    ),
    "no mask": (lambda: FNetConfig(**sizes("bert"), intermediate_size=32), "no attention mask"),
}


@pytest.mark.compatibility(
    "Encoders", "models of images, or without an attention mask (FNet)", "refused with what to do", since="0.1"
)
@pytest.mark.parametrize("kind", sorted(NO_ENCODERS))
def test_what_cannot_be_an_encoder_is_refused(kind):
    make, message = NO_ENCODERS[kind]
    with pytest.raises(ValueError, match=message):
        GlocalXMLForMultiLabel.from_encoder(AutoModel.from_config(make()), num_labels=NUM_LABELS)


def test_states_of_another_size_are_refused():
    """Reformer gives two streams side by side."""
    config = ReformerConfig(
        vocab_size=64, hidden_size=16, attn_layers=["local"], num_attention_heads=2, axial_pos_embds=False
    )
    model = GlocalXMLForMultiLabel.from_encoder(
        AutoModel.from_config(config), num_labels=NUM_LABELS, branches="global"
    )
    with pytest.raises(ValueError, match=r"encoder reformer gives the shape \(2, 5, 32\), not \(2, 5, 16\)"):
        model(TEXTS)
