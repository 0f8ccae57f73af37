import json

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_encoders import ENCODER_CONFIGS, LAYERED_ENCODERS
from torch.utils.flop_counter import FlopCounterMode

from glocal_xml.cli import main as cli
from glocal_xml.data import build_label_tree, tree_level_sizes
from glocal_xml.estimate import Workload, estimate_run, miniatures
from glocal_xml.estimate.estimate import Plan, proposals, step_memory
from glocal_xml.estimate.miniatures import counted_flops, planned_heads
from glocal_xml.estimate.planned_model import LiveBytes, optimizer_of, plan_model, planned_config, trace_encoder
from glocal_xml.modeling import FAMILIES, APLCXLNetConfig, GlocalXMLConfig, LightAttentionConfig, MEXMLConfig
from glocal_xml.modeling.encoder import encode_texts
from glocal_xml.modeling.label_tree import SparseLabelTable
from glocal_xml.modeling.linear_head import LabelTable
from glocal_xml.training import ModelArguments, parse_arguments

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


@pytest.fixture(autouse=True)
def short_runs(monkeypatch):
    """How long the optimiser takes is not what tests look at."""
    monkeypatch.setattr(miniatures, "_OPTIMIZED_NUMBERS", 10_000)


def test_figures_are_those_of_a_training_step(config, args):
    """Parameters, weights, optimiser state, gradients and products, against a step of the model itself."""
    estimate, model = estimate_run(config, workload(), args, process=0), built(config)
    counts, memory = estimate.parameters, estimate.memory_bytes
    assert sum(counts.values()) == sum(p.numel() for p in model.parameters())
    assert counts["encoder"] == sum(p.numel() for p in model.encoder.parameters())
    tables = {name: m for name, m in model.named_modules() if isinstance(m, (LabelTable, SparseLabelTable))}
    # Biases of a sparse table are a table within it, and the roots of clusters are no labels.
    parameters = {p for name, table in tables.items() if not name.endswith("roots") for p in table.parameters()}
    assert counts["label tables"] == sum(p.numel() for p in parameters)
    assert memory["weights"] == sum(t.nbytes for t in (*model.parameters(), *model.buffers()))

    optimizer_class, options = optimizer_of(args, model)
    optimizer = optimizer_class(model.parameters(), **options)
    flops = counted_flops(lambda: model(**batch()).loss.backward())
    optimizer.step()
    state = [x for values in optimizer.state.values() for x in values.values()]
    assert memory["optimizer"] == sum(x.nbytes for x in state)
    dense = [p.grad for p in model.parameters() if p.grad is not None and not p.grad.is_sparse]
    assert memory["gradients"] == sum(x.nbytes for x in dense)
    # Text by text a product with one vector has no products for the gradient of its matrix.
    assert flops == pytest.approx(sum(estimate.step_flops.values()), rel=0.05)


def test_products_of_many_labels_from_few(config):
    for head in planned_heads(plan_model(config)):
        exact, _ = head.costs(workload(), TEXTS, TOKENS)
        # Of the clusters of so few labels hardly any is of the right size.
        assert head.costs(workload(), TEXTS, TOKENS, most=32)[0] == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize("chunk_bytes", [4000, None], ids=["one by one", "all texts"])
def test_padding_costs_nothing_where_texts_are_read_one_by_one(chunk_bytes):
    fields = {"branches": "local", "label_chunk_bytes": chunk_bytes}
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS, **fields)
    # A batch of which one text is long.
    lengths = np.array([TOKENS // 3, TOKENS // 3, TOKENS // 3, TOKENS])
    mask, head = torch.arange(TOKENS) < torch.tensor(lengths).unsqueeze(1), built(config).local_head
    states = torch.randn(TEXTS, TOKENS, 16, requires_grad=True)
    counted = counted_flops(lambda: head(states, mask).loss(batch()["labels"]).backward())
    (planned,) = planned_heads(plan_model(config))
    assert planned.costs(workload(lengths=lengths), TEXTS, TOKENS)[0] == counted


@pytest.mark.parametrize(
    ("encoder", "fields", "message"), [("word_lstm", {}, "word_lstm"), ("bert", STATIC, "static")]
)
def test_models_that_are_refused(encoder, fields, message):
    with pytest.raises(ValueError, match=message):
        plan_model(LightAttentionConfig(encoder=ENCODER_CONFIGS[encoder](), num_labels=NUM_LABELS, **fields))


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
    one, two = (estimate_run(config, workload(), args, process=0) for config in configs)
    assert two.step_flops["encoder"] == 2 * one.step_flops["encoder"]
    assert two.memory_bytes["activations"] > 1.5 * one.memory_bytes["activations"]
    layer = sum(p.nbytes for p in built(configs[0]).encoder.encoder.layer[0].parameters())
    assert two.memory_bytes["gradients"] == one.memory_bytes["gradients"] + layer


@pytest.mark.parametrize("chunk_bytes", [4000, None])
def test_memory_of_heads_is_what_lives(chunk_bytes):
    sizes = {"num_labels": NUM_LABELS, "label_chunk_bytes": chunk_bytes}
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), **sizes)
    local, mask = built(config).local_head, torch.ones(64, 32, dtype=torch.bool)
    states = torch.randn(64, 32, 16, requires_grad=True)
    with LiveBytes(local) as memory:
        local(states, mask).loss(torch.zeros(64, 1, dtype=torch.long)).backward()
    live = memory.peak - sum(p.nbytes for p in local.parameters())
    planned = {head.name: head for head in planned_heads(plan_model(config))}["local"]
    assert planned.bytes(workload(lengths=np.full(1, 32), labels_per_text=1), 64) == pytest.approx(live, rel=0.3)


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
    memory = step_memory(plan_model(config), workload(num_labels=5_000_000), args, process=0)
    assert memory["weights"] > 20e9 and memory["optimizer"] > 40e9
    assert psutil.Process().memory_info().rss - before < 200e6


def test_accumulation_adds_the_gradients_of_tables(args):
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS)
    once = step_memory(plan_model(config), workload(), args, process=0)
    args.gradient_accumulation_steps = 2
    twice = step_memory(plan_model(config), workload(), args, process=0)
    # Embeddings of both branches, output rows, and two biases.
    assert twice["gradients"] - once["gradients"] == 4 * NUM_LABELS * (3 * 16 + 2)


def test_an_unknown_optimiser_is_refused(args):
    args.optim = "adafactor"
    with pytest.raises(ValueError, match="adamw_torch"):
        optimizer_of(args, torch.nn.Linear(1, 1))
    args.optim = "sgd"
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS)
    assert step_memory(plan_model(config), workload(), args, process=0)["optimizer"] == 0


def test_padded_lengths():
    lengths = np.array([10, 20, 30, 40])
    assert workload(lengths=lengths).padded_length(1, grouped=False) == pytest.approx(25, rel=0.1)
    long = workload(lengths=lengths).padded_length(16, grouped=False)
    assert long == pytest.approx(40, rel=0.05)
    assert workload(lengths=lengths, num_texts=10**6).padded_length(16, grouped=True) < 0.75 * long


def test_steps(args):
    args.num_train_epochs, args.gradient_accumulation_steps = 2, 3
    assert workload(num_texts=101).number_of_steps(args) == 2 * 9
    args.max_steps = 7
    assert workload().number_of_steps(args) == 7


@pytest.mark.parametrize("share", [0.6, 0.35], ids=["one change", "several"])
def test_proposals_fit(share, args, encoder_folder):
    model_args = parse_arguments(["--encoder", encoder_folder, "--model_config", '{"branches": "both"}'])[0]
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
    ("options", "branches"),
    [({}, "global"), ({"experts": ["memory"]}, "both"), ({"model_config": {"branches": "both"}}, "both")],
)
def test_plans_have_the_branches_and_the_dropout_of_runs(options, branches, encoder_folder):
    """With many labels a run leaves out the local branch where the lexical expert reads words."""
    config = planned_config(ModelArguments(encoder=encoder_folder, **options), 20_000)
    assert config.branches == branches and config.encoder.hidden_dropout_prob == 0
    assert planned_config(ModelArguments(encoder=encoder_folder, **options), 500).branches == "both"


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
