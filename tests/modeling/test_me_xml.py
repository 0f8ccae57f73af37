"""ME-XML beyond the contract of all families: its equations, its losses, and what it refuses."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from hypothesis import given
from hypothesis import strategies as st
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoModel

from glocal_xml.modeling import MEXMLConfig, MEXMLForMultiLabel
from glocal_xml.modeling.configuration_me_xml import parse_expert
from glocal_xml.modeling.modeling_me_xml import bernoulli_kl, diversity_loss

COUNTS = [1, 2, 3, 5, 8, 13, 21, 34, 55, 89, 144]
LABELS = torch.tensor([[0, 4, 10], [2, -100, -100], [-100, -100, -100]])
INPUT_IDS = torch.tensor([[7, 8, 9, 10, 11, 12, 13], [13, 12, 11, 10, 9, 8, 7], [20, 21, 22, 23, 24, 25, 26]])


def make(encoder="bert", counts=COUNTS, **fields):
    torch.manual_seed(0)
    fields = {"num_labels": 11, "top_k": 4, "mlp_size": 8, "label_bias": False, **fields}
    model = MEXMLForMultiLabel(MEXMLConfig(encoder=ENCODER_CONFIGS[encoder](), **fields)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("experts."):
                parameter.normal_(std=0.5)
    if counts is not None:
        model.set_label_counts(counts)
    return model


def test_equals_the_equations_of_the_paper():
    """Eq. 1-4 written out: token states are keys and values, every expert has an MLP of its own."""
    model = make(experts=["A-1", "D-3+2"], document_mlp_size=6)
    hidden = model.encoder(INPUT_IDS, output_hidden_states=True).hidden_states
    attention, document = model.experts["A-1"], model.experts["D-3+2"]
    weights = torch.softmax(torch.einsum("btd,ld->blt", hidden[1], attention.label_embeddings.weight), dim=-1)
    read = torch.einsum("blt,btd->bld", weights, hidden[1])
    first = torch.sigmoid(attention.mlp_output(torch.relu(attention.mlp_hidden(read)))).squeeze(-1)
    tokens = torch.cat([hidden[3][:, 0], hidden[2][:, 0]], dim=1)
    table = document.label_embeddings
    inner = torch.tanh(document.mlp_hidden(tokens))
    second = torch.sigmoid(torch.nn.functional.linear(inner, table.weight, table.bias))
    torch.testing.assert_close(model(INPUT_IDS).logits.sigmoid(), (first + second) / 2)
    scores = model.score_labels(torch.arange(11), INPUT_IDS)
    torch.testing.assert_close(scores["A-1"], first)
    torch.testing.assert_close(scores["D-3+2"], second)


def test_document_expert_without_a_hidden_layer():
    model = make(experts=["D-3"], document_mlp_size=0)
    token = model.encoder(INPUT_IDS).last_hidden_state[:, 0]
    expected = token @ model.experts["D-3"].label_embeddings.weight.T
    torch.testing.assert_close(model(INPUT_IDS).logits, expected)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("A-0", "A-0"), ("D-12", "D-12"), ("D--1", "D-12"), ("A--13", "A-0"), ("D-12+-12", "D-12+1")],
)
def test_names_of_experts(name, expected):
    assert parse_expert(name, 12).name == expected


@pytest.mark.parametrize(
    ("experts", "message"),
    [
        (["D-4"], "0 .embedding output. to 3"),
        (["D--5"], "-1 .last. to -4"),
        (["A-1+2"], "'A-1', 'A-2'"),
        (["B-1"], "write 'A-1'"),
        (["A1"], "write 'A-1'"),
        (["D-3", "D--1"], "twice"),
        (["D-3+3"], "twice"),
        ([], "at least one"),
    ],
)
def test_bad_experts_are_refused(experts, message):
    with pytest.raises(StrictDataclassError, match=message):
        make(experts=experts)


@pytest.mark.parametrize(
    "fields",
    [{"training_loss": "mean"}, {"diversity_weight": -0.1}, {"diversity_start_epoch": -1}, {"mlp_size": 0}]
    + [{"document_mlp_size": -1}],
    ids=str,
)
def test_bad_fields_are_refused(fields):
    with pytest.raises(StrictDataclassError, match=next(iter(fields))):
        make(**fields)


def formula(first, second, counts):
    """Eq. 6-9 in probabilities, one text."""
    p, q = first.sigmoid(), second.sigmoid()
    weight = (1 - torch.maximum(p, q).detach()) / counts
    return -(weight * (p * torch.log(p / q) + (1 - p) * torch.log((1 - p) / (1 - q)))).sum()


@given(st.lists(st.tuples(*[st.floats(-12, 12)] * 2, st.integers(1, 1000)), min_size=1, max_size=5))
def test_diversity_and_its_gradient_equal_the_formula(rows):
    values = torch.tensor(rows, dtype=torch.float64)
    first, second = (values[:, i].clone().requires_grad_() for i in (0, 1))
    ours = diversity_loss([first[None], second[None]], values[None, :, 2], torch.ones(1, len(rows), dtype=torch.bool))
    own = torch.autograd.grad(ours, (first, second))
    expected = formula(first, second, values[:, 2])
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-12)
    for gradient, twin in zip(own, torch.autograd.grad(expected, (first, second)), strict=True):
        torch.testing.assert_close(gradient, twin, rtol=1e-5, atol=1e-10)


def test_diversity_is_a_mean_over_texts_and_pairs():
    logits = [torch.randn(2, 3, dtype=torch.float64) for _ in range(3)]
    counts = torch.tensor([[1, 2, 3], [4, 5, 6]])
    is_label = torch.tensor([[True, True, False], [True, False, False]])
    expected = 0.0
    for first, second in ((0, 1), (0, 2), (1, 2)):
        for row in range(2):
            chosen = is_label[row]
            expected += formula(logits[first][row, chosen], logits[second][row, chosen], counts[row, chosen]) / 6
    ours = diversity_loss(logits, counts, is_label)
    torch.testing.assert_close(ours, torch.as_tensor(expected))


def test_divergence_is_finite_where_probabilities_are_zero_and_one():
    # As far as half precision reaches; logits of heads come in single precision.
    ends = torch.tensor([-6e4, -30.0, 0.0, 30.0, 6e4])
    first, second = (grid.clone().requires_grad_() for grid in torch.meshgrid(ends, ends, indexing="ij"))
    divergence = bernoulli_kl(first, second)
    assert divergence.isfinite().all() and (divergence > -1e-6).all()
    loss = diversity_loss([first, second], torch.ones(5, 5), torch.ones(5, 5, dtype=torch.bool))
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, (first, second)))


@pytest.mark.parametrize("scoring", ["mlp", "evidence"])
@pytest.mark.parametrize("label_bias", [False, True])
@pytest.mark.parametrize("chunk_bytes", [1, 900, None])
def test_collaborative_loss_and_gradients_equal_the_formula(scoring, label_bias, chunk_bytes):
    """Eq. 5, by autograd over all labels at once."""
    fields = {"attention_scoring": scoring, "label_bias": label_bias, "label_chunk_bytes": chunk_bytes}
    model = make(training_loss="collaborative", diversity_weight=0, **fields).double().train()
    loss = model(INPUT_IDS, labels=LABELS).loss
    ours = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    branches = model(INPUT_IDS, output_scores=True).scores.branches
    assert (max(scores.run_size for scores in branches.values()) < 11) == (chunk_bytes is not None)
    logits = [scores.all() for scores in branches.values()]
    target = torch.zeros(3, 11, dtype=torch.float64)
    target[0, [0, 4, 10]] = target[1, 2] = 1
    plain = torch.nn.functional.binary_cross_entropy_with_logits(sum(logits) / 2, target)
    torch.testing.assert_close(loss, plain)
    for gradient, twin in zip(
        ours, torch.autograd.grad(plain, list(model.parameters()), allow_unused=True), strict=True
    ):
        torch.testing.assert_close(gradient, twin, rtol=1e-8, atol=1e-12)


def test_diversity_sets_in_at_its_epoch():
    model = make(diversity_weight=0.5, diversity_start_epoch=2).train()
    for epoch, terms in ((0, {"individual"}), (1, {"individual"}), (2, {"individual", "diversity"}), (3, None)):
        model.start_epoch(epoch)
        output = model(INPUT_IDS, labels=LABELS)
        assert set(output.loss_terms) == (terms or {"individual", "diversity"})
    assert output.loss_terms["diversity"] < 0
    # A run that starts anew with the same model starts without it.
    model.start_epoch(0)
    assert set(model(INPUT_IDS, labels=LABELS).loss_terms) == {"individual"}


def test_frequencies_and_state_travel_with_the_weights(tmp_path):
    model = make(diversity_weight=0.5, diversity_start_epoch=1)
    model.start_epoch(1)
    model.save_pretrained(tmp_path)
    loaded = AutoModel.from_pretrained(tmp_path)
    assert loaded.label_counts.tolist() == COUNTS
    assert set(loaded(INPUT_IDS, labels=LABELS).loss_terms) == {"individual", "diversity"}
    torch.testing.assert_close(loaded(INPUT_IDS, labels=LABELS).loss, model(INPUT_IDS, labels=LABELS).loss)
    # Into another label space the old frequencies do not fit.
    other = AutoModel.from_pretrained(tmp_path, num_labels=7, ignore_mismatched_sizes=True)
    assert other.label_counts.tolist() == [0] * 7


def test_missing_frequencies_are_refused_from_the_first_step():
    model = make(counts=None, diversity_start_epoch=5).train()
    with pytest.raises(ValueError, match="set_label_counts"):
        model(INPUT_IDS, labels=LABELS)
    assert make(counts=None, diversity_weight=0).train()(INPUT_IDS, labels=LABELS).loss.isfinite()
    assert make(counts=None, experts=["D-3"]).train()(INPUT_IDS, labels=LABELS).loss.isfinite()
    # Without labels nothing is missing.
    assert model.eval()(INPUT_IDS).logits.shape == (3, 11)


@pytest.mark.parametrize("counts", [[1] * 10, [0] * 11, [-1] + [1] * 10, [0.5] * 11], ids=str)
def test_bad_frequencies_are_refused(counts):
    with pytest.raises(ValueError, match="label_counts"):
        make(counts=counts)


def test_attention_of_each_expert():
    model = make(experts=["D-3", "A-1", "A-2"])
    ids = torch.tensor([3, 5])
    first, second = (model.label_word_attention(ids, INPUT_IDS, branch=branch) for branch in ("A-1", "A-2"))
    assert not torch.allclose(first, second)
    assert torch.equal(model.label_word_attention(ids, INPUT_IDS), first)
    with pytest.raises(ValueError, match="A-1, A-2, got 'D-3'"):
        model.label_word_attention(ids, INPUT_IDS, branch="D-3")
