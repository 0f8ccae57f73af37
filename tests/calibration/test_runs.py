"""Calibration as a user meets it: an option of a run, a command for trained models."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer, pipeline

from glocal_xml.calibration import ScoredLabels, calibrated_scores, fit_calibration, keep_calibration, write_figure
from glocal_xml.cli import main as command
from glocal_xml.data import LabelSpace
from glocal_xml.training import main
from glocal_xml.training.calibration_of_run import calibration_of_run, scored_candidates


@pytest.fixture(scope="module")
def flags(encoder_folder, text_file):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 32, "top_k": 4, "label_bias": true}'),
        *("--train_file", text_file("train.jsonl", 96), "--validation_size", "24"),
        *("--module_learning_rates", '{"encoder": 3e-3}', "--learning_rate", "1e-2", "--metrics_at", "1", "2"),
        *("--per_device_train_batch_size", "8", "--use_cpu", "true", "--num_train_epochs", "2"),
    ]


@pytest.fixture(scope="module")
def run(flags, text_file, tmp_path_factory):
    """A run with calibration: its folder, its results, what it said, and its test file."""
    folder, test_file = tmp_path_factory.mktemp("runs") / "run", text_file("test.jsonl", 40, first=96)
    results = main([*flags, "--test_file", test_file, "--calibrate", "samples", "--output_dir", str(folder)])
    return folder, results, test_file


# The run scores many texts at once, which rounds otherwise; what is that close to a threshold may be given or not.
MARGINS = (-1e-5, 1e-5)


def all_scores(folder, texts):
    """Names and probabilities of all labels of each text, one text at a time."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    for text in texts:
        best = model.predict_top_k(**tokenizer(text, return_tensors="pt"), top_k=8)
        yield [model.label_names[i] for i in best.top_k_ids[0]], best.top_k_scores[0].double().numpy()


def test_a_run_calibrates_on_validation_and_judges_on_test(run):
    folder, results, test_file = run
    calibration = results["calibration"]
    kept = AutoModel.from_pretrained(folder).config.calibration
    assert kept == {name: calibration[name] for name in ("temperature", "threshold", "f", "beta", "texts")}
    assert (kept["f"], kept["texts"], calibration["candidates"]) == ("samples", 24, 8)
    assert json.loads((folder / "results.json").read_text())["calibration"] == calibration
    assert results["collapsed"] is False
    # The test texts, by hand and text by text.
    rows = [json.loads(line) for line in Path(test_file).read_text().splitlines()]
    measures = []
    for row, (names, scores) in zip(rows, all_scores(folder, [row["text"] for row in rows]), strict=True):
        for margin in MARGINS:
            is_given = calibrated_scores(scores, kept["temperature"]) >= kept["threshold"] + margin
            chosen, true = {name for name, given in zip(names, is_given, strict=True) if given}, set(row["labels"])
            measures.append((2 * len(chosen & true) / (len(chosen) + len(true)), len(chosen)))
    least, most = np.sort(np.reshape(measures, (40, len(MARGINS), 2)), axis=1).mean(axis=0)
    found = [calibration["test"][name] for name in ("f", "labels_per_text")]
    assert (least - 1e-9 <= found).all() and (found <= most + 1e-9).all() and (most - least < 0.05).all()
    assert calibration["test"]["texts"] == 40 and calibration["test"]["true_labels_scored"] == 1.0


def test_training_further_forgets_a_calibration(run, flags, tmp_path):
    rest = flags[flags.index("--train_file") :]
    main([*rest, "--model", str(run[0]), "--num_train_epochs", "1", "--output_dir", str(tmp_path / "further")])
    assert AutoModel.from_pretrained(tmp_path / "further").config.calibration is None


@pytest.fixture
def model_folder(run, tmp_path):
    return shutil.copytree(run[0], tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))


def test_the_command_changes_the_configuration_alone(run, model_folder, tmp_path, capsys):
    files = {path.name: path.read_bytes() for path in model_folder.iterdir()}
    figure = tmp_path / "reliability.png"
    arguments = ["calibrate", str(model_folder), run[2], "--f", "micro", "--beta", "2", "--figure", str(figure)]
    assert command([*arguments, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    kept = AutoModel.from_pretrained(model_folder).config.calibration
    assert shown == {**kept, "candidates": 8, "fitted_on": shown["fitted_on"]} and kept["texts"] == 40
    assert figure.read_bytes().startswith(b"\x89PNG")
    changed = {path.name for path in model_folder.iterdir() if files.get(path.name) != path.read_bytes()}
    assert changed == {"config.json"}
    before, after = json.loads(files["config.json"]), json.loads((model_folder / "config.json").read_text())
    assert {**before, "calibration": None} == {**after, "calibration": None} and before != after

    # All labels are candidates here, so that a plain pass over the texts must give the same.
    rows = [json.loads(line) for line in Path(run[2]).read_text().splitlines()]
    names = AutoModel.from_pretrained(model_folder).label_names
    ids, scores = [], []
    for found, values in all_scores(model_folder, [row["text"] for row in rows]):
        ids.append([names.index(name) for name in found])
        scores.append(values)
    true = [[names.index(label) for label in row["labels"]] for row in rows]
    plain = fit_calibration(ScoredLabels.from_rankings(ids, scores, true, 8), "micro", 2.0)
    assert kept["temperature"] == pytest.approx(plain["temperature"], rel=1e-3)
    assert kept["threshold"] == pytest.approx(plain["threshold"], rel=1e-3)

    assert command(["calibrate", str(model_folder), run[2], "--candidates", "3"]) == 0
    report = capsys.readouterr().out
    assert "temperature" in report and "Brier" in report and "micro F1" in report and "of 40 texts" in report


def test_the_pipeline_gives_what_was_judged(run):
    folder, results, test_file = run
    texts = [json.loads(line)["text"] for line in Path(test_file).read_text().splitlines()]
    tag = pipeline("extreme-multi-label-classification", model=str(folder))
    tagged = tag(texts, threshold="calibrated", top_k=8, batch_size=16)
    scores = np.array([[label["score"] for label in labels] for labels in tag(texts, calibrated=True, top_k=8)])
    most, least = ((scores >= results["calibration"]["threshold"] + margin).sum(axis=1) for margin in MARGINS)
    given = np.array([len(labels) for labels in tagged])
    assert (least <= given).all() and (given <= most).all()
    assert least.mean() <= results["calibration"]["test"]["labels_per_text"] <= most.mean()


def test_the_ranking_and_the_raw_scores_stay(run, model_folder):
    texts = ["apple dog moon", "fox ice night"]
    before = list(all_scores(model_folder, texts))
    keep_calibration(model_folder, None)
    for (names, scores), (other_names, other_scores) in zip(before, all_scores(model_folder, texts), strict=True):
        assert names == other_names and scores == pytest.approx(other_scores, abs=1e-6)


def test_a_configuration_is_never_half_written(model_folder, monkeypatch):
    before = (model_folder / "config.json").read_bytes()

    def full_disk(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        keep_calibration(model_folder, {"temperature": 1.0, "threshold": 0.5, "f": "micro"})
    assert (model_folder / "config.json").read_bytes() == before
    assert not list(model_folder.glob(".config.json*"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["someone/model", "{file}"], "download"),
        (["{model}", "missing.jsonl"], "missing.jsonl"),
        (["{model}", "{file}", "--beta", "0"], "above 0, got 0"),
        (["{model}", "{file}", "--f", "best"], "micro, macro, samples, got 'best'"),
        (["{model}", "{file}", "--train_file", "{file}"], "trains nothing"),
        (["{model}", "{file}", "--candidate", "5"], "--candidate"),
        (["{model}", "{file}", "--candidates", "0"], "at least 1, got 0"),
        (["{model}", "{file}", "--figure", "figure.xyz"], "png"),
        (["{model}", "{file}", "--figure", "nowhere/figure.png"], "no folder for the figure"),
        (["{model}", "{file}", "--text_column", "title"], "title"),
    ],
)
def test_mistakes_are_one_line(run, arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = (run[0] / "config.json").read_bytes()
    assert command(["calibrate", *(part.format(model=run[0], file=run[2]) for part in arguments)]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert (run[0] / "config.json").read_bytes() == before


def test_runs_that_cannot_calibrate_are_refused(run, flags, tmp_path):
    without = flags[: flags.index("--validation_size")] + flags[flags.index("--validation_size") + 2 :]
    with pytest.raises(ValueError, match="--validation_size"):
        main([*without, "--calibrate", "micro", "--output_dir", str(tmp_path)])
    with pytest.raises(ValueError, match="micro, macro, samples, got 'best'"):
        main([*flags, "--calibrate", "best", "--output_dir", str(tmp_path)])
    trained = ["--model", str(run[0]), "--test_file", run[2], "--output_dir", str(tmp_path)]
    with pytest.raises(ValueError, match="glocal-xml calibrate MODEL FILE"):
        main([*trained, "--calibrate", "micro"])


def test_candidates_are_what_the_model_can_rank(run):
    config = AutoModel.from_pretrained(run[0]).config
    assert scored_candidates(config) == 8 and scored_candidates(config, 5) == 5
    config.num_labels, config.shortlist = 1000, 64
    assert scored_candidates(config) == 64


def test_figure_of_few_and_of_extreme_scores(tmp_path):
    pairs = ScoredLabels.from_rankings([[0, 1], [1, 0]], [[1.0, 0.0], [1.0, 0.0]], [[0], []], 2)
    write_figure(tmp_path / "few.svg", pairs, fit_calibration(pairs), "two texts")
    assert (tmp_path / "few.svg").stat().st_size > 10_000


@pytest.mark.parametrize(("score", "message"), [(0.5, "None of the 1 true labels"), (np.nan, "diverged")])
def test_nothing_to_fit_loses_no_run(run, score, message, caplog):
    def rank(part, number):
        return np.arange(number)[None], np.full((1, number), score)

    model = AutoModel.from_pretrained(run[0])
    space = LabelSpace(names=model.label_names, counts=[1] * 8, num_texts=8, unseen=["new"])
    before = (run[0] / "config.json").read_bytes()
    assert calibration_of_run("micro", rank, {"validation": {"labels": [[8]]}}, space, model, run[0]) is None
    assert "No calibration. " in caplog.text and message in caplog.text
    assert (run[0] / "config.json").read_bytes() == before
