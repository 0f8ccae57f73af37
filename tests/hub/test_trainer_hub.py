"""The ways of Transformers to the Hub: of a trainer that is used on its own, of a run, and of a model."""

import json

import pytest
from huggingface_hub import ModelCard
from transformers import AutoModel

from glocal_xml import GlocalXMLForMultiLabel, load_xmtc_dataset
from glocal_xml.cli.train import main
from glocal_xml.data import tokenize
from glocal_xml.training import XMTCTrainer, XMTCTrainingArguments
from glocal_xml.training.callbacks import loss_curve

pytest_plugins = ["local_hub"]


def files_of(hub, repo_id):
    return {name: file.content for name, file in hub.repos[f"models/{repo_id}"].files().items()}


@pytest.fixture
def trainer(hub, encoder_folder, tokenizer, text_file, tmp_path):
    """A trainer with texts of its own, as in a notebook."""
    files = {"train": text_file("train.jsonl", 20), "validation": text_file("valid.jsonl", 8, first=20)}
    parts, label_space = load_xmtc_dataset(files)
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=label_space.names, mlp_size=8)
    args = XMTCTrainingArguments(
        output_dir=str(tmp_path / "own"),
        use_cpu=True,
        num_train_epochs=2,
        per_device_train_batch_size=8,
        metrics_at=[1, 2],
        logging_steps=1,
        hub_model_id="me/own",
        hub_token="hf_writer0",
    )
    return XMTCTrainer(
        args=args,
        label_space=label_space,
        model=model,
        processing_class=tokenizer,
        train_dataset=tokenize(parts["train"], tokenizer, 16),
        eval_dataset=tokenize(parts["validation"], tokenizer, 16),
    )


def test_a_trainer_on_its_own_writes_our_card(hub, trainer):
    with pytest.raises(ValueError, match="before `train\\(\\)` has ended"):
        trainer.create_model_card()
    trainer.train()
    facts = trainer.training_facts.facts
    assert (facts["steps"], facts["epochs"]) == (6, 2.0) and len(facts["loss_curve"]) == 6
    # Seconds are told with one digit, and texts of a second with two, which is little where a machine is slow.
    rounding = 0.05 + 0.005 * facts["seconds"] / facts["texts_per_second"]
    assert 40 / facts["texts_per_second"] == pytest.approx(facts["seconds"], abs=1.1 * rounding)
    assert "best" not in facts
    metrics = trainer.evaluate()
    trainer.push_to_hub(license="mit", tags="notebook")
    files = files_of(hub, "me/own")
    assert {"model.safetensors", "labels.txt", "tokenizer.json", "pipeline_xmtc.py", "label_counts.json"} <= set(files)
    assert not [name for name in files if name.endswith(".bin") or "/" in name]
    card = ModelCard(files["README.md"].decode())
    assert card.data.license == "mit" and {"notebook", "extreme-multi-label"} <= set(card.data.tags)
    assert "- 6 steps, 2 epochs in" in card.text and 'name = "me/own"' in card.text and "hardware: " in card.text
    assert f"| both | {100 * metrics['eval_precision@1']:.2f} |" in card.text
    assert "mlp_size: 8" in card.text and "- train: texts that were given in Python (20 texts)" in card.text
    assert "hf_writer0" not in "".join(content.decode() for name, content in files.items() if name.endswith("json"))
    # Again, with other weights: only these and what tells of them are sent.
    trainer.model.set_label_names([f"label {i}" for i in range(8)])
    hub.log.clear()
    trainer.push_to_hub()
    assert hub.uploads() == []


def test_a_run_that_pushes(hub, encoder_folder, text_file, tmp_path, caplog):
    main(
        [
            *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 8}', "--use_cpu", "true"),
            *("--train_file", text_file("train.jsonl", 32), "--test_file", text_file("test.jsonl", 8, first=32)),
            *("--validation_size", "8", "--metrics_at", "1", "--num_train_epochs", "1", "--logging_steps", "1"),
            *("--per_device_train_batch_size", "32"),
            *("--push_to_hub", "true", "--hub_model_id", "me/run", "--hub_token", "hf_writer0"),
            *("--output_dir", str(tmp_path / "run")),
        ]
    )
    repo = hub.repos["models/me/run"]
    assert len(repo.commits) == 2, "one commit, after the first that every repository has"
    files = files_of(hub, "me/run")
    results = json.loads(files["results.json"])
    assert results["training"]["best"]["step"] == results["training"]["steps"] == 1
    assert {"blend", "global", "local", "lexical", "memory", "dense"} <= results["validation"].keys()
    assert caplog.text.count("bags of token ids of 32 training texts") == 1
    assert "test" in results and "predictions.jsonl" not in files
    text = files["README.md"].decode()
    assert "best checkpoint: step 1, with precision@1" in text and "| test texts |" in text
    assert str(tmp_path) not in text + files["results.json"].decode() + files["config.json"].decode()


def test_models_push_themselves_with_names_and_code(hub, trained, tmp_path):
    model = AutoModel.from_pretrained(trained)
    model.push_to_hub("me/model", token="hf_writer0")
    model.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="me/saved", token="hf_writer0")
    wanted = {"config.json", "model.safetensors", "labels.txt", "modeling_base.py", "pipeline_xmtc.py", "README.md"}
    for repo_id in ("me/model", "me/saved"):
        files = files_of(hub, repo_id)
        assert wanted <= set(files) and files["labels.txt"] == (trained / "labels.txt").read_bytes()
        assert "custom_pipelines" in json.loads(files["config.json"])
    # Saved once more with other names: they are sent again.
    model.set_label_names(["first", *model.label_names[1:]])
    model.save_pretrained(tmp_path / "model", push_to_hub=True, repo_id="me/saved", token="hf_writer0")
    assert files_of(hub, "me/saved")["labels.txt"].startswith(b"first\n")


def test_a_loss_curve_in_short():
    logs = [{"step": step, "loss": 1 / step} for step in range(1, 102)] + [{"step": 101, "eval_loss": 0.0}]
    curve = loss_curve(logs, 10)
    assert len(curve) == 10 and curve[0] == (1, 1.0) and curve[-1] == (101, 1 / 101)
    assert [step for step, _ in curve] == sorted({step for step, _ in curve})
    assert loss_curve(logs[:3], 10) == [(1, 1.0), (2, 0.5), (3, 1 / 3)] and loss_curve([], 10) == []
