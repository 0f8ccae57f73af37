"""Runs with experts: what is fitted, held out, weighed and kept; budgets of time; models without an encoder."""

import json
import logging
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, pipeline

from glocal_xml.cli.labels import main as edit
from glocal_xml.cli.train import main
from glocal_xml.data import LabelSpace
from glocal_xml.experts import ExpertTexts, log_frequencies, name_texts
from glocal_xml.experts.choose import default_lexical_settings
from glocal_xml.modeling import TextExpertsForMultiLabel
from glocal_xml.runs.experts import held_out_texts, read_label_texts
from glocal_xml.runs.time_plan import has_time, seconds_for_heads
from glocal_xml.training.callbacks import TimeBudget

TASK = "extreme-multi-label-classification"


@pytest.fixture(scope="module")
def flags(encoder_folder, text_file):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"top_k": 4}'),
        *("--train_file", text_file("train.jsonl", 160), "--validation_size", "60"),
        *("--test_file", text_file("test.jsonl", 40, first=160), "--metrics_at", "1", "2"),
        *("--per_device_train_batch_size", "8", "--use_cpu", "true", "--num_train_epochs", "1"),
    ]


@pytest.fixture(scope="module")
def run(flags, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, main([*flags, "--output_dir", str(folder)])


def without(flags, name):
    place = flags.index(name)
    return flags[:place] + flags[place + 2 :]


def test_a_run_reports_heads_experts_and_the_blend(run):
    folder, results = run
    rows = ["blend", "global", "local", "lexical", "memory", "dense", "label frequency"]
    assert list(results["test"]) == rows and list(results["validation"]) == rows
    further = {"lexical_bend", "memory_vote", "dense_vote", "frequency", "bias"}
    assert set(results["blend"]["weights"]) == {*rows[1:6], *further}
    assert results["blend"]["texts"] == 60 and 0 < results["blend"]["threshold"] < 1
    # Texts name their labels, so that a linear model finds them.
    assert results["test"]["lexical"]["precision@1"] > 0.9
    assert results["test"]["blend"]["precision@1"] > 0.9
    assert results["probabilities"]["texts"] == 40
    # Each branch at a threshold of its own, fitted on the same held-out texts.
    alone = results["probabilities"]["branch_f"]
    assert list(alone) == list(results["blend"]["branch_thresholds"]) == rows[1:6]
    assert alone["lexical"] > 0.8 and all(0 <= value <= 1 for value in alone.values())
    model = AutoModel.from_pretrained(folder)
    assert model.config.blend["weights"] == results["blend"]["weights"]
    assert json.loads((folder / "results.json").read_text())["blend"]["texts"] == 60


def test_held_out_texts_join_the_experts_unless_told_not_to(run, flags, tmp_path):
    # All 160 texts, and the names of labels behind them.
    model = AutoModel.from_pretrained(run[0])
    memories = [
        {number: memory.labels_of(row) for row, number in enumerate(memory.text_numbers.tolist()) if number >= 0}
        for memory in (model.memory, model.dense)
    ]
    assert memories[0] == memories[1] and sorted(memories[0]) == list(range(160))
    main([*flags, "--refit_experts", "false", "--output_dir", str(tmp_path / "run")])
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert model.memory.text_numbers.max().item() == model.dense.text_numbers.max().item() == 99


def test_the_best_labels_of_a_loaded_model_are_those_of_the_run(run):
    folder, _ = run
    lines = [json.loads(line) for line in Path(folder, "predictions.jsonl").read_text().splitlines()]
    tag = pipeline(TASK, model=str(folder))
    for line in lines[:8]:
        best = tag(line["text"], top_k=1)[0]
        first = line["predictions"][0]
        assert best["label"] == first["label"] and best["score"] == pytest.approx(first["score"], abs=1e-4)


def test_the_heads_alone_are_one_flag_away(flags, tmp_path):
    flags = without(flags, "--validation_size")
    results = main([*flags, "--experts", "none", "--blend", "false", "--output_dir", str(tmp_path / "run")])
    assert list(results["test"]) == ["both", "global", "local", "label frequency"]
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert not model.text_experts() and model.config.blend is None
    assert results["data"]["texts"]["train"] == 160 and "blend" not in results


@pytest.mark.parametrize("expert", ["lexical", "memory", "dense"])
def test_one_expert_alone(flags, tmp_path, expert):
    results = main([*flags, "--experts", expert, "--output_dir", str(tmp_path / "run")])
    assert list(results["test"]) == ["blend", "global", "local", expert, "label frequency"]


@pytest.fixture(scope="module")
def encoder_free(flags, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "none"
    flags = without(without(flags, "--encoder"), "--num_train_epochs")
    return folder, main([*flags, "--encoder", "none", "--output_dir", str(folder)])


def test_a_model_without_an_encoder_is_a_checkpoint_like_any_other(encoder_free):
    folder, results = encoder_free
    assert list(results["test"]) == ["blend", "lexical", "memory", "label frequency"]
    assert results["test"]["blend"]["precision@1"] > 0.9
    model = AutoModel.from_pretrained(folder)
    assert isinstance(model, TextExpertsForMultiLabel) and model.encoder is None
    assert (folder / "README.md").is_file() and (folder / "label_counts.json").is_file()
    assert len(pipeline(TASK, model=str(folder))("a text", top_k=3)) == 3


def test_it_can_have_an_encoder_later(flags, tmp_path, encoder_folder):
    rest = without(flags, "--encoder")
    first, later = str(tmp_path / "first"), str(tmp_path / "later")
    main([*rest, "--encoder", "none", "--tokenizer", encoder_folder, "--output_dir", first])
    rest = without(rest, "--model_config")
    results = main([*rest, "--model", first, "--encoder", encoder_folder, "--output_dir", later])
    assert list(results["test"]) == ["blend", "global", "local", "lexical", "memory", "dense", "label frequency"]
    assert AutoModel.from_pretrained(later).label_names == AutoModel.from_pretrained(first).label_names


def test_an_encoder_with_other_tokens_is_refused(encoder_free, flags, tmp_path, encoder_folder):
    rest = without(without(flags, "--encoder"), "--model_config")
    with pytest.raises(ValueError, match="count other tokens"):
        main(
            [
                *rest,
                "--model",
                str(encoder_free[0]),
                "--encoder",
                encoder_folder,
                "--output_dir",
                str(tmp_path / "run"),
            ]
        )


def test_training_further_adds_to_the_memory_and_weighs_new_texts(run, flags, tmp_path, text_file):
    before = AutoModel.from_pretrained(run[0])
    more = ["--train_file", text_file("more.jsonl", 120, first=500), "--validation_size", "60"]
    rest = ["--metrics_at", "1", "--use_cpu", "true", "--num_train_epochs", "1"]
    main([*more, *rest, "--model", str(run[0]), "--output_dir", str(tmp_path / "further")])
    after = AutoModel.from_pretrained(tmp_path / "further")
    for memory in ("memory", "dense"):
        assert len(getattr(after, memory).text_numbers) == len(getattr(before, memory).text_numbers) + 60
        assert getattr(after, memory).text_numbers.max() == 219
    torch.testing.assert_close(after.lexical.state_dict(), before.lexical.state_dict())


@pytest.mark.parametrize("first", [20, 500], ids=["known texts", "new texts"])
def test_a_new_label_is_learned_from_some_texts_and_nothing_else_is_forgotten(text_file, tmp_path, first):
    def texts_of_their_own(number, first, more=()):
        path = Path(text_file("rows.jsonl", number, first))
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [
            {"text": f"{row['text']} {100 + i}", "labels": [*row["labels"], *(more if i % 2 else ())]}
            for i, row in enumerate(rows, start=first)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)

    before, added, after = (str(tmp_path / name) for name in ("before", "added", "after"))
    train = ["--metrics_at", "1", "--use_cpu", "true"]
    main([*train, "--encoder", "none", "--train_file", texts_of_their_own(160, 0), "--output_dir", before])
    (tmp_path / "names.txt").write_text("new label\n")
    edit([before, "--add", str(tmp_path / "names.txt"), "--output_dir", added])
    main(
        [*train, "--model", added, "--train_file", texts_of_their_own(30, first, ["new label"]), "--output_dir", after]
    )

    models = [AutoModel.from_pretrained(folder) for folder in (before, after)]
    assert models[0].config.blend == models[1].config.blend
    old, new = (
        {number: model.memory.labels_of(row) for row, number in enumerate(model.memory.text_numbers.tolist())}
        for model in models
    )
    kept = [number for number in old if number in new and number >= 0]
    assert len(kept) == (130 if first == 20 else 160) and max(new) == kept[-1] + 30
    assert all(old[number] == new[number] for number in kept)
    # The last label has weights now, and others keep theirs.
    weights = [model.lexical.tables[-1] for model in models]
    label = models[0].config.num_labels
    assert label in weights[1].rows and torch.equal(weights[1].values[weights[1].rows < label], weights[0].values)


def test_few_texts_have_fixed_weights_and_the_run_says_so(flags, tmp_path, caplog):
    flags = without(flags, "--validation_size")
    with caplog.at_level(logging.WARNING):
        results = main([*flags, "--max_train_texts", "99", "--output_dir", str(tmp_path / "run")])
    assert results["blend"]["texts"] == 0 and "held out" in caplog.text
    assert results["test"]["blend"]["precision@1"] > 0.8


def test_a_budget_of_time_ends_the_training(flags, tmp_path):
    flags = without(flags, "--num_train_epochs")
    results = main([*flags, "--minutes", "0.2", "--output_dir", str(tmp_path / "run")])
    assert results["test"]["blend"]["precision@1"] > 0.9
    assert results["training"]["train_runtime"] < 60


def test_the_rate_follows_the_clock(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("glocal_xml.training.callbacks.time.monotonic", lambda: now[0])
    budget = TimeBudget(100.0, warmup=0.1)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = budget.scheduler(optimizer)
    budget.started, budget.max_steps = 0.0, 10**6
    rates = {}
    for second in (5, 10, 55, 100, 130):
        now[0] = float(second)
        scheduler.step()
        rates[second] = optimizer.param_groups[0]["lr"]
    assert rates == pytest.approx({5: 0.5, 10: 1.0, 55: 0.5, 100: 0.0, 130: 0.0})


def test_time_that_passes_before_training_is_part_of_the_budget(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("glocal_xml.training.callbacks.time.monotonic", lambda: now[0])
    budget = TimeBudget(50.0, warmup=0.1)
    state, control = SimpleNamespace(max_steps=10**6, global_step=1), SimpleNamespace(should_training_stop=False)
    now[0] = 1020.0
    budget.on_train_begin(None, state, control)
    assert budget.seconds == 30
    for second, is_over in ((1049.9, False), (1050.0, True)):
        now[0] = second
        budget.on_step_end(None, state, control)
        assert control.should_training_stop == is_over
    # Experts took all of it: hardly any training is left.
    assert TimeBudget(-20.0, warmup=0.1).seconds == 1


@pytest.mark.parametrize(
    ("seconds", "refit", "prediction", "heads"),
    [(600, 30, 8, 560), (60, 0, 8, 50), (40, 30, 8, 30), (70, 30, 8, 30), (5, 30, 8, 1), (-20, 30, 8, 1)],
)
def test_heads_get_what_the_rest_of_a_run_leaves(seconds, refit, prediction, heads):
    assert seconds_for_heads(seconds, refit, prediction) == heads
    if heads > 1:
        # All phases fit, where the experts are fitted again only if there is time.
        spent = heads + prediction + 2
        assert spent <= seconds and (spent + refit <= seconds or refit > (seconds - prediction - 2) / 2)


def test_experts_are_fitted_again_only_within_the_budget(monkeypatch):
    monkeypatch.setattr("glocal_xml.runs.time_plan.time.time", lambda: 1040.0)
    args = SimpleNamespace(minutes=1)
    assert has_time(args, started=1000.0, seconds=21) and not has_time(args, started=1000.0, seconds=22)
    assert has_time(SimpleNamespace(minutes=None), started=0.0, seconds=10**6)


@pytest.mark.parametrize(("texts", "held_out"), [(99, None), (100, 50), (499, 50), (5000, 500), (10**6, 1000)])
def test_how_many_texts_are_held_out(texts, held_out):
    assert held_out_texts(texts) == held_out


@pytest.mark.parametrize(("texts", "held_out"), [(499, None), (500, 50)])
def test_few_new_texts_leave_a_blend_as_it_is(texts, held_out):
    assert held_out_texts(texts, has_blend=True) == held_out


def test_names_of_labels_from_a_table(tmp_path):
    path = tmp_path / "names.tsv"
    path.write_text("a1\tplug-in hybrid\tPHEV; hybrid car\t17\nb2\t\nc3\tmemristor\n", encoding="utf-8")
    assert read_label_texts(str(path)) == {
        "a1": ["plug-in hybrid", "PHEV", "hybrid car"],
        "b2": [],
        "c3": ["memristor"],
    }
    path.write_text("a1 no tab\n", encoding="utf-8")
    with pytest.raises(ValueError, match="line 1: there must be a tab"):
        read_label_texts(str(path))


def test_names_of_other_labels_are_refused(tokenizer):
    with pytest.raises(ValueError, match="names none of the labels: it has 'apple' and others, the texts have 'A1'"):
        name_texts(["A1"], tokenizer, [], {"apple": ["A1"]})


def test_frequencies_are_logs_of_shares():
    space = LabelSpace(["a", "b"], [8, 0], 8)
    np.testing.assert_allclose(np.exp(log_frequencies(space)), [0.9, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--experts", "oracle"], "among lexical, memory, dense and none"),
        (["--minutes", "0"], "`minutes` must be above 0"),
        (["--threshold_f", "mean"], "`threshold_f` must be one of"),
    ],
)
def test_slips_are_named(flags, tmp_path, wrong, message):
    with pytest.raises((ValueError, SystemExit), match=message):
        main([*flags, *wrong, "--output_dir", str(tmp_path)])


def test_a_trained_model_is_not_given_an_encoder_to_evaluate(encoder_free, encoder_folder, text_file, tmp_path):
    other = ["--test_file", text_file("test.jsonl", 8), "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="not both"):
        main([*other, "--model", str(encoder_free[0]), "--encoder", encoder_folder])


def test_no_encoder_and_no_expert_is_no_model(flags, tmp_path):
    with pytest.raises(ValueError, match="needs `--experts lexical`, `memory` or both"):
        main([*without(flags, "--encoder"), "--encoder", "none", "--experts", "none", "--output_dir", str(tmp_path)])


@pytest.mark.parametrize(("sign", "is_told"), [("\U0001f389", True), ("apple", False)])
def test_texts_that_the_tokenizer_cannot_read_are_named(flags, tmp_path, encoder_folder, caplog, sign, is_told):
    rows = [{"text": f"dog {sign} {sign}", "labels": [f"is {i % 2}"]} for i in range(8)]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    files = ["--train_file", str(tmp_path / "train.jsonl"), "--output_dir", str(tmp_path / "run")]
    main([*files, "--encoder", "none", "--tokenizer", encoder_folder, "--use_cpu", "true"])
    assert ("67 % of the tokens of the training texts are unknown to the tokenizer" in caplog.text) == is_told


def test_tokenizers_of_experts_read_any_length(encoder_free):
    assert AutoTokenizer.from_pretrained(encoder_free[0]).model_max_length > 10**9


@pytest.mark.parametrize(
    ("labels", "texts", "has_pairs"), [(87, 1000, True), (5000, 1000, True), (5001, 1000, False), (87, 60_000, False)]
)
def test_pairs_of_tokens_only_where_they_take_seconds(labels, texts, has_pairs):
    rows = [np.zeros(100, dtype=np.int32)] * texts
    settings = default_lexical_settings(ExpertTexts(rows, [[0]] * texts), labels)
    assert (settings["pairs"] > 0) is has_pairs


def test_training_further_warns_where_held_out_texts_may_be_known(flags, tmp_path, caplog):
    first, later = str(tmp_path / "first"), str(tmp_path / "later")
    main([*flags, "--experts", "lexical", "--output_dir", first])
    rest = without(without(flags, "--encoder"), "--model_config")
    with caplog.at_level(logging.WARNING):
        main([*rest, "--model", first, "--output_dir", later])
    assert "the blend trusts it too much" in caplog.text


def write_numbered(path, numbers):
    """Texts of rare tokens, so that each is similar to itself alone."""
    words = ["red", "green", "blue", "grey"]
    rows = [{"text": f"{words[i % 4]} {i * 7919} {i * 104729}", "labels": [words[i % 4]]} for i in numbers]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_known_texts_are_not_used_to_weigh_the_memory(tmp_path, caplog):
    old, new = (write_numbered(tmp_path / f"{start}.jsonl", range(start, start + 100)) for start in (100, 1000))
    options = ["--metrics_at", "1", "--use_cpu", "true"]
    first = ["--encoder", "none", "--train_file", old, "--output_dir", str(tmp_path / "first")]
    main([*first, *options, "--validation_size", "0"])
    again = ["--model", str(tmp_path / "first"), "--train_file", new, "--validation_file", old]
    with caplog.at_level(logging.WARNING):
        results = main([*again, *options, "--output_dir", str(tmp_path / "again")])
    assert "validation" not in results and results["blend"]["texts"] == 0
    assert "No texts are held out" in caplog.text
    assert AutoModel.from_pretrained(tmp_path / "again").memory.text_numbers.max().item() == 199


def test_a_frozen_encoder_trains_the_head_alone(flags, tmp_path, encoder_folder, caplog):
    flags = without(without(flags, "--num_train_epochs"), "--model_config")
    with caplog.at_level(logging.INFO):
        results = main([*flags, "--frozen_encoder", "true", "--output_dir", str(tmp_path / "run")])
    assert list(results["test"]) == ["blend", "global", "lexical", "memory", "dense", "label frequency"]
    assert results["training"]["epochs"] == 10 and "head: 10 epochs over embeddings" in caplog.text
    curve = [loss for _, loss in results["training"]["loss_curve"]]
    assert len(curve) == 10 and curve[-1] < curve[0]
    model, encoder = AutoModel.from_pretrained(tmp_path / "run"), AutoModel.from_pretrained(encoder_folder)
    kept = encoder.state_dict()
    assert all(torch.equal(value, kept[name]) for name, value in model.encoder.state_dict().items())
    # The memory is made of the embeddings that the head was trained on, and of the held-out texts.
    assert sorted(set(model.dense.text_numbers.tolist()) - {-1}) == list(range(160))
    assert "10 epochs in" in (tmp_path / "run" / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (["--model_config", '{"branches": "both"}'], "has the branches global, local"),
        (["--model_type", "me_xml"], "has the branches A-1"),
    ],
)
def test_a_frozen_encoder_needs_a_head_over_embeddings(flags, tmp_path, wrong, message):
    flags = [*without(flags, "--model_config"), "--frozen_encoder", "true", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match=message):
        main([*flags, *wrong])


@pytest.mark.parametrize(("few", "least", "frozen"), [(10**9, 0.06, True), (0, 0.06, False), (10**9, 10**9, False)])
def test_a_budget_freezes_the_encoder_where_labels_have_few_texts_and_enough_can_be_read(
    flags, tmp_path, encoder_folder, monkeypatch, few, least, frozen, caplog
):
    monkeypatch.setattr("glocal_xml.runs.time_plan._FEW_POSITIVES", few)
    monkeypatch.setattr("glocal_xml.runs.time_plan._LEAST_READ", least)
    # A sentence encoder: its embeddings are of use as they are.
    encoder = shutil.copytree(encoder_folder, tmp_path / "encoder")
    (encoder / "1_Pooling").mkdir()
    (encoder / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    (encoder / "modules.json").write_text('[{"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]')
    flags = without(without(without(flags, "--num_train_epochs"), "--model_config"), "--encoder")
    options = ["--encoder", str(encoder), "--minutes", "0.2", "--output_dir", str(tmp_path / "run")]
    with caplog.at_level(logging.INFO):
        results = main([*flags, *options])
    assert ("the encoder stays as it is" in caplog.text) == frozen == ("train_runtime" not in results["training"])
    assert results["test"]["blend"]["precision@1"] > 0.9 and ("local" in results["test"]) != frozen
