"""Whole runs on tiny models: what a user sees, from files to results."""

import importlib.util
import json
import logging
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import datasets
import pytest
import torch
import warm_process
from close_rankings import assert_best
from transformers import AutoModel, AutoTokenizer

from glocal_xml.cli.train import main
from glocal_xml.modeling import GlocalXMLForMultiLabel, MEXMLForMultiLabel
from glocal_xml.runs import LoopState

EXAMPLES = Path(__file__).parents[2] / "examples"
RESUME = ("--resume_from_checkpoint", "last")
RATES = '{"encoder": 3e-3, "local_head": 1e-2}'


@pytest.fixture
def flags(encoder_folder, text_file, tmp_path):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 32, "top_k": 4, "label_bias": true}'),
        *("--train_file", text_file("train.jsonl", 96), "--test_file", text_file("test.jsonl", 16, first=96)),
        *("--module_learning_rates", RATES, "--learning_rate", "1e-2", "--metrics_at", "1", "2"),
        *("--metric_for_best_model", "precision@2", "--per_device_train_batch_size", "8", "--use_cpu", "true"),
        *("--num_train_epochs", "10", "--logging_steps", "4", "--output_dir", str(tmp_path / "run")),
        # The heads alone: experts have runs of their own.
        *("--experts", "none", "--blend", "false"),
    ]


def weights(folder):
    return AutoModel.from_pretrained(folder).state_dict()


def assert_same_weights(first, second):
    for name, value in weights(first).items():
        assert torch.equal(value, weights(second)[name]), name


def write_renamed(path, flags):
    """The training file of some flags with one label renamed."""
    texts = Path(flags[flags.index("--train_file") + 1]).read_text(encoding="utf-8")
    rows = [json.loads(line) for line in texts.splitlines()]
    first = rows[0]["labels"][0]
    lines = ({**row, "labels": ["new" if name == first else name for name in row["labels"]]} for row in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return str(path)


def test_trains_evaluates_and_predicts(flags, tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        results = main([*flags, "--validation_size", "16", "--train_sampling_strategy", "group_by_length"])
    folder = tmp_path / "run"
    assert json.loads((folder / "results.json").read_text())["test"] == results["test"]
    rows = results["test"]
    assert set(rows) == {"both", "global", "local", "label frequency"}
    assert rows["both"]["precision@2"] > 0.9 > rows["label frequency"]["precision@2"]
    assert results["settings"]["training"]["seed"] == 42 and "torch" in results["environment"]
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 16
    best = lines[0]["predictions"]
    assert len(best) == 4 and best[0]["label"].startswith("is ") and best[0]["score"] >= best[1]["score"]
    # The file agrees with the metrics.
    hits = sum(item["label"] in line["labels"] for line in lines for item in line["predictions"][:2])
    assert hits / 32 == pytest.approx(rows["both"]["precision@2"])
    # Every text has its own predictions, also where training groups texts by length.
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for line in lines:
        best = model.predict_top_k(**tokenizer(line["text"], return_tensors="pt"), top_k=8)
        everything = zip(best.top_k_ids[0].tolist(), best.top_k_scores[0].tolist(), strict=True)
        assert_best(line["predictions"], [{"label": model.label_names[i], "score": score} for i, score in everything])
    evaluations = [line for line in caplog.messages if "P@1/2: both" in line and "global" in line and "local" in line]
    assert len(evaluations) == 10, "one line per evaluation"


def test_a_trained_model_evaluates_and_predicts_on_its_own(flags, text_file, tmp_path):
    trained = main(flags)
    other = [
        *("--model", str(tmp_path / "run"), "--metrics_at", "1", "2", "--use_cpu", "true"),
        *("--output_dir", str(tmp_path / "other"), "--test_file", text_file("again.jsonl", 16, first=96)),
    ]
    assert main(other)["test"]["both"]["precision@2"] == trained["test"]["both"]["precision@2"]
    texts = tmp_path / "new.jsonl"
    texts.write_text('{"text": "apple dog moon"}\n{"text": "fox"}\n', encoding="utf-8")
    main([*other, "--predict_file", str(texts), "--overwrite_output", "true"])
    lines = [json.loads(line) for line in (tmp_path / "other" / "predictions.jsonl").read_text().splitlines()]
    assert [line["part"] for line in lines] == ["test"] * 16 + ["predict"] * 2
    assert [line["text"] for line in lines[16:]] == ["apple dog moon", "fox"]


def test_same_seed_same_weights_and_resume_is_exact(flags, tmp_path):
    steps = ["--save_strategy", "steps", "--save_steps", "7", "--save_total_limit", "20"]
    main([*flags, *steps])
    main([*flags, *steps, "--output_dir", str(tmp_path / "same")])
    assert_same_weights(tmp_path / "run", tmp_path / "same")
    # As if cut while it wrote checkpoint 35; 28 lies in the middle of an epoch of 12 steps.
    cut = tmp_path / "same"
    for path in cut.glob("checkpoint-*"):
        if int(path.name.split("-")[1]) > 35:
            shutil.rmtree(path)
    (cut / "checkpoint-35" / "trainer_state.json").unlink()
    with pytest.raises(ValueError, match="holds another run"):
        main([*flags, *steps, "--output_dir", str(cut)])
    renamed = write_renamed(tmp_path / "renamed.jsonl", flags)
    with pytest.raises(ValueError, match="labels of the training texts are not those of"):
        main([*flags, *steps, *("--train_file", renamed, "--output_dir", str(cut)), *RESUME])
    main([*flags, *steps, "--output_dir", str(cut), *RESUME])
    assert_same_weights(tmp_path / "run", cut)


# Adam divides by the size of a gradient: where that is rounding noise, such as for key biases, runs would differ.
SGD = ["--optim", "sgd", "--learning_rate", "1.0", "--module_learning_rates", '{"encoder": 0.5}', "--max_steps", "4"]


def assert_close_weights(first, second, start):
    start = AutoModel.from_pretrained(start).state_dict()
    moved = 0.0
    for name, value in weights(first).items():
        torch.testing.assert_close(weights(second)[name], value, rtol=1e-4, atol=1e-6)
        if name.startswith("encoder."):
            moved = max(moved, (value - start[name.removeprefix("encoder.")]).abs().max().item())
    assert moved > 1e-3, "the steps were large enough for a difference to show"


@pytest.mark.compatibility(
    "Training", "`gradient_accumulation_steps`", "works: the weights of one large batch", since="0.1"
)
def test_accumulation_equals_one_batch(flags, encoder_folder, tmp_path):
    main([*flags, *SGD])
    small = ["--per_device_train_batch_size", "2", "--gradient_accumulation_steps", "4"]
    main([*flags, *SGD, *small, "--output_dir", str(tmp_path / "accumulated")])
    assert_close_weights(tmp_path / "run", tmp_path / "accumulated", encoder_folder)


def test_early_stopping_and_best_model(flags, tmp_path):
    results = main([*flags, "--validation_size", "16", "--num_train_epochs", "30", "--early_stopping_patience", "2"])
    state = json.loads(
        max((tmp_path / "run").glob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
        .joinpath("trainer_state.json")
        .read_text()
    )
    assert state["epoch"] < 30
    assert results["validation"]["both"]["precision@2"] == pytest.approx(state["best_metric"])


@pytest.mark.compatibility(
    "Training",
    "`--streaming`",
    "works with `--max_steps`; experts and a validation split are refused or left out",
    since="0.1",
)
def test_streaming(flags):
    results = main([*flags, "--streaming", "true", "--max_steps", "60", "--max_test_texts", "12"])
    assert results["test"]["both"]["precision@2"] > results["test"]["label frequency"]["precision@2"]


def test_fewer_labels_than_metrics_ask_for(flags, tmp_path, caplog):
    path = tmp_path / "few.jsonl"
    path.write_text('{"text": "apple", "labels": ["a"]}\n{"text": "fox", "labels": ["b"]}\n' * 4, encoding="utf-8")
    few = ["--train_file", str(path), "--test_file", str(path), "--validation_size", "2", "--metrics_at", "1", "5"]
    index = flags.index("--metric_for_best_model")
    results = main([*flags[:index], *flags[index + 2 :], *few, "--num_train_epochs", "1"])
    assert "only 2 labels" in caplog.text
    assert "precision@1" in results["test"]["both"] and "precision@5" not in results["test"]["both"]


def test_one_branch_goes_by_its_name(flags):
    results = main(
        [*flags, "--model_config", '{"branches": "global"}', "--max_steps", "1", "--module_learning_rates", "{}"]
    )
    assert set(results["test"]) == {"global", "label frequency"}


def test_a_dataset_on_disk_with_columns_of_its_own(flags, tmp_path):
    rows = {"abstract": ["apple moon", "dog fox", "fox apple"], "tags": [["a", "b"], ["c"], ["a", "c"]]}
    part = datasets.Dataset.from_dict(rows)
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(tmp_path / "data")
    own = flags[: flags.index("--train_file")] + flags[flags.index("--module_learning_rates") :]
    columns = ["--text_column", "abstract", "--labels_column", "tags", "--max_steps", "1"]
    results = main([*own, "--dataset_name", str(tmp_path / "data"), *columns])
    assert results["environment"]["processes"] == 1
    lines = (tmp_path / "run" / "predictions.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["labels"] == ["a", "b"]


def test_a_model_without_its_label_space_is_refused(flags, encoder_folder, tmp_path):
    model = GlocalXMLForMultiLabel.from_encoder(encoder_folder, label_names=["a", "b"], mlp_size=8)
    model.save_pretrained(tmp_path / "model")
    for folder, message in {str(tmp_path / "model"): "label_counts.json", encoder_folder: "of the type bert"}.items():
        with pytest.raises(ValueError, match=message):
            main(["--model", folder, "--test_file", flags[flags.index("--test_file") + 1]])


def test_unseen_labels_count_as_misses(flags, text_file, tmp_path, caplog):
    path = tmp_path / "unseen.jsonl"
    path.write_text('{"text": "apple banana", "labels": ["never met", "is apple"]}\n', encoding="utf-8")
    results = main([*flags, "--max_steps", "2", "--test_file", str(path)])
    assert "never met" in caplog.text
    assert results["test"]["both"]["recall@2"] <= 0.5
    assert math.isfinite(results["test"]["both"]["loss"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--validation_file", "TEST"], "validation file is the test file"),
        (["--module_learning_rates", '{"encodr": 1}'], "encodr"),
        (["--bad_rows", "ignore"], "ignore"),
        (["--model_config", '{"local_layer": 9}'], "0 .embedding output. to 3"),
        (["--model_config", '{"lokal_layer": 1}'], "no fields ..lokal_layer"),
        (["--encoder_options", '{"droppout": 1}'], "droppout"),
        (["--max_length", "65"], "positions for 64"),
        (["--metric_for_best_model", "precision@9", "--validation_size", "4"], "precision@9"),
        (["--early_stopping_patience", "2"], "needs validation texts"),
        (["--dataset_name", "x"], "leave out train_file"),
        (["--streaming", "true", "--validation_size", "4"], "stream cannot be split"),
    ],
)
def test_mistakes_end_before_training(flags, change, message):
    test_file = flags[flags.index("--test_file") + 1]
    with pytest.raises(ValueError, match=message):
        main([*flags, *(test_file if value == "TEST" else value for value in change)])


def test_bad_rows_are_named_or_skipped(flags, tmp_path, caplog):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"text": "apple", "labels": ["a"]}\n{"text": "fox", "labels": []}\n{oops\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"bad.jsonl, line 2"):
        main([*flags, "--train_file", str(path)])
    main([*flags, "--train_file", str(path), "--bad_rows", "skip", "--max_steps", "1", "--test_file", str(path)])
    assert any("2 bad rows skipped" in message for message in caplog.messages)


# On a port that is free, whatever else runs on this machine.
TWO_PROCESSES = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def run_script(script, flags, launcher):
    return subprocess.run(
        [sys.executable, *launcher, str(EXAMPLES / script), *flags],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"},
    )


@pytest.mark.compatibility(
    "Several processes",
    "`torchrun` of `run_xmtc.py`",
    "works: the weights of one process with twice the batch",
    since="0.1",
)
def test_two_processes_equal_one(flags, encoder_folder, tmp_path):
    """Data parallel by torchrun, half the batch each; the same by plain `python`."""
    one = warm_process.run(EXAMPLES / "run_xmtc.py", [*flags, *SGD])
    assert one.returncode == 0, one.stderr
    half = [*flags, *SGD, "--per_device_train_batch_size", "4", "--ddp_backend", "gloo"]
    two = run_script("run_xmtc.py", [*half, "--output_dir", str(tmp_path / "two")], TWO_PROCESSES)
    assert two.returncode == 0, two.stderr
    assert "2 process(es)" in two.stdout
    assert_close_weights(tmp_path / "run", tmp_path / "two", encoder_folder)
    first, second = (json.loads((tmp_path / name / "results.json").read_text())["test"] for name in ("run", "two"))
    assert second["both"]["precision@2"] == first["both"]["precision@2"]


def test_an_interrupted_run_says_how_to_resume(flags, tmp_path):
    endless = [*flags, "--max_steps", "100000", "--save_strategy", "steps", "--save_steps", "10"]
    process = warm_process.Process(EXAMPLES / "run_xmtc.py", endless)
    # Seconds as a rule; how many depends on what else the machine does.
    deadline = time.monotonic() + 900
    while process.is_running() and time.monotonic() < deadline:
        if list((tmp_path / "run").glob("checkpoint-*/manifest.json")):
            break
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    ended = process.wait()
    assert ended.returncode == 130
    assert "--resume_from_checkpoint last" in ended.stdout and "checkpoint-" in ended.stdout


def test_own_loop(flags, tmp_path):
    """`accelerate launch` of the readable loop: trains, evaluates, refuses, and resumes to the weights of one go."""
    loop = [*flags, "--validation_size", "16", "--num_train_epochs", "4", "--metric_for_best_model", "precision@1"]
    loop += ["--experts", "lexical", "memory", "--blend", "true"]
    launcher = ["-m", "accelerate.commands.launch", "--cpu", "--num_processes", "1", "--num_machines", "1"]
    launcher += ["--mixed_precision", "no", "--dynamo_backend", "no"]
    whole = run_script("run_xmtc_no_trainer.py", loop, launcher)
    assert whole.returncode == 0, whole.stderr
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["test"]["blend"]["precision@1"] > 0.25 and results["blend"]["texts"] == 0
    assert set(results["test"]) == {"blend", "global", "local", "lexical", "memory", "label frequency"}
    assert {"lexical", "memory"} == set(AutoModel.from_pretrained(tmp_path / "run").text_experts())
    assert len((tmp_path / "run" / "predictions.jsonl").read_text().splitlines()) == 16
    refused = warm_process.run(EXAMPLES / "run_xmtc_no_trainer.py", loop)
    assert refused.returncode == 2 and "holds another run" in refused.stderr


def load_own_loop():
    spec = importlib.util.spec_from_file_location("own_loop", EXAMPLES / "run_xmtc_no_trainer.py")
    own_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_loop)
    return own_loop


def test_own_loop_resumes_exactly(flags, tmp_path, monkeypatch, caplog):
    own_loop = load_own_loop()
    loop = [*flags, "--num_train_epochs", "3"]
    own_loop.main(loop)
    save, saved = LoopState.save, []

    def killed_after_one_epoch(*arguments):
        save(*arguments)
        saved.append(1)
        raise KeyboardInterrupt

    again = [*loop, "--output_dir", str(tmp_path / "again")]
    monkeypatch.setattr(LoopState, "save", killed_after_one_epoch)
    with pytest.raises(SystemExit) as ended:
        own_loop.main(again)
    assert ended.value.code == 130 and "`--resume_from_checkpoint last` resumes from it" in caplog.text
    monkeypatch.setattr(LoopState, "save", save)
    renamed = write_renamed(tmp_path / "renamed.jsonl", loop)
    with pytest.raises(ValueError, match="labels of the training texts are not those of"):
        own_loop.main([*again, *RESUME, "--train_file", renamed])
    own_loop.main([*again, *RESUME])
    assert saved == [1]
    assert_same_weights(tmp_path / "run", tmp_path / "again")


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_own_loop_in_two_processes_equals_one(flags, encoder_folder, tmp_path, resumed):
    """Split texts (half the batch each) and split labels, also resumed, give the weights of one process."""
    # A large epsilon, so that Adam does not make much of rounding noise.
    steady = ["--adam_epsilon", "1e-3", "--lr_scheduler_type", "constant", "--warmup_steps", "0"]
    # Split labels have neither experts nor a blend.
    loop = [*flags, *steady, "--num_train_epochs", "2", "--experts", "none", "--blend", "false"]
    load_own_loop().main(loop)
    split = ["--label_shards", "2", "--output_dir", str(tmp_path / "labels")]
    if resumed:
        runs = [[*split, "--num_train_epochs", "1"], [*split, "--resume_from_checkpoint", "last"]]
    else:
        runs = [["--per_device_train_batch_size", "4", "--output_dir", str(tmp_path / "texts")], split]
    for run in runs:
        two = run_script("run_xmtc_no_trainer.py", [*loop, *run], TWO_PROCESSES)
        assert two.returncode == 0, two.stderr
        assert two.stdout.count("2 process(es)") == 1
    expected = json.loads((tmp_path / "run" / "results.json").read_text())["test"]
    for name in ("labels",) if resumed else ("texts", "labels"):
        assert_close_weights(tmp_path / "run", tmp_path / name, encoder_folder)
        found = json.loads((tmp_path / name / "results.json").read_text())["test"]
        assert found == {row: pytest.approx(metrics, abs=1e-6) for row, metrics in expected.items()}


@pytest.mark.slow
def test_own_loop_in_two_processes_has_experts_and_a_blend(flags, tmp_path):
    experts = ["--experts", "lexical", "memory", "--blend", "true", "--num_train_epochs", "2"]
    two = run_script("run_xmtc_no_trainer.py", [*flags, *experts, "--validation_size", "60"], TWO_PROCESSES)
    assert two.returncode == 0, two.stderr
    model = AutoModel.from_pretrained(tmp_path / "run")
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert model.config.blend["weights"] == results["blend"]["weights"] and model.config.blend["texts"] == 60
    assert set(model.text_experts()) == {"lexical", "memory"} and "blend" in results["test"]


def test_split_labels_are_refused_where_they_cannot_be(flags):
    with pytest.raises(ValueError, match="`label_shards` is 2, but Trainer"):
        main([*flags, "--label_shards", "2"])
    with pytest.raises(ValueError, match=r"1 process\(es\) were started.*torchrun --nproc_per_node 2"):
        load_own_loop().main([*flags, "--label_shards", "2"])


def test_own_loop_refuses_what_it_does_not_do(flags):
    refused = warm_process.run(
        EXAMPLES / "run_xmtc_no_trainer.py", [*flags, "--streaming", "true", "--max_steps", "3"]
    )
    assert refused.returncode == 2 and "--streaming, --max_steps" in refused.stderr


def test_diversity_loss_sets_in_and_a_resumed_run_keeps_it(flags, tmp_path, caplog):
    experts = '{"experts": ["A-1", "D--1"], "mlp_size": 8, "diversity_weight": 0.5, "diversity_start_epoch": 2}'
    rates = ["--module_learning_rates", '{"encoder": 3e-3, "experts": 1e-2}']
    run = [*flags, "--model_type", "me_xml", "--model_config", experts, *rates, "--num_train_epochs", "4"]
    run += ["--save_strategy", "steps", "--save_steps", "10", "--save_total_limit", "20"]
    with caplog.at_level(logging.INFO):
        results = main(run)
    assert set(results["test"]) == {"both", "A-1", "D-3", "label frequency"}
    # Not the line that says how long it will take, which a slow machine has too.
    steps = [record.getMessage() for record in caplog.records if ", epoch " in record.getMessage()]
    # Twelve steps an epoch, a line every four: it sets in with step 25.
    assert ["diversity -" in step for step in steps] == [False] * 6 + [True] * 6
    cut = tmp_path / "cut"
    shutil.copytree(tmp_path / "run", cut)
    for path in cut.glob("checkpoint-*"):
        # Step 30 lies in the middle of the third epoch.
        if int(path.name.split("-")[1]) > 30:
            shutil.rmtree(path)
    main([*run, "--output_dir", str(cut), "--resume_from_checkpoint", "last"])
    assert_same_weights(tmp_path / "run", cut)


def test_a_stream_counts_its_passes_as_epochs(flags, monkeypatch):
    epochs = []
    monkeypatch.setattr(MEXMLForMultiLabel, "start_epoch", lambda self, epoch: epochs.append(epoch))
    family = ["--model_type", "me_xml", "--model_config", '{"mlp_size": 8}', "--module_learning_rates", "{}"]
    main([*flags, *family, "--streaming", "true", "--max_steps", "36", "--save_strategy", "no"])
    # 96 texts in batches of 8 are twelve steps a pass.
    assert epochs == [0, 1, 2]


def test_a_loss_that_never_sets_in_is_told(flags, caplog):
    config = '{"mlp_size": 8, "diversity_start_epoch": 1}'
    family = ["--model_type", "me_xml", "--model_config", config, "--module_learning_rates", "{}"]
    main([*flags, *family, "--num_train_epochs", "1"])
    assert "never in 1 epochs" in caplog.text
    caplog.clear()
    # A single expert has none to differ from.
    alone = ["--model_config", '{"experts": ["D--1"], "diversity_start_epoch": 1}', "--overwrite_output", "true"]
    main([*flags, *family, *alone, "--num_train_epochs", "1"])
    assert "never in" not in caplog.text


def test_further_training_adds_to_the_frequencies(flags, text_file, tmp_path):
    family = ["--model_type", "me_xml", "--model_config", '{"mlp_size": 8}', "--module_learning_rates", "{}"]
    main([*flags, *family, "--num_train_epochs", "2"])
    further = ["--model", str(tmp_path / "run"), "--train_file", text_file("more.jsonl", 8), "--use_cpu", "true"]
    main([*further, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "more")])
    first, more = (AutoModel.from_pretrained(tmp_path / name).label_counts for name in ("run", "more"))
    rows = [json.loads(line) for line in Path(further[3]).read_text().splitlines()]
    assert (more - first).sum() == sum(len(row["labels"]) for row in rows)
    assert more.tolist() == json.loads((tmp_path / "more" / "label_counts.json").read_text())["counts"]


@pytest.mark.slow
def test_clusters_in_two_processes_with_gradient_checkpointing(flags, tmp_path):
    """A cluster that no text of a step needs has no gradient, which must not stop the other process."""
    config = '{"cluster_proportions": [0.4, 0.3, 0.3]}'
    family = ["--model_type", "aplc_xlnet", "--model_config", config, "--module_learning_rates", "{}"]
    run = [*flags, *family, "--per_device_train_batch_size", "1", "--max_steps", "8", "--ddp_backend", "gloo"]
    process = run_script("run_xmtc.py", [*run, "--gradient_checkpointing", "true"], TWO_PROCESSES)
    assert process.returncode == 0, process.stderr
    assert json.loads((tmp_path / "run" / "results.json").read_text())["environment"]["processes"] == 2


@pytest.mark.parametrize("folder", ["outputs/no/encoder", "./encoder", "/no/encoder"])
def test_a_missing_encoder_folder_is_named(flags, folder):
    with pytest.raises(ValueError, match=f"no encoder folder {re.escape(folder)}"):
        main([*flags, "--encoder", folder])
