"""Hidden states, attentions and tuples, as other models of Transformers give them."""

import pytest
import torch
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml.modeling import FAMILIES, XMTCOutput

IDS = torch.tensor([[2, 5, 6, 7, 3], [2, 8, 9, 3, 0]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


@pytest.fixture(params=FAMILIES, ids=lambda config: config.model_type)
def model(request):
    torch.manual_seed(0)
    encoder = ENCODER_CONFIGS["bert"]()
    model = FAMILIES[request.param](request.param(encoder=encoder, num_labels=6, top_k=3, attn_implementation="eager"))
    model.set_label_counts([6, 5, 4, 3, 2, 1])
    return model.eval()


@pytest.mark.compatibility(
    "Prediction",
    "`output_hidden_states`, `output_attentions`, `return_dict`",
    "work as everywhere in Transformers",
    since="0.1",
)
def test_hidden_states_and_attentions_are_those_of_the_encoder(model):
    output = model(IDS, MASK, output_hidden_states=True, output_attentions=True)
    expected = model.encoder(IDS, MASK, output_hidden_states=True, output_attentions=True)
    for name in ("hidden_states", "attentions"):
        assert len(output[name]) == len(expected[name])
        for found, wanted in zip(output[name], expected[name], strict=True):
            torch.testing.assert_close(found, wanted)
    plain = model(IDS, MASK)
    assert plain.hidden_states is None and plain.attentions is None
    torch.testing.assert_close(output.logits, plain.logits)


def test_they_are_in_the_order_of_the_inputs(model):
    ids, mask = IDS[1:], MASK[1:]
    right = model(ids, mask, output_hidden_states=True, output_attentions=True)
    left = model(ids.roll(1, 1), mask.roll(1, 1), output_hidden_states=True, output_attentions=True)
    torch.testing.assert_close(left.hidden_states[-1][:, 1:], right.hidden_states[-1][:, :-1])
    torch.testing.assert_close(left.attentions[-1][:, :, 1:, 1:], right.attentions[-1][:, :, :-1, :-1])


def test_the_configuration_may_ask_for_them(model):
    model.config.output_hidden_states = True
    assert len(model(IDS, MASK).hidden_states) == 4


def test_they_come_with_the_loss_too_and_have_gradients(model):
    output = model.train()(IDS, MASK, labels=torch.tensor([[0], [5]]), output_hidden_states=True)
    output.hidden_states[0].retain_grad()
    output.loss.backward()
    assert output.hidden_states[0].grad.abs().sum() > 0


def test_tuples(model):
    labels = torch.tensor([[0], [5]])
    output = model(IDS, MASK, labels=labels, output_hidden_states=True)
    values = model(IDS, MASK, labels=labels, output_hidden_states=True, return_dict=False)
    assert isinstance(output, XMTCOutput) and isinstance(values, tuple)
    assert len(values) == len(output.to_tuple())
    torch.testing.assert_close(values[0], output.loss)
    assert isinstance(values[-1], tuple) and len(values[-1]) == 4


def test_sizes_are_those_of_the_encoder(model):
    config = model.config
    assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (16, 2, 64)
    config.vocab_size = 70
    assert config.encoder.vocab_size == 70
