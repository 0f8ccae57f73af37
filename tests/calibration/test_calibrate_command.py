"""`glocal-xml calibrate`: the blend of a model is fitted again on texts, and kept with it."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from scipy.special import expit, logit
from tiny_encoders import WORDS
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, pipeline

from glocal_xml.calibration import ScoredLabels, write_figure
from glocal_xml.cli import main as command
from glocal_xml.cli.train import main
from glocal_xml.data import LabelSpace
from glocal_xml.experts import ExpertTexts, fit_experts, fixed_blend, log_frequencies
from glocal_xml.modeling import FAMILIES, TextExpertsConfig, TextExpertsForMultiLabel
from glocal_xml.runs.blend import keep_blend

LABELS = 8
# Model type, fields, experts, and whether there is a blend already.
CASES = {
    "glocal_xml": ("glocal_xml", {"mlp_size": 8}, [], False),
    "glocal_xml with experts": ("glocal_xml", {"mlp_size": 8}, ["lexical", "memory"], True),
    "one branch": ("glocal_xml", {"branches": "global"}, [], False),
    "one branch and a memory": ("glocal_xml", {"branches": "global"}, ["memory"], False),
    "shortlist": ("glocal_xml", {"mlp_size": 8, "shortlist": 4, "top_k": 4}, [], False),
    "me_xml": ("me_xml", {}, ["lexical"], False),
    "aplc_xlnet": ("aplc_xlnet", {"summary_size": 8}, [], False),
    "light_attention": ("light_attention", {"mlp_sizes": [12]}, ["lexical"], False),
    "no encoder": ("text_experts", {}, ["lexical", "memory"], True),
    "one expert": ("text_experts", {}, ["lexical"], False),
}


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def held_out(text_file):
    """Texts with labels, every seventh of them a wrong one: no weights tell them apart for sure."""
    rows = rows_of(text_file("held_out.jsonl", 70, first=96))
    for i in range(0, 70, 7):
        rows[i]["labels"] = ["is apple"]
    path = Path(text_file("noisy.jsonl", 1))
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def make_folder(encoder_folder, tokenizer, text_file, tmp_path_factory):
    """Saves a model with random heads and fitted experts, as a run would."""
    rows = rows_of(text_file("train.jsonl", 96))
    names = sorted({label for row in rows for label in row["labels"]})
    ids = [[names.index(label) for label in row["labels"]] for row in rows]
    space = LabelSpace(names, np.bincount(np.concatenate(ids)).tolist(), num_texts=len(rows))

    def make(case, dtype=torch.float32):
        model_type, fields, experts, has_blend = CASES[case]
        torch.manual_seed(0)
        if model_type == TextExpertsConfig.model_type:
            model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=LABELS, **fields))
            model.set_label_names(names)
        else:
            family = next(family for config, family in FAMILIES.items() if config.model_type == model_type)
            model = family.from_encoder(encoder_folder, label_names=names, **fields)
            model.set_label_counts(space.counts)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(torch.randn_like(parameter), alpha=0.2)
        model.to(dtype)
        texts = ExpertTexts.from_texts([row["text"] for row in rows], ids, tokenizer)
        fit_experts(model, texts, tokenizer, experts, workers=1, show_progress=False)
        if has_blend:
            model.set_blend(fixed_blend(model.branch_names), log_frequencies(space))
        folder = tmp_path_factory.mktemp("models") / "tiny"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        space.save(folder)
        return folder

    return make


@pytest.fixture
def folder(make_folder):
    """A model with a blend, of which the configuration alone changes."""
    return make_folder("glocal_xml with experts")


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def branch_logits(folder, rows):
    """Logits of all labels in each branch, (texts, labels, branches), one text at a time."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    found = []
    for row in rows:
        scores = model.score_labels(torch.arange(LABELS), **tokenizer(row["text"], return_tensors="pt"))
        found.append(np.stack([scores[name][0].double().numpy() for name in model.branch_names], axis=-1))
    return model, logit(np.stack(found))


def blend_terms(branch_names, logits):
    """What a blend weighs of the branches, by names: the lexical logit in two pieces, and whether texts vote."""
    terms = dict(zip(branch_names, np.moveaxis(logits, -1, 0), strict=True))
    if "lexical" in terms:
        terms["lexical_bend"] = np.maximum(terms["lexical"] + 2, 0)
        terms["lexical"] = np.minimum(terms["lexical"], -2)
    if "memory" in terms:
        terms["memory_vote"] = (terms["memory"] > terms["memory"].min() + 1e-3).astype(float)
    return terms


def total_of(weights, terms, frequencies):
    """Logits of a blend, (texts, labels)."""
    slopes = {**weights, "lexical_bend": weights.get("lexical", 0.0) + weights.get("lexical_bend", 0.0)}
    of_branches = sum(slopes[name] * values for name, values in terms.items())
    return of_branches + weights["frequency"] * frequencies + weights["bias"]


def check_least_loss(features, truth, weights, branches):
    """
    Whether these are the weights of a logistic regression, the last a constant, of which the first ones must not be
    below 0: nothing lowers the loss, which is convex, but weights below 0.
    """
    slopes = features.T @ (expit(features @ weights) - truth) + np.append(weights[:-1], 0) / 100
    at_bound = np.arange(len(weights)) < branches
    at_bound &= weights < 1e-9
    # The slopes of a regression that knows nothing are hundreds.
    assert weights[:branches].min() >= -1e-9
    assert np.abs(slopes[~at_bound]).max() < 0.02 and (slopes[at_bound] > -0.02).all()


@pytest.mark.parametrize("case", CASES)
def test_every_family_is_weighed_as_by_a_plain_regression(case, make_folder, held_out, capsys):
    folder = make_folder(case)
    before = contents(folder)
    assert command(["calibrate", str(folder), held_out, "--f", "macro", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    changed = {name for name, content in contents(folder).items() if before.get(name) != content}
    has_blend = CASES[case][3]
    # The first blend of a model brings its code, unless experts did.
    code = set() if has_blend else {"experts.py", "token_counts.py"} - before.keys()
    assert changed == ({"config.json"} if has_blend else {"config.json", "model.safetensors"} | code)
    assert before.keys() | code == contents(folder).keys() and not list(folder.parent.glob(".tiny*"))

    rows = rows_of(held_out)
    model, logits = branch_logits(folder, rows)
    blend = model.config.blend
    terms = blend_terms(model.branch_names, logits)
    assert (blend["f"], blend["texts"]) == ("macro", 70)
    assert blend["weights"].keys() == {*terms, "frequency", "bias"}
    assert {name: shown[name] for name in blend} == blend and shown["candidates"] == 15
    # All labels are candidates but where a shortlist is all that is looked at.
    space = LabelSpace.load(folder)
    frequencies = log_frequencies(space)
    if case != "shortlist":
        truth = np.array([[name in row["labels"] for name in model.label_names] for row in rows])
        columns = [*terms.values(), np.broadcast_to(frequencies, truth.shape), np.ones(truth.shape)]
        features = np.stack(columns, axis=-1).reshape(truth.size, -1)
        slopes = {**blend["weights"]}
        if "lexical_bend" in slopes:
            slopes["lexical_bend"] += slopes["lexical"]
        weights = np.array([*(slopes[name] for name in terms), slopes["frequency"], slopes["bias"]])
        check_least_loss(features, truth.flatten(), weights, len(terms))
        assert shown["after"]["cross_entropy"] < shown["before"]["cross_entropy"]
        assert shown["after"]["true_labels_scored"] == 1.0

    # What is loaded gives the new probabilities.
    wanted = expit(total_of(blend["weights"], terms, frequencies))
    tag = pipeline("extreme-multi-label-classification", model=str(folder))
    for row, expected in zip(rows[:5], wanted, strict=False):
        scores = {item["label"]: item["score"] for item in tag(row["text"], candidate_labels=model.label_names)}
        if len(scores) == LABELS:
            assert [scores[name] for name in model.label_names] == pytest.approx(expected, abs=1e-4)
        given = {item["label"] for item in tag(row["text"], threshold="calibrated")}
        assert given <= {
            name for name, p in zip(model.label_names, expected, strict=True) if p > blend["threshold"] - 1e-4
        }


def test_the_report_and_the_figure(folder, held_out, tmp_path, capsys):
    figure = tmp_path / "reliability.png"
    assert command(["calibrate", str(folder), held_out, "--beta", "2", "--figure", str(figure)]) == 0
    report = capsys.readouterr().out
    old, new = report.split("after, on the texts that it was fitted on")
    assert old.startswith("before, with the threshold 0.5000") and "Brier" in old and "weights" not in old
    assert "weights: global" in new and "micro F (beta 2)" in new and "of 70 texts" in new and "Brier" in new
    assert new.strip().endswith(f"kept in {folder}")
    assert figure.read_bytes().startswith(b"\x89PNG")
    # Once more: what was fitted first is now before.
    threshold = json.loads((folder / "config.json").read_text())["blend"]["threshold"]
    assert command(["calibrate", str(folder), held_out, "--candidates", "3"]) == 0
    assert f"before, with the threshold {threshold:.4f}" in capsys.readouterr().out


def test_texts_that_the_memory_knows_are_told(folder, tokenizer, tmp_path, caplog):
    """Texts of two words each, and then of three: few enough that no word is too frequent to count."""
    words, rng = [*WORDS, *"abcdefghij"], np.random.default_rng(0)
    parts = [[rng.permutation(len(words))[:size] for _ in range(50)] for size in (2, 3)]
    model = AutoModel.from_pretrained(folder)
    told = []
    for part in parts:
        texts, labels = [" ".join(words[i] for i in row) for row in part], [[int(row[0]) % LABELS] for row in part]
        if not told:
            fit_experts(model, ExpertTexts.from_texts(texts, labels, tokenizer), tokenizer, ["memory"])
            model.save_pretrained(folder)
        rows = [{"text": text, "labels": [model.label_names[ids[0]]]} for text, ids in zip(texts, labels, strict=True)]
        (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        caplog.clear()
        assert command(["calibrate", str(folder), str(tmp_path / "texts.jsonl")]) == 0
        told.append("are in the memory of the model" in caplog.text)
    assert told == [True, False]


def test_weights_keep_their_precision(make_folder, held_out):
    folder = make_folder("glocal_xml", torch.bfloat16)
    before = load_file(folder / "model.safetensors")
    assert command(["calibrate", str(folder), held_out]) == 0
    after = load_file(folder / "model.safetensors")
    assert after.keys() - before.keys() == {"log_frequencies"}
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype and torch.equal(after[name], tensor), name


def test_several_files_of_weights(make_folder, held_out):
    folder = make_folder("glocal_xml")
    AutoModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert command(["calibrate", str(folder), held_out]) == 0
    # Saved as one now, of which no older part is left.
    assert [path.name for path in folder.glob("*.safetensors*")] == ["model.safetensors"]
    model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert model.config.blend["texts"] == 70 and not any(report.values())


def full_disk(*_, **__):
    raise OSError("No space left on device")


@pytest.mark.parametrize("case", ["glocal_xml", "glocal_xml with experts"])
def test_a_model_is_never_half_written(case, make_folder, held_out, monkeypatch, capsys):
    folder = make_folder(case)
    before = contents(folder)

    def half_a_model(_, place, **options):
        Path(place, "model.safetensors").write_bytes(b"half")
        full_disk()

    monkeypatch.setattr(os, "fsync", full_disk)
    monkeypatch.setattr(PreTrainedModel, "save_pretrained", half_a_model)
    assert command(["calibrate", str(folder), held_out]) == 2
    assert "No space" in capsys.readouterr().err
    assert contents(folder) == before and [path.name for path in folder.parent.iterdir()] == ["tiny"]


def test_a_temperature_of_an_older_model_goes(make_folder, held_out):
    folder = make_folder("glocal_xml")
    config = json.loads((folder / "config.json").read_text())
    config["calibration"] = {"temperature": 2.0, "threshold": 0.3, "f": "micro", "beta": 1.0, "texts": 9}
    (folder / "config.json").write_text(json.dumps(config))
    assert command(["calibrate", str(folder), held_out]) == 0
    config = json.loads((folder / "config.json").read_text())
    assert "calibration" not in config and config["blend"]["texts"] == 70


def test_frequencies_that_changed_are_saved(folder):
    """Labels may have been edited: then the configuration alone would be that of other weights."""
    model = AutoModel.from_pretrained(folder)
    model.set_blend(model.config.blend, model.log_frequencies + 1)
    keep_blend(folder, model)
    assert torch.equal(AutoModel.from_pretrained(folder).log_frequencies, model.log_frequencies)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["someone/model", "{file}"], "download"),
        (["{model}", "missing.jsonl"], "missing.jsonl"),
        (["{model}", "{file}", "--beta", "0"], "above 0, got 0"),
        (["{model}", "{file}", "--f", "best"], "micro, macro, samples, got 'best'"),
        (["{model}", "{file}", "--train_file", "{file}"], "unrecognized arguments: --train_file"),
        (["{model}", "{file}", "--candidate", "5"], "--candidate"),
        (["{model}", "{file}", "--candidates", "0"], "at least 1, got 0"),
        (["{model}", "{file}", "--windows", "max"], "unrecognized arguments: --windows"),
        (["{model}", "{file}", "--max_test_texts", "20"], "20 texts with 36 true labels among the best 15"),
        (["{model}", "{file}", "--figure", "figure.xyz"], "png"),
        (["{model}", "{file}", "--figure", "nowhere/figure.png"], "no folder for the figure"),
        (["{model}", "{file}", "--text_column", "title"], "title"),
    ],
)
def test_mistakes_are_one_line(make_folder, held_out, arguments, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = make_folder("glocal_xml with experts")
    before = contents(folder)
    assert command(["calibrate", *(part.format(model=folder, file=held_out) for part in arguments)]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert contents(folder) == before


def test_figure_of_few_and_of_extreme_scores(tmp_path):
    pairs = ScoredLabels.from_rankings([[0, 1], [1, 0]], [[1.0, 0.0], [1.0, 0.0]], [[0], []], 2)
    write_figure(tmp_path / "few.svg", pairs, pairs, {"threshold": 0.5}, "two texts")
    assert (tmp_path / "few.svg").stat().st_size > 10_000


@pytest.fixture(scope="module")
def run(encoder_folder, text_file, tmp_path_factory):
    """A run with experts and a blend: its folder, its results and its test file."""
    folder, test_file = tmp_path_factory.mktemp("runs") / "run", text_file("test.jsonl", 40, first=96)
    flags = [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 32, "top_k": 4}', "--use_cpu", "true"),
        *("--train_file", text_file("train.jsonl", 160), "--validation_size", "60", "--metrics_at", "1", "2"),
        *("--module_learning_rates", '{"encoder": 3e-3}', "--learning_rate", "1e-2", "--num_train_epochs", "2"),
    ]
    results = main([*flags, "--test_file", test_file, "--threshold_f", "samples", "--output_dir", str(folder)])
    return folder, results, test_file


def test_a_run_weighs_on_validation_and_judges_on_test(run):
    folder, results, test_file = run
    blend = AutoModel.from_pretrained(folder).config.blend
    assert blend == {name: results["blend"][name] for name in ("weights", "threshold", "f", "beta", "texts")}
    assert (blend["f"], blend["texts"], results["collapsed"]) == ("samples", 60, False)
    rows = rows_of(test_file)
    tag = pipeline("extreme-multi-label-classification", model=str(folder))
    found = tag([row["text"] for row in rows], top_k=LABELS, batch_size=16)
    # Other batches round otherwise; what is that close to a threshold may be given or not.
    measures = []
    for row, labels in zip(rows, found, strict=True):
        for margin in (-1e-5, 1e-5):
            chosen = {label["label"] for label in labels if label["score"] >= blend["threshold"] + margin}
            true = set(row["labels"])
            measures.append((2 * len(chosen & true) / (len(chosen) + len(true)), len(chosen)))
    least, most = np.sort(np.reshape(measures, (40, 2, 2)), axis=1).mean(axis=0)
    judged = [results["probabilities"][name] for name in ("f", "labels_per_text")]
    assert (least - 1e-9 <= judged).all() and (judged <= most + 1e-9).all() and (most - least < 0.05).all()


def test_training_further_fits_another_blend(run, text_file, tmp_path):
    old = AutoModel.from_pretrained(run[0]).config.blend
    texts = ["--train_file", text_file("more.jsonl", 120, first=7), "--validation_size", "50"]
    main(
        [*texts, "--model", str(run[0]), "--num_train_epochs", "1", "--use_cpu", "true", "--output_dir", str(tmp_path)]
    )
    new = AutoModel.from_pretrained(tmp_path).config.blend
    assert new["weights"] != old["weights"] and new["texts"] == 50


def test_a_trained_run_calibrates(run, tmp_path, text_file):
    folder = shutil.copytree(run[0], tmp_path / "model", ignore=shutil.ignore_patterns("checkpoint-*"))
    assert command(["calibrate", str(folder), text_file("other.jsonl", 60, first=300), "--use_cpu", "true"]) == 0
    assert AutoModel.from_pretrained(folder).config.blend["texts"] == 60
