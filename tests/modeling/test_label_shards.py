"""Label tables split over two processes give what whole ones give: outputs, gradients, training, files."""

import os

import pytest
import torch
import warm_process
from tiny_encoders import ENCODER_CONFIGS
from transformers import AutoModel, BertConfig
from transformers.distributed import DistributedConfig

from glocal_xml.modeling import (
    APLCXLNet,
    APLCXLNetConfig,
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    MEXMLConfig,
)
from glocal_xml.modeling.label_scores import TopLabels
from glocal_xml.runs.split_labels import load_split_state, save_split_state
from glocal_xml.training.optimizer import clip_gradients

# Twelve for the first process and eleven for the second.
NUM_LABELS = 23
# Small chunks, so that each process goes over several.
SMALL = {"num_labels": NUM_LABELS, "mlp_size": 8, "label_bias": True, "label_chunk_bytes": 700}
CASES = {
    "glocal_xml": GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), use_pooler=True, **SMALL),
    "glocal_xml-mlp": GlocalXMLConfig(
        encoder=ENCODER_CONFIGS["bert"](), attention_scoring="mlp", temperature=0.5, **SMALL
    ),
    "glocal_xml-tied": GlocalXMLConfig(
        encoder=ENCODER_CONFIGS["bert"](), branches="local", key_size=8, value_size=8, tied_outputs=True, **SMALL
    ),
    # The eleven labels of the second process in one chunk, the twelve of the first in two, were it up to each.
    "glocal_xml-unequal-chunks": GlocalXMLConfig(
        encoder=ENCODER_CONFIGS["bert"](), branches="global", **(SMALL | {"label_chunk_bytes": 2112})
    ),
    "glocal_xml-shortlist": GlocalXMLConfig(
        encoder=ENCODER_CONFIGS["bert"](), shortlist=15, **(SMALL | {"label_bias": False})
    ),
    # With dropout: whatever the processes share must see the same.
    "me_xml": MEXMLConfig(
        encoder=BertConfig(**ENCODER_CONFIGS["bert"]().to_dict() | {"hidden_dropout_prob": 0.1}),
        experts=["A-1", "A-2", "D-3+1"],
        diversity_weight=0.3,
        diversity_start_epoch=0,
        **SMALL,
    ),
    "me_xml-collaborative": MEXMLConfig(
        encoder=ENCODER_CONFIGS["bert"](), training_loss="collaborative", diversity_weight=0, **SMALL
    ),
    "light_attention": LightAttentionConfig(
        encoder=ENCODER_CONFIGS["word_lstm"](), mlp_sizes=[8, 6], **{k: v for k, v in SMALL.items() if k != "mlp_size"}
    ),
}


def texts():
    random = torch.Generator().manual_seed(3)
    input_ids = torch.randint(5, 60, (4, 9), generator=random)
    attention_mask = torch.ones_like(input_ids)
    attention_mask[1, 6:] = attention_mask[2, :4] = 0
    # Of the first process alone, of the second alone, of both, and none.
    labels = torch.tensor([[0, 5, 11], [22, 12, -100], [11, 12, 3], [-100, -100, -100]])
    return {"input_ids": input_ids, "attention_mask": attention_mask}, labels


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def gradients(loss, model, name):
    model.zero_grad()
    loss.backward()
    kept = {key: parameter.grad for key, parameter in model.named_parameters() if parameter.grad is not None}
    return {f"{name} gradient {key}": whole(gradient).clone() for key, gradient in kept.items()}


def behaviour(model):
    """All that a model does, as tensors; the same function for whole and for split models."""
    inputs, labels = texts()
    seen = {}
    torch.manual_seed(0)
    model.train()
    output = model(**inputs, labels=labels)
    seen |= {"loss": output.loss, **{f"{name} loss": term for name, term in output.loss_terms.items()}}
    seen |= gradients(output.loss, model, "loss")
    # With all logits, which have gradients of their own.
    output = model(**inputs, labels=labels, output_logits=True)
    seen |= {"loss with logits": output.loss, "logits": output.logits}
    seen |= gradients(output.loss + output.logits.tanh().sum(), model, "logits")
    # A run across the border between the two processes, one of the second alone, and chosen labels.
    chosen = torch.tensor([[0, 22, 11, 12], [12, 12, 3, 4], [15, 2, 2, 20], [1, 2, 3, 4]])
    for name, ask in {
        "run": lambda scores: scores.run(9, 17),
        "second run": lambda scores: scores.run(14, 20),
        "all": lambda scores: scores.all(),
        "chosen alike": lambda scores: scores.chosen(chosen[0]),
        "chosen": lambda scores: scores.chosen(chosen),
    }.items():
        branches = model(**inputs, output_scores=True).scores.branches
        logits = {branch: ask(scores) for branch, scores in branches.items()}
        seen |= {f"{name} {branch}": values for branch, values in logits.items()}
        seen |= gradients(sum(values.tanh().sum() for values in logits.values()), model, name)
    for top_k in (1, 5, 14):
        best = model.predict_top_k(**inputs, top_k=top_k)
        seen |= {f"top {top_k}": best.top_k_ids, f"top {top_k} scores": best.top_k_scores}
        if best.branch_top_k_ids is not None:
            seen[f"top {top_k} of branches"] = best.branch_top_k_ids
    seen |= {f"score {name}": scores for name, scores in model.score_labels(chosen, **inputs).items()}
    if model.branch_names != ["global"]:
        seen["attention"] = model.label_word_attention(chosen, **inputs)
    if model.branch_names != ["global"] and model.config.attention_scoring == "evidence":
        seen["contributions"] = model.word_contributions(chosen, **inputs)
    if model.config.label_bias:
        model.start_label_bias(torch.linspace(-4, 1, NUM_LABELS, dtype=torch.float64))
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(3):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        seen[f"norm {step}"] = clip_gradients(model.parameters(), 0.05)
        optimizer.step()
    seen |= {f"trained {key}": whole(value) for key, value in model.state_dict().items()}
    return {name: value.detach().clone() for name, value in seen.items()}


def thawed_behaviour(model):
    """A model that first predicts with all its parameters frozen, and learns later."""
    inputs, labels = texts()
    model.requires_grad_(False)
    seen = {"frozen top": model.predict_top_k(**inputs).top_k_ids}
    # The tables alone, and then everything.
    for head in model.branch_heads().values():
        head.label_embeddings.requires_grad_(True)
    seen |= gradients(model(**inputs, labels=labels).loss, model, "tables")
    model.requires_grad_(True)
    return seen | gradients(model(**inputs, labels=labels).loss, model, "thawed")


def check_state(model, folder):
    """Training resumes from a state as it was written, with the running means of Adam of both processes."""
    inputs, labels = texts()
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)

    def step():
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
        schedule.step()
        return {key: whole(value).clone() for key, value in model.state_dict().items()}

    model.train()
    step()
    save_split_state(folder, model, optimizer)
    state = schedule.state_dict()
    expected = step()
    step()
    load_split_state(folder, model, optimizer)
    schedule.load_state_dict(state)
    torch.testing.assert_close(step(), expected, rtol=0, atol=0)


def prepare_process(rank, folder):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)


def split_models(rank, folder):
    prepare_process(rank, folder)
    split = DistributedConfig(tp_size=2, tp_plan="auto")
    seen = {}
    for name in CASES:
        model = AutoModel.from_pretrained(f"{folder}/{name}", distributed_config=split)
        assert model.label_shard.size == (12, 11)[rank] and model.label_shard.first == (0, 12)[rank]
        if model.config.label_chunk_bytes == SMALL["label_chunk_bytes"]:
            branches = model(**texts()[0], output_scores=True).scores.branches
            assert all(scores.own.run_size < 11 for scores in branches.values()), "several chunks on each process"
        seen[name] = behaviour(model)
        model.save_pretrained(f"{folder}/{name}-trained")
        # Split anew, from what was saved gathered.
        model = AutoModel.from_pretrained(f"{folder}/{name}-trained", distributed_config=split)
        seen[f"{name}-trained"] = {key: whole(value).clone() for key, value in model.state_dict().items()}
    check_state(model, f"{folder}/state")
    model = AutoModel.from_pretrained(f"{folder}/glocal_xml-mlp", distributed_config=split)
    seen["thawed"] = thawed_behaviour(model)
    # Few different scores: mostly ties, within processes and between them.
    shard, random = model.label_shard, torch.Generator().manual_seed(0)
    for top_k in (1, 4, 12, 23):
        scores = torch.randint(-2, 3, (50, NUM_LABELS), generator=random).float()
        scores[scores == -2] = -torch.inf
        own, expected = TopLabels(top_k), TopLabels(top_k)
        own.update(scores[:, shard.first : shard.first + shard.size], shard.first)
        expected.update(scores, 0)
        for found, other in zip(shard.merged(own).result(), expected.result(), strict=True):
            assert torch.equal(found, other)
    for family, message in {"aplc": "APLCXLNet cannot be split", "tiny": "nothing for the last of 2"}.items():
        with pytest.raises(ValueError, match=message):
            AutoModel.from_pretrained(f"{folder}/{family}", distributed_config=split)
    torch.save(seen, f"{folder}/seen-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """What both processes saw of all models; one start for all tests, since a start takes seconds."""
    folder = tmp_path_factory.mktemp("shards")
    torch.manual_seed(0)
    aplc = APLCXLNetConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS)
    tiny = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), **(SMALL | {"num_labels": 1}))
    for name, config in {**CASES, "aplc": aplc, "tiny": tiny}.items():
        model = AutoModel.from_config(config).double()
        # Not only zeros, so that a bias in the wrong place shows.
        for key, parameter in model.named_parameters():
            if "bias" in key:
                torch.nn.init.normal_(parameter, std=0.3)
        if name.startswith("me_xml"):
            model.set_label_counts(torch.arange(1, NUM_LABELS + 1))
        model.save_pretrained(folder / name)
    warm_process.run_function(split_models, (str(folder),), number=2)
    return folder, [torch.load(folder / f"seen-{rank}.pt") for rank in range(2)]


@pytest.mark.compatibility(
    "Several processes",
    "labels split over processes (`DistributedConfig(tp_size=2)`)",
    "works: losses and rankings of the whole model",
    since="0.1",
)
@pytest.mark.parametrize("name", CASES)
def test_split_models_equal_whole_ones(name, two_processes):
    folder, seen = two_processes
    expected = behaviour(AutoModel.from_pretrained(folder / name))
    for process in seen:
        torch.testing.assert_close(process[name], expected, rtol=1e-8, atol=1e-10)
    # What the processes share must not drift apart, not by a bit.
    shared = [key for key in expected if "label_embeddings" not in key and "label_outputs" not in key]
    assert all(torch.equal(seen[0][name][key], seen[1][name][key]) for key in shared)


def test_split_models_may_be_frozen_for_a_while(two_processes):
    folder, seen = two_processes
    expected = thawed_behaviour(AutoModel.from_pretrained(folder / "glocal_xml-mlp"))
    for process in seen:
        torch.testing.assert_close(process["thawed"], expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_a_split_model_is_saved_whole(name, two_processes):
    folder, seen = two_processes
    saved = AutoModel.from_pretrained(folder / f"{name}-trained").state_dict()
    for process in seen:
        for key, value in saved.items():
            assert torch.equal(process[name][f"trained {key}"], value)
            assert torch.equal(process[f"{name}-trained"][key], value)


@pytest.mark.parametrize("split", [None, DistributedConfig(tp_size=1)], ids=["no split", "one part"])
def test_without_processes_nothing_is_passed_on(split):
    """A whole model has neither a part of the labels nor anything between its heads and their scores."""
    model = GlocalXMLForMultiLabel(CASES["glocal_xml"])
    assert GlocalXMLForMultiLabel.maybe_distribute_model(model, split, None) is model
    assert not hasattr(model, "label_shard") and "start_label_bias" not in vars(model)
    for head in model.branch_heads().values():
        assert not head._forward_hooks and not head._forward_pre_hooks


def test_families_that_cannot_be_split_say_so():
    split = DistributedConfig(tp_size=2, tp_plan="auto")
    config = APLCXLNetConfig(encoder=ENCODER_CONFIGS["bert"](), num_labels=NUM_LABELS)
    with pytest.raises(ValueError, match=r"APLCXLNet cannot be split .* Load the model without `distributed_config`"):
        APLCXLNet.maybe_distribute_model(APLCXLNet(config), split, None)
    # One sparse table is enough.
    model = GlocalXMLForMultiLabel(CASES["glocal_xml"])
    model.local_head.label_embeddings = torch.nn.Embedding(NUM_LABELS, 16, sparse=True)
    with pytest.raises(ValueError, match="GlocalXMLForMultiLabel cannot be split .* sparse gradients"):
        model.maybe_distribute_model(model, split, None)
    config = GlocalXMLConfig(encoder=ENCODER_CONFIGS["bert"](), tree_levels=[4], **SMALL)
    with pytest.raises(ValueError, match="GlocalXMLWithLabelTree cannot be split .* sparse gradients"):
        GlocalXMLForMultiLabel.maybe_distribute_model(GlocalXMLForMultiLabel(config), split, None)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("trained", ["", "-trained"], ids=["whole", "split"])
def test_the_code_of_splitting_does_not_travel_with_the_weights(name, trained, two_processes):
    """Whoever loads a checkpoint without the package loads it whole."""
    files = {path.name for path in (two_processes[0] / f"{name}{trained}").iterdir()}
    assert "label_scores.py" in files and "label_shards.py" not in files
