import json
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import ENCODER_CONFIGS, LAYERED_ENCODERS
from torch.utils.flop_counter import FlopCounterMode, addmm_flop, baddbmm_flop

from glocal_xml.cli import main as cli
from glocal_xml.data import build_label_tree, tree_level_sizes
from glocal_xml.estimate.encoder_trace import LiveBytes, trace_encoder
from glocal_xml.estimate.head_costs import head_cost
from glocal_xml.estimate.planned_model import optimizer_bytes, optimizer_of, plan_model
from glocal_xml.estimate.proposals import Plan, proposals
from glocal_xml.estimate.step_costs import step_costs
from glocal_xml.estimate.workload import Workload, number_of_steps
from glocal_xml.modeling import FAMILIES, APLCXLNetConfig, GlocalXMLConfig, LightAttentionConfig, MEXMLConfig
from glocal_xml.modeling.encoder import encode_texts
from glocal_xml.modeling.label_tree import SparseLabelTable
from glocal_xml.modeling.linear_head import LabelTable
from glocal_xml.training import parse_arguments
from glocal_xml.training.rowwise_adamw import RowwiseAdamW

NUM_LABELS = 96
CASES = {
    "glocal_xml": (GlocalXMLConfig, {}),
    "glocal_xml-mlp": (GlocalXMLConfig, {"attention_scoring": "mlp", "mlp_size": 8, "label_bias": False}),
    "glocal_xml-pooler": (GlocalXMLConfig, {"use_pooler": True, "label_size": 24, "key_size": 8}),
    "glocal_xml-tied": (GlocalXMLConfig, {"tied_outputs": True, "label_chunk_bytes": 4000}),
    "glocal_xml-global": (GlocalXMLConfig, {"branches": "global"}),
    "glocal_xml-local": (GlocalXMLConfig, {"branches": "local", "value_size": 20}),
    "glocal_xml-detached": (GlocalXMLConfig, {"branches": "local", "detach_local": True}),
    "glocal_xml-clusters": (GlocalXMLConfig, {"tree_levels": [8], "training_beam": 4}),
    "glocal_xml-tree": (
        GlocalXMLConfig,
        {"tree_levels": [4, 16], "training_beam": 4, "document_layers": 2, "use_pooler": True},
    ),
    "me_xml": (MEXMLConfig, {"experts": ["A-0", "A-2", "D-3+1"], "diversity_weight": 0}),
    "me_xml-evidence": (MEXMLConfig, {"attention_scoring": "evidence", "diversity_weight": 0}),
    "me_xml-collaborative": (MEXMLConfig, {"training_loss": "collaborative", "diversity_weight": 0}),
    "me_xml-clusters": (MEXMLConfig, {"tree_levels": [8], "training_beam": 4, "diversity_weight": 0}),
    "aplc_xlnet": (APLCXLNetConfig, {"cluster_proportions": [0.25, 0.25, 0.5]}),
    "light_attention": (LightAttentionConfig, {"mlp_sizes": [12, 8, 6]}),
    "light_attention-tree": (LightAttentionConfig, {"tree_levels": [4, 16], "training_beam": 4, "mlp_sizes": [12, 8]}),
    "light_attention-evidence-tree": (
        LightAttentionConfig,
        {"tree_levels": [4, 16], "training_beam": 4, "attention_scoring": "evidence"},
    ),
}
STATIC = {"tree_levels": [4, 16], "mlp_sizes": [12, 8], "negatives": "static", "level_epochs": 1}
TEXTS, TOKENS, POSITIVES = 4, 12, 3


@pytest.fixture(params=sorted(CASES))
def config(request):
    """A small configuration of each family and mode."""
    config_class, fields = CASES[request.param]
    encoder = ENCODER_CONFIGS["xlnet" if config_class is APLCXLNetConfig else "bert"]()
    return config_class(encoder=encoder, num_labels=NUM_LABELS, **fields)


@pytest.fixture
def args(tmp_path):
    return parse_arguments(["--output_dir", str(tmp_path), "--per_device_train_batch_size", str(TEXTS)])[2]


def built(config):
    """The model itself, told what it has to know."""
    model = FAMILIES[type(config)](config).train()
    if levels := getattr(config, "tree_levels", None):
        below = [*levels[1:], NUM_LABELS]
        starts = [torch.arange(size + 1) * (number // size) for size, number in zip(levels, below, strict=True)]
        model.set_label_tree(starts, torch.randperm(NUM_LABELS))
    model.set_label_counts(torch.arange(NUM_LABELS, 0, -1))
    return model


def batch():
    # Every text has a label in every cluster of APLC-XLNet, and a few nodes of a tree.
    labels = torch.tensor([[i, 30 + i, 60 + i] for i in range(TEXTS)])
    return {"input_ids": torch.randint(5, 60, (TEXTS, TOKENS)), "labels": labels}


def workload(**changes):
    fields = {"num_labels": NUM_LABELS, "num_texts": 1000, "lengths": np.full(10, TOKENS), "labels_per_text": 1e3}
    return Workload(**fields | changes)


def test_parameters_are_those_of_the_model(config):
    planned, model = plan_model(config), built(config)
    counts = planned.parameters()
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    assert counts["encoder"] == sum(p.numel() for p in model.encoder.parameters())
    tables = {name: m for name, m in model.named_modules() if isinstance(m, (LabelTable, SparseLabelTable))}
    # Biases of a sparse table are a table within it, and the roots of clusters are no labels.
    parameters = {p for name, table in tables.items() if not name.endswith("roots") for p in table.parameters()}
    assert counts["label tables"] == sum(p.numel() for p in parameters)
    assert planned.weight_bytes() == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))


@pytest.mark.parametrize("encoder", ["bert", "word_lstm"])
@pytest.mark.parametrize("fields", [{}, STATIC], ids=["flat", "static"])
def test_what_is_refused_still_has_its_parameters(encoder, fields, args):
    config = LightAttentionConfig(encoder=ENCODER_CONFIGS[encoder](), num_labels=NUM_LABELS, **fields)
    planned, model = plan_model(config), built(config)
    encoders = [model.encoder, *(getattr(model, "level_encoders", None) or ())]
    assert sum(planned.parameters().values()) == sum(p.numel() for p in model.parameters())
    assert planned.parameters()["encoder"] == sum(p.numel() for module in encoders for p in module.parameters())
    if encoder == "word_lstm" or fields:
        with pytest.raises(ValueError, match="word_lstm" if encoder == "word_lstm" else "static"):
            step_costs(planned, workload(), args, process=0)


def test_optimiser_state_is_that_of_a_step(config, args):
    model = built(config)
    optimizer_class, options = optimizer_of(args, model)
    optimizer = optimizer_class(model.parameters(), **options)
    model(**batch()).loss.backward()
    optimizer.step()
    state = [x for values in optimizer.state.values() for x in values.values()]
    memory = step_costs(plan_model(config), workload(), args, process=0).memory
    assert memory.optimizer == sum(x.nbytes for x in state)
    dense = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
    assert memory.gradients == sum(x.nbytes for x in dense)


def product_counter():
    """Counts also what torch's counter does not know: products in place, and with a single vector."""
    aten = torch.ops.aten
    known = {
        aten.addmm_: lambda total, left, right, **options: addmm_flop(None, left, right),
        aten.baddbmm_: lambda total, left, right, **options: baddbmm_flop(None, left, right),
        aten.mv: lambda matrix, vector, **options: 2 * matrix[0] * matrix[1],
        aten.addmv_: lambda total, matrix, vector, **options: 2 * matrix[0] * matrix[1],
    }
    return FlopCounterMode(display=False, custom_mapping=known)


def test_products_are_those_that_are_counted(config, args):
    costs = step_costs(plan_model(config), workload(), args, process=0)
    expected = costs.average.flops + sum(cost.flops for cost in costs.heads.values())
    with product_counter() as counter:
        built(config)(**batch()).loss.backward()
    # Text by text a product with one vector has no products for the gradient of its matrix.
    assert counter.get_total_flops() == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("chunk_bytes", [4000, None], ids=["one by one", "all texts"])
def test_padding_costs_nothing_where_texts_are_read_one_by_one(chunk_bytes, args):
    fields = {"branches": "local", "label_chunk_bytes": chunk_bytes}
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS, **fields)
    lengths = np.array([TOKENS // 3, TOKENS // 3, TOKENS // 3, TOKENS])
    mask = torch.arange(TOKENS) < torch.tensor(lengths).unsqueeze(1)
    # A batch of which one text is long.
    costs = step_costs(plan_model(config), workload(lengths=lengths), args, process=0)
    shape = replace(costs.shapes["local"], tokens=TOKENS)
    with product_counter() as counter:
        head = built(config).local_head
        head(torch.randn(TEXTS, TOKENS, 16, requires_grad=True), mask).loss(batch()["labels"]).backward()
    assert head_cost(head, shape).flops == counter.get_total_flops()


def test_an_unknown_head_is_refused():
    with pytest.raises(ValueError, match="EvidenceHead"):
        head_cost(torch.nn.Linear(1, 1), None)


@pytest.mark.parametrize(
    ("encoder", "checkpointing"),
    # XLNet has no gradient checkpointing.
    [(name, on) for name in LAYERED_ENCODERS for on in (False, True) if not (on and name == "xlnet")],
)
def test_memory_of_the_encoder_is_what_lives(encoder, checkpointing):
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS[encoder](), num_labels=NUM_LABELS, branches="global")
    planned = trace_encoder(plan_model(config, checkpointing), TEXTS, TOKENS)
    model = built(config)
    if checkpointing:
        model.gradient_checkpointing_enable()
    with LiveBytes(model) as memory, FlopCounterMode(display=False) as counter:
        encode_texts(model.encoder, model.layers, batch()["input_ids"]).document(3).sum().backward()
    assert planned.flops == counter.get_total_flops()
    assert planned.peak_bytes == pytest.approx(memory.peak, rel=0.3)


def test_layers_that_nothing_reads_cost_nothing(args):
    configs = [
        GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS, branches="local", local_layer=layer)
        for layer in (1, 2)
    ]
    one, two = (step_costs(plan_model(config), workload(), args, process=0) for config in configs)
    assert two.average.flops == 2 * one.average.flops
    assert two.memory.activations > 1.5 * one.memory.activations
    layer = sum(p.numel() for p in built(configs[0]).encoder.encoder.layer[0].parameters())
    assert two.dense_parameters == one.dense_parameters + layer


@settings(deadline=None, max_examples=25)
@given(
    num_labels=st.integers(3, 300),
    cluster_size=st.integers(2, 40),
    height=st.integers(1, 4),
    branching=st.sampled_from([2, 4, 8]),
)
def test_tree_levels_are_those_of_a_built_tree(num_labels, cluster_size, height, branching):
    options = {"cluster_size": cluster_size, "height": height, "branching": branching}
    features = np.random.default_rng(0).normal(size=(num_labels, 4))
    if num_labels <= cluster_size:
        for make in (lambda: tree_level_sizes(num_labels, **options), lambda: build_label_tree(features, **options)):
            with pytest.raises(ValueError, match="single cluster"):
                make()
        return
    built_tree = build_label_tree(features, workers=1, show_progress=False, **options)
    assert tree_level_sizes(num_labels, **options) == built_tree.level_sizes


def test_millions_of_labels_take_no_memory(args):
    encoder = ENCODER_CONFIGS["bert"]()
    before = psutil.Process().memory_info().rss
    config = GlocalXMLConfig(
        encoder=encoder, num_labels=5_000_000, tree_levels=[4096, 65536], label_size=512, use_pooler=True
    )
    memory = step_costs(plan_model(config), workload(num_labels=5_000_000), args, process=0).memory
    assert memory.weights > 20e9 and memory.optimizer > 40e9
    assert psutil.Process().memory_info().rss - before < 200e6


def test_accumulation_adds_the_gradients_of_tables(args):
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS)
    once = step_costs(plan_model(config), workload(), args, process=0).memory
    args.gradient_accumulation_steps = 2
    twice = step_costs(plan_model(config), workload(), args, process=0).memory
    # Embeddings of both branches, output rows, and two biases.
    assert twice.gradients - once.gradients == 4 * NUM_LABELS * (3 * 16 + 2)


def test_an_unknown_optimiser_is_refused(args):
    args.optim = "adafactor"
    with pytest.raises(ValueError, match="adamw_torch"):
        optimizer_of(args, torch.nn.Linear(1, 1))
    assert optimizer_bytes(torch.optim.SGD, [torch.nn.Parameter(torch.zeros(3))], False) == 0
    assert optimizer_bytes(RowwiseAdamW, [torch.nn.Parameter(torch.zeros(3, 2))], True) == 3 * (2 * 2 * 4 + 4)


def test_padded_lengths():
    lengths = np.array([10, 20, 30, 40])
    assert workload(lengths=lengths).padded_length(1, grouped=False) == pytest.approx(25, rel=0.1)
    long = workload(lengths=lengths).padded_length(16, grouped=False)
    assert long == pytest.approx(40, rel=0.05)
    assert workload(lengths=lengths, num_texts=10**6).padded_length(16, grouped=True) < 0.75 * long


def test_steps(args):
    args.num_train_epochs, args.gradient_accumulation_steps = 2, 3
    assert number_of_steps(workload(num_texts=101), args) == 2 * 9
    args.max_steps = 7
    assert number_of_steps(workload(), args) == 7


@pytest.mark.parametrize("share", [0.9, 0.6, 0.35])
def test_proposals_fit(share, args, encoder_folder):
    model_args = parse_arguments(["--encoder", encoder_folder])[0]
    args.per_device_train_batch_size = 16
    plan = Plan(model_args, args, workload(num_labels=20_000, lengths=np.full(1, 64)))
    limit = int(share * plan.peak(0))
    found = proposals(plan, 0, limit)
    assert found
    for proposal in found:
        assert plan.changed(proposal.flags).peak(0) == proposal.peak <= limit
        argv = [part.strip("'") for part in str(proposal).replace("'{", "\0{").replace("}'", "}\0").split("\0")]
        flags = [word for part in argv for word in ([part] if part.startswith("{") else part.split())]
        parse_arguments(["--encoder", encoder_folder, *flags])
    assert proposals(plan, 0, 1000) == []


def test_command(encoder_folder, text_file, tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    train = text_file("train.jsonl", 40)
    recipe.write_text(f"encoder: {encoder_folder}\ntrain_file: {train}\nvalidation_size: 8\nmax_length: 16\n")
    output = tmp_path / "estimate.json"
    arguments = ["--per_device_train_batch_size", "4", "--num_train_epochs", "2", "--output", str(output)]
    assert cli(["estimate", str(recipe), *arguments, "--output_dir", str(tmp_path / "run")]) == 0
    shown, figures = capsys.readouterr().out, json.loads(output.read_text())
    assert "8 labels, 32 texts" in shown and "It fits" in shown
    assert figures["steps"] == 16 and figures["tokens_of_a_text"] == 5
    assert figures["memory_bytes"]["peak"] == sum(v for k, v in figures["memory_bytes"].items() if k != "peak")
    assert figures["run_seconds"] > 16 * figures["step_seconds"]["all"]
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("tree", [[], ["--label_tree", '{"cluster_size": 20, "height": 2, "branching": 4}']])
def test_command_without_data(tree, encoder_folder, capsys):
    arguments = ["--encoder", encoder_folder, "--num_labels", "3000", "--max_length", "16", "--memory_gb", "0.01"]
    assert cli(["estimate", *arguments, "--per_device_train_batch_size", "4", *tree]) == 0
    shown = capsys.readouterr().out
    assert "3,000 labels" in shown and "It does not fit" in shown
    assert ("level 1" in shown) == bool(tree)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--encoder", "x"], "--num_labels"),
        (["--num_labels", "5"], "--encoder"),
        (["--encoder", "word_lstm", "--num_labels", "5"], "another encoder"),
        (["--encoder", "x", "--train_file", "t", "--num_labels", "5"], "either"),
    ],
)
def test_mistakes(arguments, message, capsys):
    assert cli(["estimate", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_help(capsys):
    assert cli(["estimate", "--help"]) == 0
    assert "--memory_gb" in capsys.readouterr().out
