"""What is particular to GlocalXML."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny_encoders import ENCODER_CONFIGS, LAYERED_ENCODERS

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel


def make(encoder="bert", **fields):
    torch.manual_seed(0)
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS[encoder](), **{"num_labels": 11, "mlp_size": 8, **fields})
    model = GlocalXMLForMultiLabel(config).eval()
    with torch.no_grad():
        model.local_head.label_embeddings.weight.normal_()
    return model


def test_equals_the_equations_of_the_paper():
    """Eq. 2-7 written out, with the order of evaluation of the paper and no fold."""
    model = make(temperature=0.7)
    input_ids = torch.randint(6, 60, (3, 7))
    hidden = model.encoder(input_ids, output_hidden_states=True).hidden_states
    document = hidden[-1][:, 0]
    global_probability = torch.sigmoid(document @ model.global_head.label_embeddings.weight.T)
    head = model.local_head
    keys = hidden[1] @ head.key.weight.T
    values = hidden[1] @ head.value.weight.T + head.value.bias
    weights = torch.softmax(torch.einsum("btd,ld->blt", keys, head.label_embeddings.weight) / 0.7, dim=-1)
    read = torch.einsum("blt,btd->bld", weights, values)
    local_probability = torch.sigmoid(head.mlp_output(torch.relu(head.mlp_hidden(read)))).squeeze(-1)
    torch.testing.assert_close(model(input_ids).logits.sigmoid(), (global_probability + local_probability) / 2)
    branches = model.score_labels(torch.arange(11), input_ids)
    torch.testing.assert_close(branches["global"], global_probability)
    torch.testing.assert_close(branches["local"], local_probability)


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_local_layer_is_the_layer_it_names(encoder, layer):
    """Against all hidden states; the last layer is what the encoder returns, after a final norm if it has one."""
    model = make(encoder, local_layer=layer)
    input_ids = torch.randint(6, 60, (2, 6))
    options = {"use_mems": False} if encoder == "xlnet" else {}
    outputs = model.encoder(input_ids, output_hidden_states=True, **options)
    expected = outputs.last_hidden_state if layer == 3 else outputs.hidden_states[layer]
    torch.testing.assert_close(model.encode(input_ids).hidden_states[layer], expected)


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
def test_document_token(encoder):
    model = make(encoder)
    input_ids = torch.randint(6, 60, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    encoded = model.encode(input_ids, mask)
    alone = model.encode(input_ids[:1, 2:])
    position = 3 if encoder == "xlnet" else 0
    torch.testing.assert_close(encoded.document_token(3)[:1], alone.hidden_states[3][:, position])


def test_detach_local_keeps_the_encoder_out_of_the_local_gradient():
    def encoder_gradient(**fields):
        model = make(branches="local", **fields)
        model(torch.tensor([[7, 8]]), labels=torch.tensor([[3]])).loss.backward()
        return model.encoder.embeddings.word_embeddings.weight.grad, model.local_head.key.weight.grad

    detached, key = encoder_gradient(detach_local=True)
    assert detached is None and key.abs().sum() > 0
    attached, _ = encoder_gradient()
    assert attached.abs().sum() > 0


def test_branches_have_only_their_parameters():
    everything = {name.split(".")[0] for name, _ in make(use_pooler=True).named_parameters()}
    assert everything == {"encoder", "pooler", "global_head", "local_head"}
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), branches="global")
    assert {name.split(".")[0] for name, _ in GlocalXMLForMultiLabel(config).named_parameters()} == {
        "encoder",
        "global_head",
    }


def test_every_parameter_of_a_branch_gets_a_gradient():
    model = make(label_bias=True, use_pooler=True)
    model(torch.tensor([[7, 8, 9]]), labels=torch.tensor([[3]])).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_label_bias_starts_at_the_log_odds():
    model = make(label_bias=True)
    log_odds = torch.linspace(-3, -1, 11)
    model.start_label_bias(log_odds)
    assert torch.equal(model.global_head.label_bias, log_odds)
    assert torch.equal(model.local_head.label_bias, log_odds)
    with pytest.raises(ValueError, match="label_bias=True"):
        make().start_label_bias(log_odds)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_layer": 4}, "0 .embedding output. to 3"),
        ({"local_layer": -1}, "local_layer"),
        ({"temperature": 0}, "temperature"),
        ({"branches": "neither"}, "both, global, local"),
        ({"mlp_size": 0}, "mlp_size"),
        ({"num_labels": 30, "shortlist": 9}, "at least `top_k`"),
        ({"branches": "local", "shortlist": 20}, "branches='both'"),
    ],
)
def test_bad_configuration_is_refused(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), **fields)


def test_from_encoder(encoder_folder):
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=["a", "b", "c"], mlp_size=4)
    from transformers import AutoModel

    encoder = AutoModel.from_pretrained(encoder_folder)
    assert torch.equal(model.encoder.embeddings.word_embeddings.weight, encoder.embeddings.word_embeddings.weight)
    assert model.config.num_labels == 3 and model.label_names == ["a", "b", "c"]
    assert model.encoder.config is model.config.encoder
    assert model.config.encoder._attn_implementation == encoder.config._attn_implementation
    with pytest.raises(ValueError, match="num_labels"):
        GlocalXMLForMultiLabel.from_encoder(encoder_folder)
    with pytest.raises(ValueError, match="2 label names for a model of 3"):
        GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, label_names=["a", "b"])
    with pytest.raises(ValueError, match="temperature"):
        GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, temperature=-1)
    with pytest.raises(ValueError, match="no fields"):
        GlocalXMLForMultiLabel.from_encoder(encoder_folder, num_labels=3, temprature=1)
    assert encoder_folder not in model.config.to_json_string(), "a configuration travels; paths do not"
    with pytest.raises(ValueError, match="line break"):
        GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=["a", "b\nc"])


def test_shortlist_of_all_labels_is_exact():
    """And a short one ranks what the global branch puts first."""
    model = make(num_labels=40, top_k=4, label_bias=True)
    input_ids = torch.randint(6, 60, (3, 7))
    mask = torch.ones_like(input_ids)
    mask[0, 4:] = 0
    with torch.no_grad():
        model.global_head.label_embeddings.weight.normal_()
        exact = model(input_ids, mask)
        model.config.shortlist = 40
        # Small chunks, so that both branches see several.
        model.global_head.chunk_bytes = model.local_head.chunk_bytes = 4000
        every = model(input_ids, mask)
        model.config.shortlist = 6
        short = model(input_ids, mask)
        predicted = model.predict_top_k(input_ids, mask)
    assert every.logits is None
    assert torch.equal(every.top_k_ids, exact.top_k_ids)
    torch.testing.assert_close(every.top_k_scores, exact.top_k_scores)
    for name in ("global", "local"):
        assert torch.equal(every.branch_top_k_ids[name], exact.branch_top_k_ids[name])
    assert torch.equal(predicted.top_k_ids, short.top_k_ids)
    assert torch.equal(short.branch_top_k_ids["global"], exact.branch_top_k_ids["global"])
    best = exact.logits.gather(1, short.top_k_ids)
    torch.testing.assert_close(short.top_k_scores, best.sigmoid())
    listed = model.global_head.logits(model.text_features(input_ids, mask)["global"], slice(0, 40)).topk(6).indices
    order = exact.logits.gather(1, listed).argsort(dim=1, descending=True)
    assert torch.equal(short.top_k_ids, listed.gather(1, order)[:, :4])


def test_shortlist_leaves_loss_and_all_logits_exact():
    model = make()
    input_ids, labels = torch.tensor([[7, 8, 9]]), torch.tensor([[3]])
    exact = model(input_ids, labels=labels, top_k=2)
    model.config.shortlist = 2
    assert torch.equal(model(input_ids, labels=labels, top_k=2).loss, exact.loss)
    assert torch.equal(model(input_ids, top_k=2, output_logits=True).logits, exact.logits)
    with pytest.raises(ValueError, match="shortlist holds 2"):
        model(input_ids, top_k=3)
