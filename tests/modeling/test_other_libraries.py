"""Weights that other libraries wrap, keep elsewhere or split give the scores of plain ones, or are refused."""

import os
import sys
from pathlib import Path

import pytest
import torch
import warm_process
from accelerate import cpu_offload, disk_offload
from test_families import CASES, NUM_LABELS, make_batch, tell_about_labels
from tiny_encoders import ENCODER_CONFIGS
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from transformers import AutoModel, pipeline
from transformers.distributed import DistributedConfig

from glocal_xml.modeling import FAMILIES

sys.path.append(str(Path(__file__).parents[1] / "experts"))
from expert_models import make_model as make_blended

# Each kind of head, and each way to find labels.
MODELS = [
    "glocal_xml",
    "glocal_xml-paper",
    "me_xml-three-experts",
    "aplc_xlnet-tails",
    "light_attention",
    "glocal_xml-tree",
    "light_attention-static",
]


def make_model(case):
    config_class, fields = CASES[case]
    torch.manual_seed(0)
    config = config_class(encoder=ENCODER_CONFIGS["bert"]().to_dict(), num_labels=NUM_LABELS, **fields)
    model = FAMILIES[config_class](config)
    tell_about_labels(model)
    model.start_epoch(99)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not name.startswith("encoder."):
                parameter.normal_(std=0.5)
    model.set_label_names([f"label {i}" for i in range(NUM_LABELS)])
    return model.eval()


def inputs_of(model):
    batch = make_batch(model)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


def behaviour(model, inputs):
    """What a model gives in all the ways to ask it."""
    best = model.predict_top_k(**inputs, top_k=4)
    every = torch.arange(NUM_LABELS)
    seen = {
        "logits": model(**inputs).logits.detach(),
        "ids": best.top_k_ids,
        "scores": best.top_k_scores,
        "chosen": model.score_labels(every, **inputs)["final"],
        "per text": model.score_labels(every.repeat(len(inputs["input_ids"]), 1), **inputs)["final"],
    }
    if any(hasattr(head, "key") for head in model.branch_heads().values()):
        seen["attention"] = model.label_word_attention([1, 2], **inputs)
    return seen


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.compatibility(
    "Loading and saving",
    "Accelerate's offloading to disk or main memory, `device_map` with `disk`",
    "works for prediction: the same scores; a loss is refused",
    since="0.1",
)
@pytest.mark.parametrize("case", MODELS)
def test_offloaded_weights_give_the_same_scores(case, tmp_path):
    model = make_model(case)
    inputs, device = inputs_of(model), torch.device("cpu")
    expected = behaviour(model, inputs)
    model.save_pretrained(tmp_path / "model")
    disk_offload(model, tmp_path / "weights", execution_device=device)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert_same(behaviour(model, inputs), expected)
    assert_same(behaviour(cpu_offload(make_model(case), device), inputs), expected)
    loaded = AutoModel.from_pretrained(tmp_path / "model", device_map={"": "disk"}, offload_folder=tmp_path / "more")
    assert all(parameter.is_meta for parameter in loaded.parameters())
    assert_same(behaviour(loaded, inputs), expected)


@pytest.mark.parametrize("case", ["glocal_xml", "glocal_xml-tree", "text_experts"])
def test_offloaded_models_with_experts(case):
    model = make_blended(case)
    inputs = inputs_of(make_model("glocal_xml"))
    expected = behaviour(model, inputs)
    assert_same(behaviour(cpu_offload(model, torch.device("cpu")), inputs), expected)


@pytest.mark.compatibility(
    "Loading and saving", "`offload_buffers`", "works for APLC-XLNet; refused for label trees and experts", since="0.1"
)
def test_offloaded_buffers_are_brought_or_refused():
    device, clusters = torch.device("cpu"), make_model("aplc_xlnet-tails")
    inputs = inputs_of(clusters)
    expected = behaviour(clusters, inputs)
    assert_same(behaviour(cpu_offload(clusters, device, offload_buffers=True), inputs), expected)
    for model, name in ((make_model("glocal_xml-tree"), "CandidateTree"), (make_blended("glocal_xml"), "Expert")):
        cpu_offload(model, device, offload_buffers=True)
        with pytest.raises(ValueError, match=f"buffers of .*{name}.* without `offload_buffers`"):
            model.predict_top_k(**inputs)


def test_no_loss_of_offloaded_layers():
    model = cpu_offload(make_model("glocal_xml-paper"), torch.device("cpu"))
    with pytest.raises(ValueError, match="offloaded, with which there is no loss"):
        model(**make_batch(model))


def losses(model, optimizer, batch):
    """Those of three steps, with a prediction between them."""
    seen = []
    for _ in range(3):
        model.train()
        optimizer.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
        model.predict_top_k(batch["input_ids"], batch["attention_mask"])
    return torch.tensor(seen)


def sharded_models(rank, folder):
    torch.set_num_threads(1)
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    mesh, seen = init_device_mesh("cpu", (2,)), {}
    for case in MODELS:
        model = make_model(case)
        batch, inputs = make_batch(model), inputs_of(model)
        for layer in model.encoder.encoder.layer:
            fully_shard(layer, mesh=mesh)
        optimizer = torch.optim.SGD(fully_shard(model, mesh=mesh).parameters(), lr=0.1)
        # Before any other call: a prediction has to bring the weights itself.
        seen[case] = behaviour(model, inputs)
        seen[case]["losses"] = losses(model, optimizer, batch)
        loaded = AutoModel.from_pretrained(f"{folder}/{case}", distributed_config=DistributedConfig(fsdp_size=2))
        assert isinstance(loaded, FSDPModule)
        seen[f"{case}-loaded"] = behaviour(loaded.eval(), inputs)
    model = fully_shard(make_model("glocal_xml"), mesh=mesh)
    tokenizer = f"{folder}/tokenizer"
    seen["pipeline"] = pipeline("extreme-multi-label-classification", model=model, tokenizer=tokenizer)("apple moon")
    for case in ("glocal_xml", "light_attention", "glocal_xml-tree"):
        model = make_model(case)
        fully_shard(next(iter(model.branch_heads().values())), mesh=mesh)
        with pytest.raises(ValueError, match="sharding of their own; shard layers of the encoder"):
            model.predict_top_k(**inputs_of(model))
    torch.save(seen, f"{folder}/seen-{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.fixture(scope="module")
def two_processes(tokenizer, tmp_path_factory):
    """What both processes saw of all models; one start for all tests, since a start takes seconds."""
    folder = tmp_path_factory.mktemp("sharded")
    tokenizer.save_pretrained(folder / "tokenizer")
    for case in MODELS:
        make_model(case).save_pretrained(folder / case)
    warm_process.run_function(sharded_models, (str(folder),), number=2)
    return [torch.load(folder / f"seen-{rank}.pt") for rank in range(2)]


@pytest.mark.compatibility(
    "Several processes",
    "FSDP2: `fully_shard`, `DistributedConfig(fsdp_size=2)`",
    "works: the losses and scores of the whole model; a head that is sharded on its own is refused",
    since="0.1",
)
@pytest.mark.parametrize("case", MODELS)
def test_sharded_models_equal_whole_ones(case, two_processes):
    """FSDP2, over layers of the encoder and the whole model, by hand and by `fsdp_size`."""
    model = make_model(case)
    expected = behaviour(model, inputs_of(model))
    trained = {"losses": losses(model, torch.optim.SGD(model.parameters(), lr=0.1), make_batch(model))}
    for seen in two_processes:
        assert_same(seen[case], expected | trained)
        assert_same(seen[f"{case}-loaded"], expected)


def test_sharded_models_in_the_pipeline(two_processes, tokenizer):
    pipe = pipeline("extreme-multi-label-classification", model=make_model("glocal_xml"), tokenizer=tokenizer)
    expected = pipe("apple moon")
    for seen in two_processes:
        assert [row["label"] for row in seen["pipeline"]] == [row["label"] for row in expected]
        assert [row["score"] for row in seen["pipeline"]] == pytest.approx([row["score"] for row in expected])
