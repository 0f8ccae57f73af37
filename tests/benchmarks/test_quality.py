"""The quality benchmark: contenders run in processes of their own, one evaluator judges, and values are tidy rows."""

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["--data", "debtags", "--max_train_texts", "200", "--max_test_texts", "50", "--cores", "1"]


@pytest.fixture(scope="module")
def quality():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks" / "quality"))
        # Contenders of this environment import the checkout too.
        patch.setenv("PYTHONPATH", str(ROOT))
        import figures
        import measured_process
        import results_csv
        import run

        yield {"figures": figures, "measured": measured_process, "csv": results_csv, "run": run}


@pytest.fixture(scope="module")
def folder(quality, tmp_path_factory):
    folder = tmp_path_factory.mktemp("quality")
    options = ["--contenders", "label-frequency", "logistic-regression", "--output_dir", str(folder)]
    assert quality["run"].main([*SMALL, *options]) == 0
    return folder


def values(quality, folder, contender):
    rows = quality["csv"].read_rows(folder / "results.csv")
    return {row["metric"]: float(row["value"]) for row in rows if row["contender"] == contender}


def test_rows_are_tidy(quality, folder):
    rows = quality["csv"].read_rows(folder / "results.csv")
    assert tuple(rows[0]) == quality["csv"].COLUMNS
    assert {row["contender"] for row in rows} == {"label-frequency", "logistic-regression"}
    assert {(row["benchmark"], row["data"], row["train_texts"], row["test_texts"]) for row in rows} == {
        ("quality", "debtags", "200", "50")
    }
    assert all(row["versions"] and row["machine"] and row["cores"] == "1" for row in rows)
    assert all(math.isfinite(float(row["value"])) for row in rows)
    found = values(quality, folder, "logistic-regression")
    assert {f"{name}@{k}" for name in ("precision", "ndcg", "psp") for k in (1, 3, 5)} <= found.keys()
    assert {"macro_f1@5_few", "macro_f1@5_medium", "calibration_error", "predict_ms", "model_mb"} <= found.keys()
    assert min(found["train_seconds"], found["train_cpu_seconds"], found["peak_memory_gb"]) > 0
    assert found["total_seconds"] > found["train_seconds"]


def test_better_than_the_most_frequent_labels(quality, folder):
    baseline, found = (values(quality, folder, name) for name in ("label-frequency", "logistic-regression"))
    assert found["precision@1"] > baseline["precision@1"]
    # Shares of labels as scores are no promise about a text, so that they are not judged.
    assert "calibration_error" not in baseline


def test_metrics_are_of_the_labels_that_contenders_do_not_see(quality, folder):
    data = folder / "debtags-200-seed42" / "data"
    assert {tuple(json.loads(line)) for line in (data / "test.jsonl").open()} == {("text",)}
    judge = quality["run"].prepare(ROOT / "examples/data/debtags", "test", folder / "again", 200, 50, 42)
    assert (folder / "again" / "train.jsonl").read_bytes() == (data / "train.jsonl").read_bytes()
    best = int(np.argmax(judge.space.counts))
    share = np.mean([best in row for row in judge.true_labels])
    assert values(quality, folder, "label-frequency")["precision@1"] == pytest.approx(share, abs=1e-6)


def test_a_contender_that_fails_is_kept_with_its_reason(quality, tmp_path, capsys):
    options = ["--contenders", "logistic-regression", "--limit", "0.0001", "--output_dir", str(tmp_path)]
    assert quality["run"].main([*SMALL, *options]) == 1
    (row,) = quality["csv"].read_rows(tmp_path / "results.csv")
    assert (row["metric"], row["value"], row["note"]) == ("failed", "", "stopped after 0.0001 minutes")
    assert "| logistic-regression |" in capsys.readouterr().out


def test_the_reason_is_the_last_line_of_its_output(quality, tmp_path):
    command = [sys.executable, "-c", "print('first'); raise SystemExit('no such package')"]
    with pytest.raises(quality["measured"].ContenderError, match="exit code 1: no such package"):
        quality["measured"].run_measured(command, tmp_path / "log.txt", cores=1)


def test_memory_of_children_counts(quality, tmp_path):
    child = "import time; held = bytearray(100 * 2**20); time.sleep(2)"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    measured = quality["measured"].run_measured([sys.executable, "-c", parent], tmp_path / "log.txt", cores=1)
    assert measured.peak_memory_gb > 100 / 2**10


def test_a_run_replaces_its_earlier_rows(quality, tmp_path):
    table, run = tmp_path / "results.csv", {"benchmark": "quality", "contender": "one", "seed": 1}
    quality["csv"].add_rows(table, [run | {"metric": "psp@1", "value": 0.1}, run | {"metric": "psp@3", "value": 0.2}])
    quality["csv"].add_rows(table, [run | {"metric": "psp@1", "value": 0.3}, run | {"seed": 2, "metric": "psp@1"}])
    rows = quality["csv"].read_rows(table)
    assert [(row["seed"], row["metric"], row["value"]) for row in rows] == [("1", "psp@1", "0.3"), ("2", "psp@1", "")]


def test_figures_are_drawn_from_the_table(quality, folder, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["figures.py", str(folder / "results.csv"), str(tmp_path)])
    quality["figures"].main()
    assert all((tmp_path / f"quality_{name}.png").stat().st_size > 10_000 for name in ("time", "bands"))


def test_every_script_of_a_contender_is_there(quality):
    peers = ROOT / "benchmarks" / "quality" / "peers"
    scripts = {contender.script for contender in quality["run"].CONTENDERS.values()}
    assert scripts == {path.name for path in peers.glob("*.py")} - {"exchange.py"}
