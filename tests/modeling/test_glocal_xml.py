"""What is particular to GlocalXML."""

import copy
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from tiny_encoders import ENCODER_CONFIGS, LAYERED_ENCODERS
from torch import nn
from transformers import AutoModel

from glocal_xml import GlocalXMLConfig, GlocalXMLForMultiLabel
from glocal_xml.modeling.encoder import encode_texts

SCORINGS = ["mlp", "evidence"]


def make(encoder="bert", **fields):
    """As in the paper, unless fields say otherwise."""
    torch.manual_seed(0)
    fields = {"num_labels": 11, "attention_scoring": "mlp", "mlp_size": 8, "label_bias": False, **fields}
    model = GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=ENCODER_CONFIGS[encoder](), **fields)).eval()
    with torch.no_grad():
        for head in model.branch_heads().values():
            head.label_embeddings.weight.normal_()
    return model


def read_by_mlp(head, weights, values):
    read = torch.einsum("blt,btd->bld", weights, values)
    return head.mlp_output(torch.relu(head.mlp_hidden(read))).squeeze(-1)


def read_as_evidence(head, weights, values):
    return torch.einsum("blt,btd,ld->bl", weights, values, head.label_outputs.weight)


@pytest.mark.parametrize(("scoring", "read"), [("mlp", read_by_mlp), ("evidence", read_as_evidence)])
def test_equals_the_equations_of_the_paper(scoring, read):
    """Eq. 2-7 written out, with the order of evaluation of the paper and no fold; evidence in the place of eq. 5-6."""
    model = make(attention_scoring=scoring, temperature=0.7)
    input_ids = torch.randint(6, 60, (3, 7))
    hidden = model.encoder(input_ids, output_hidden_states=True).hidden_states
    document = hidden[-1][:, 0]
    global_probability = torch.sigmoid(document @ model.global_head.label_embeddings.weight.T)
    head = model.local_head
    keys = hidden[1] @ head.key.weight.T
    values = hidden[1] @ head.value.weight.T + head.value.bias
    weights = torch.softmax(torch.einsum("btd,ld->blt", keys, head.label_embeddings.weight) / 0.7, dim=-1)
    local_probability = torch.sigmoid(read(head, weights, values))
    torch.testing.assert_close(model(input_ids).logits.sigmoid(), (global_probability + local_probability) / 2)
    branches = model.score_labels(torch.arange(11), input_ids)
    torch.testing.assert_close(branches["global"], global_probability)
    torch.testing.assert_close(branches["local"], local_probability)


def encoder_layers(encoder):
    """The list of the three layers of a tiny encoder."""
    (layers,) = [part for part in encoder.modules() if isinstance(part, nn.ModuleList) and len(part) == 3]
    return layers


def all_layers(encoder, *inputs):
    """All hidden states; the last layer is what the encoder returns, after a final norm if it has one."""
    options = {"use_mems": False} if encoder.config.model_type == "xlnet" else {}
    outputs = encoder(*inputs, output_hidden_states=True, **options)
    return [*outputs.hidden_states[:3], outputs.last_hidden_state]


def count_calls(modules):
    """Numbers of the modules that ran, in their order."""
    calls = []
    for number, module in enumerate(modules, start=1):
        module.register_forward_hook(lambda *call, number=number: calls.append(number))
    return calls


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
@pytest.mark.parametrize("layer", [0, 1, 2, 3])
@pytest.mark.parametrize("branches", ["both", "local"])
def test_local_layer_is_the_layer_it_names(encoder, layer, branches):
    """Against all hidden states; what is read by a branch alone, and together with the last layer."""
    model = make(encoder, local_layer=layer, branches=branches)
    input_ids = torch.randint(6, 60, (2, 6))
    expected = all_layers(model.encoder, input_ids)
    found = encode_texts(model.encoder, model.layers, input_ids).hidden_states
    assert found.keys() == {layer} | ({3} if branches == "both" else set())
    for number, states in found.items():
        torch.testing.assert_close(states, expected[number])


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
@pytest.mark.parametrize("layers", [{0}, {1}, {2}, {3}, {0, 2}, {1, 3}, {0, 1, 2, 3}], ids=str)
def test_the_encoder_runs_up_to_the_highest_layer_that_is_read(encoder, layers):
    """Not even the first layer is left out, since its input is what layer 0 is."""
    model = AutoModel.from_config(ENCODER_CONFIGS[encoder]()).eval()
    input_ids = torch.randint(6, 60, (2, 6))
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    expected = all_layers(model, input_ids, mask)
    before = dict(model.named_modules())
    calls = count_calls(encoder_layers(model))
    found = encode_texts(model, layers, input_ids, mask).hidden_states
    assert calls == list(range(1, max(1, *layers) + 1))
    assert found.keys() == layers
    for layer, states in found.items():
        torch.testing.assert_close(states[mask == 1], expected[layer][mask == 1])
    # Nothing of the encoder itself was replaced, not even for a while.
    assert dict(model.named_modules()) == before


@pytest.mark.parametrize(
    ("fields", "highest"),
    [
        ({"branches": "local"}, 1),
        ({"branches": "local", "local_layer": 2}, 2),
        ({"branches": "both"}, 3),
        ({"branches": "global"}, 3),
        # The document token scores clusters.
        ({"branches": "local", "tree_levels": [4]}, 3),
    ],
    ids=str,
)
@pytest.mark.parametrize("training", [False, True])
def test_a_model_runs_no_layer_that_it_does_not_read(fields, highest, training):
    model = make(**fields).train(training)
    if model.config.tree_levels:
        model.set_label_tree([torch.tensor([0, 3, 6, 9, 11])], torch.arange(11))
    calls = count_calls(encoder_layers(model.encoder))
    loss = model(torch.tensor([[7, 8, 9]]), labels=torch.tensor([[3]])).loss
    assert calls == list(range(1, highest + 1))
    loss.backward()
    learns = [any(p.grad is not None for p in layer.parameters()) for layer in encoder_layers(model.encoder)]
    assert learns == [number <= highest for number in (1, 2, 3)]


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
@pytest.mark.parametrize("branches", ["both", "local"])
def test_several_threads_may_run_one_model(encoder, branches):
    model = make(encoder, branches=branches, top_k=3)
    batches = [torch.randint(6, 60, (1 + i % 3, 4 + i % 5)) for i in range(24)]

    def run(input_ids):
        with torch.no_grad():
            output = model(input_ids)
        return output.logits, output.top_k_scores

    expected = [run(batch) for batch in batches]
    with ThreadPoolExecutor(8) as pool:
        for found, alone in zip(pool.map(run, batches), expected, strict=True):
            torch.testing.assert_close(found, alone)


# XLNet in Transformers has no gradient checkpointing.
@pytest.mark.parametrize("encoder", [name for name in LAYERED_ENCODERS if name != "xlnet"])
@pytest.mark.parametrize("fields", [{"branches": "local"}, {"branches": "both"}, {"local_layer": 0}], ids=str)
def test_gradient_checkpointing_changes_no_gradient(encoder, fields):
    model = make(encoder, attention_scoring="evidence", **fields).train()
    inputs = {"input_ids": torch.randint(6, 60, (2, 6)), "labels": torch.tensor([[3, 5], [10, -100]])}

    def gradients(model):
        model(**inputs).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}

    expected = gradients(copy.deepcopy(model))
    model.gradient_checkpointing_enable()
    # What is inside a layer runs once more on the way back.
    calls = count_calls([next(layer.children()) for layer in encoder_layers(model.encoder)])
    torch.testing.assert_close(gradients(model), expected)
    highest = 1 if model.config.branches == "local" else 3
    assert sorted(calls) == sorted(2 * list(range(1, highest + 1)))


@pytest.mark.parametrize("encoder", LAYERED_ENCODERS)
def test_document_token(encoder):
    model = make(encoder)
    input_ids = torch.randint(6, 60, (2, 6))
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]])
    encoded = model.encode(model.layers, input_ids, mask, None, None)
    alone = encode_texts(model.encoder, model.layers, input_ids[:1, 2:])
    position = 3 if encoder == "xlnet" else 0
    torch.testing.assert_close(encoded.document(3)[:1], alone.hidden_states[3][:, position])


@pytest.mark.parametrize("scoring", SCORINGS)
def test_detach_local_keeps_the_encoder_out_of_the_local_gradient(scoring):
    def encoder_gradient(**fields):
        model = make(branches="local", attention_scoring=scoring, **fields)
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


@pytest.mark.parametrize("scoring", SCORINGS)
def test_every_parameter_of_a_branch_gets_a_gradient(scoring):
    model = make(attention_scoring=scoring, label_bias=True, use_pooler=True)
    model(torch.tensor([[7, 8, 9]]), labels=torch.tensor([[3]])).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_label_bias_starts_at_the_log_odds():
    model = make(label_bias=True)
    log_odds = torch.linspace(-3, -1, 11)
    model.start_label_bias(log_odds)
    assert torch.equal(model.global_head.label_embeddings.bias, log_odds)
    assert torch.equal(model.local_head.label_embeddings.bias, log_odds)
    with pytest.raises(ValueError, match="label_bias=True"):
        make().start_label_bias(log_odds)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"local_layer": 4}, "0 .embedding output. to 3"),
        ({"local_layer": -1}, "local_layer"),
        ({"temperature": 0}, "temperature"),
        ({"branches": "neither"}, "one of .'both', 'global', 'local'., got neither"),
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


def test_from_encoder_takes_a_copy():
    """Whoever has the encoder can use it further: it keeps its pooler, its mode, its weights and its configuration."""
    encoder = AutoModel.from_config(ENCODER_CONFIGS["bert"]()).train()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    config = encoder.config
    model = GlocalXMLForMultiLabel.from_encoder(encoder, num_labels=3, mlp_size=4).eval()
    assert model.encoder.pooler is None and encoder.pooler is not None
    assert encoder.training and encoder.config is config
    own = dict(model.encoder.named_parameters())
    assert own.keys() == {name for name, _ in encoder.named_parameters() if not name.startswith("pooler.")}
    assert all(torch.equal(parameter, before[name]) for name, parameter in own.items())
    with torch.no_grad():
        for parameter in own.values():
            parameter.zero_()
    torch.testing.assert_close(encoder.state_dict(), before, rtol=0, atol=0)
    assert encoder(torch.tensor([[7, 8]])).pooler_output is not None


@pytest.mark.parametrize("scoring", SCORINGS)
def test_shortlist_of_all_labels_is_exact(scoring):
    """And a short one ranks what the global branch puts first."""
    model = make(num_labels=40, top_k=4, attention_scoring=scoring, label_bias=True)
    input_ids = torch.randint(6, 60, (3, 7))
    mask = torch.ones_like(input_ids)
    mask[0, 4:] = 0
    with torch.no_grad():
        exact = model(input_ids, mask)
        model.config.shortlist = 40
        # Small chunks, so that both branches see several.
        model.global_head.chunk_bytes = model.local_head.chunk_bytes = 2000
        branches = model(input_ids, mask, output_scores=True).scores.branches
        assert all(scores.run_size < 40 for scores in branches.values())
        every = model(input_ids, mask, output_logits=False)
        model.config.shortlist = 6
        short = model(input_ids, mask, output_logits=False)
        predicted = model.predict_top_k(input_ids, mask)
    assert every.logits is None
    assert torch.equal(every.top_k_ids, exact.top_k_ids)
    torch.testing.assert_close(every.top_k_scores, exact.top_k_scores)
    assert exact.branch_top_k_ids.shape == (3, 2, 4) and model.branch_names == ["global", "local"]
    assert torch.equal(every.branch_top_k_ids, exact.branch_top_k_ids)
    assert torch.equal(predicted.top_k_ids, short.top_k_ids)
    assert torch.equal(short.branch_top_k_ids[:, 0], exact.branch_top_k_ids[:, 0])
    best = exact.logits.gather(1, short.top_k_ids)
    torch.testing.assert_close(short.top_k_scores, best.sigmoid())
    listed = branches["global"].all().topk(6).indices
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
        model.predict_top_k(input_ids, top_k=3)
