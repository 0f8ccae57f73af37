"""LightAttention and its word encoder against plain forms."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from plain_label_attention import plain_evidence_logits, plain_loss
from tiny_encoders import ENCODER_CONFIGS
from torch import nn
from transformers import AutoConfig, AutoModel

from glocal_xml.modeling import (
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    LightAttentionForMultiLabel,
    WordLSTMConfig,
    WordLSTMModel,
)

IDS = torch.tensor([[7, 8, 9, 6], [9, 7, 0, 0], [6, 0, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 0, 0, 0]])


def make_encoder(**fields):
    sizes = {"vocab_size": 20, "embedding_size": 5, "lstm_size": 3, "embedding_dropout": 0.0, "output_dropout": 0.0}
    encoder = WordLSTMModel(WordLSTMConfig(**{**sizes, **fields})).double()
    with torch.no_grad():
        encoder.initial_hidden.normal_()
        encoder.initial_cell.normal_()
    return encoder


def plain_lstm(lstm, inputs, hidden, cell, suffix):
    """One direction of one layer over one text, step by step."""
    weights = [getattr(lstm, f"{name}_{suffix}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    states = []
    for vector in inputs:
        gates = weights[0] @ vector + weights[2] + weights[1] @ hidden + weights[3]
        enter, forget, new, leave = gates.chunk(4)
        cell = forget.sigmoid() * cell + enter.sigmoid() * new.tanh()
        hidden = leave.sigmoid() * cell.tanh()
        states.append(hidden)
    return torch.stack(states)


def plain_encoder(encoder, ids):
    """A text of any length without padding."""
    states = encoder.embeddings.weight[ids]
    for layer in range(encoder.config.num_hidden_layers):
        start = [(encoder.initial_hidden[2 * layer + i, 0], encoder.initial_cell[2 * layer + i, 0]) for i in (0, 1)]
        forward = plain_lstm(encoder.lstm, states, *start[0], f"l{layer}")
        backward = plain_lstm(encoder.lstm, states.flip(0), *start[1], f"l{layer}_reverse").flip(0)
        states = torch.cat([forward, backward], dim=1)
    return states


def gradients(loss, module):
    loss.backward()
    found = {name: parameter.grad.clone() for name, parameter in module.named_parameters()}
    module.zero_grad()
    return found


@pytest.mark.parametrize("layers", [1, 2])
def test_word_encoder_equals_the_plain_form(layers):
    encoder = make_encoder(num_hidden_layers=layers)
    states = encoder(IDS, MASK).last_hidden_state
    texts = [plain_encoder(encoder, ids[mask == 1]) for ids, mask in zip(IDS, MASK, strict=True)]
    expected = nn.utils.rnn.pad_sequence(texts, batch_first=True)
    torch.testing.assert_close(states, expected)
    weights = torch.randn_like(states)
    found, wanted = gradients((states * weights).sum(), encoder), gradients((expected * weights).sum(), encoder)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, msg=lambda m, n=name: f"{n}: {m}")
    assert found["initial_cell"].abs().min() > 0


def read_by_layers(head, states):
    """Eq. 2 and the fully connected layers, for all labels of one text."""
    weights = torch.softmax(states @ head.label_embeddings.weight.T, dim=0)  # (tokens, labels)
    read = weights.T @ states  # (labels, hidden)
    for layer in (head.mlp_hidden, *head.mlp_further):
        read = torch.relu(read @ layer.weight.T + layer.bias)
    return (read @ head.mlp_output.weight.T + head.mlp_output.bias)[:, 0] + head.label_embeddings.bias


def read_as_evidence(head, states):
    return plain_evidence_logits(head, states[None], torch.ones(1, len(states)))[0]


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"mlp_sizes": [5, 4, 3]}, read_by_layers),
        ({"attention_scoring": "evidence"}, read_as_evidence),
        ({"attention_scoring": "evidence", "key_size": 4, "value_size": 4, "tied_outputs": True}, read_as_evidence),
    ],
    ids=["mlp", "evidence", "tied"],
)
def test_model_equals_the_paper(fields, read):
    """What labels make of the words, over the plain encoder; evidence in the place of the layers beyond the paper."""
    encoder = make_encoder()
    config = LightAttentionConfig(encoder=encoder.config.to_dict(), num_labels=11, label_bias=True, **fields)
    model = LightAttentionForMultiLabel(config, encoder=encoder).double()
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.normal_(std=0.7)
    labels = torch.tensor([[3, 7], [10, -100], [-100, -100]])
    loss = model(IDS, MASK, labels=labels).loss
    texts = zip(IDS, MASK, strict=True)
    logits = torch.stack([read(model.head, plain_encoder(encoder, ids[mask == 1])) for ids, mask in texts])
    expected = plain_loss(logits, labels)
    assert loss.item() == pytest.approx(expected.item(), rel=1e-9)
    found, wanted = gradients(loss, model), gradients(expected, model)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-12, msg=lambda m, n=name: f"{n}: {m}")
    torch.testing.assert_close(model.eval()(IDS, MASK).logits, logits)


def test_dropout_before_and_after_the_lstm():
    encoder = make_encoder(embedding_dropout=0.2, output_dropout=0.5).train()
    states = torch.cat([encoder(IDS[:1]).last_hidden_state for _ in range(200)])
    assert 0.45 < (states == 0).double().mean() < 0.55
    encoder.output_dropout.p = 0.0
    assert not torch.equal(encoder(IDS[:1]).last_hidden_state, encoder(IDS[:1]).last_hidden_state)
    assert torch.equal(encoder.eval()(IDS).last_hidden_state, encoder(IDS).last_hidden_state)


def test_word_encoder_starts_at_the_size_of_pretrained_vectors():
    encoder = WordLSTMModel(WordLSTMConfig(vocab_size=500, embedding_size=20, lstm_size=4))
    weight = encoder.embeddings.weight.detach()
    assert (
        (weight[0] == 0).all()
        and weight.abs().max() <= 1
        and weight[1:].std().item() == pytest.approx(3**-0.5, abs=0.02)
    )


def test_word_encoder_saves_and_loads_on_its_own(tmp_path):
    encoder = make_encoder().float().eval()
    encoder.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), WordLSTMConfig)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert type(loaded) is WordLSTMModel
    assert all(torch.equal(value, encoder.state_dict()[name]) for name, value in loaded.state_dict().items())
    model = LightAttentionForMultiLabel.from_encoder(tmp_path, num_labels=4, mlp_sizes=[6])
    torch.testing.assert_close(model.encoder.embeddings.weight, encoder.embeddings.weight)
    # Or from a copy of the encoder itself.
    same = LightAttentionForMultiLabel.from_encoder(encoder, num_labels=4)
    assert same.encoder is not encoder and same.config.hidden_size == 6
    assert all(torch.equal(value, encoder.state_dict()[name]) for name, value in same.encoder.state_dict().items())
    assert same.config.encoder.to_dict()["lstm_size"] == 3


def test_word_encoder_is_the_default():
    assert isinstance(LightAttentionConfig().encoder, WordLSTMConfig) and LightAttentionConfig().hidden_size == 512


def test_word_encoder_refuses_what_it_cannot_do():
    encoder = make_encoder()
    with pytest.raises(ValueError, match="pad texts on the right"):
        encoder(IDS.flip(1), MASK.flip(1))
    with pytest.raises(ValueError, match="has no word"):
        encoder(IDS, torch.zeros_like(MASK))
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["word_lstm"](), num_labels=5, local_layer=0)
    with pytest.raises(ValueError, match="only gives its last layer"):
        GlocalXMLForMultiLabel(config)(IDS, MASK)


@pytest.mark.parametrize(
    ("config_class", "fields"),
    [
        (LightAttentionConfig, {"mlp_sizes": []}),
        (LightAttentionConfig, {"mlp_sizes": [8, 0]}),
        (LightAttentionConfig, {"mlp_sizes": 8}),
        (WordLSTMConfig, {"lstm_size": 0}),
        (WordLSTMConfig, {"output_dropout": 1.0}),
        (WordLSTMConfig, {"embedding_dropout": -0.1}),
    ],
)
def test_bad_fields_are_refused(config_class, fields):
    with pytest.raises(StrictDataclassError, match=next(iter(fields))):
        config_class(**fields)


@pytest.mark.parametrize("label_bias", [False, True])
def test_attention_heads_start_wide_with_and_without_a_bias(label_bias):
    """Heads have no parameters of their own, and Transformers by itself passes over such modules."""
    encoder, fields = ENCODER_CONFIGS["bert"](), {"num_labels": 30, "label_bias": label_bias}
    attention = LightAttentionForMultiLabel(LightAttentionConfig(encoder=encoder, **fields)).head
    local, evidence = (
        GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=encoder, attention_scoring=scoring, **fields)).local_head
        for scoring in ("mlp", "evidence")
    )
    projections = [local.key, local.value, local.mlp_hidden, evidence.key, evidence.value]
    for linear in (*projections, attention.mlp_hidden, *attention.mlp_further):
        wide = (2 / sum(linear.weight.shape)) ** 0.5
        assert linear.weight.std().item() == pytest.approx(wide, rel=0.2)
    # Label tables are those of a linear classifier, and biases start at zero.
    for head in (attention, local, evidence):
        assert head.label_embeddings.weight.std().item() == pytest.approx(0.02, rel=0.2)
        bias = head.label_embeddings.bias
        assert bias is None if not label_bias else (bias == 0).all()
    assert evidence.label_outputs.weight.std().item() == pytest.approx(0.02, rel=0.2)
