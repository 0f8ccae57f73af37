"""Options of Trainer and other ways to feed it."""

import logging

import pytest
import torch
from datasets import IterableDataset
from test_families import make_batch
from test_other_libraries import MODELS, make_model

from glocal_xml import GlocalXMLForMultiLabel, load_xmtc_dataset
from glocal_xml.data import tokenize
from glocal_xml.training import XMTCTrainer, XMTCTrainingArguments
from glocal_xml.training.arguments import check_sharding


@pytest.mark.compatibility(
    "Training",
    "`fp16`, `bf16` of Trainer",
    "on accelerators that have them; on a CPU, which they make slower, switched off with a warning",
    since="0.1",
)
@pytest.mark.parametrize("flag", ["fp16", "bf16"])
def test_half_precision_is_off_on_a_cpu(flag, caplog, tmp_path):
    with caplog.at_level(logging.WARNING):
        args = XMTCTrainingArguments(str(tmp_path), use_cpu=True, **{flag: True})
    assert not getattr(args, flag) and f"{flag} asked for" in caplog.text and "single precision" in caplog.text


@pytest.mark.compatibility(
    "Training",
    "`torch.autocast`, float16 and bfloat16",
    "works in every family: finite losses and gradients, close to single precision",
    since="0.1",
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", MODELS)
def test_autocast(case, dtype):
    plain, model = make_model(case).train(), make_model(case).train()
    batch = make_batch(model)
    with torch.autocast("cpu", dtype=dtype):
        loss = model(**batch).loss
    loss.backward()
    expected = plain(**batch).loss
    torch.testing.assert_close(loss.float(), expected, rtol=0.1, atol=0.05)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert gradients and all(gradient.to_dense().isfinite().all() for gradient in gradients)


@pytest.mark.compatibility(
    "Training",
    "a streaming dataset (`IterableDataset`) in `XMTCTrainer`",
    "works with `max_steps`, as in Trainer; metrics on a stream too",
    since="0.1",
)
def test_a_stream_in_the_trainer(encoder_folder, text_file, tokenizer, tmp_path):
    parts, label_space = load_xmtc_dataset({"train": text_file("train.jsonl", 24)}, streaming=True)
    assert isinstance(parts["train"], IterableDataset)
    stream = tokenize(parts["train"], tokenizer, 16)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names)
    args = XMTCTrainingArguments(
        str(tmp_path), use_cpu=True, disable_tqdm=True, max_steps=5, per_device_train_batch_size=8, metrics_at=[1]
    )
    before = model.global_head.label_embeddings.weight.detach().clone()
    trainer = XMTCTrainer(
        args=args,
        label_space=label_space,
        model=model,
        processing_class=tokenizer,
        train_dataset=stream,
        eval_dataset=stream,
    )
    trainer.train()
    assert trainer.state.global_step == 5 and not torch.equal(before, model.global_head.label_embeddings.weight)
    metrics = trainer.evaluate()
    # The texts of a list give the same.
    parts, _ = load_xmtc_dataset({"train": text_file("train.jsonl", 24)})
    listed = trainer.evaluate(tokenize(parts["train"], tokenizer, 16))
    assert metrics["eval_precision@1"] == pytest.approx(listed["eval_precision@1"])
    assert metrics["eval_loss"] == pytest.approx(listed["eval_loss"], rel=1e-5)


@pytest.mark.compatibility(
    "Training", "`--fsdp`, `--deepspeed` of Trainer on a CPU", "refused: both are for accelerators", since="0.1"
)
@pytest.mark.parametrize("option", [{"fsdp": "full_shard"}, {"deepspeed": {"zero_optimization": {"stage": 2}}}])
def test_sharding_on_a_cpu_is_refused(option, tmp_path):
    with pytest.raises(ValueError, match=f"`{next(iter(option))}` is for accelerators.*leave it out"):
        XMTCTrainingArguments(str(tmp_path), use_cpu=True, **option)


@pytest.mark.compatibility(
    "Several processes",
    "FSDP or DeepSpeed configurations of `accelerate launch` on CPUs",
    "Accelerate trains data-parallel instead: a warning says so",
    since="0.1",
)
@pytest.mark.parametrize("name", ["FSDP", "DeepSpeed"])
def test_a_configuration_that_shards_nothing_is_told(name, caplog, monkeypatch):
    # As the launcher leaves it.
    monkeypatch.setenv(f"ACCELERATE_USE_{name.upper()}", "true")
    check_sharding({"FSDP": None, "DeepSpeed": None})
    assert f"asks for {name}, which Accelerate has for accelerators alone" in caplog.text
