"""`glocal-xml reproduce`: what is checked, what is done again, what is compared, and what it says before it starts."""

import hashlib
import json
import shlex
import shutil

import pytest
from tiny_tables import NUM_LABELS, SIZES, write_aplc, write_jsonl, write_pairs, write_sets

from glocal_xml.cli import main as command
from glocal_xml.cli.reproduce import main
from glocal_xml.reproduce.data_check import check_data, data_files, find_files
from glocal_xml.reproduce.reproduce import compare, runs_of_table
from glocal_xml.reproduce.table_recipe import merged, read_table
from glocal_xml.runs import run_once
from glocal_xml.training import DataArguments, parse_arguments
from glocal_xml.training.run_facts import run_settings

QUICK = ["--max_steps", "2", "--use_cpu"]


@pytest.fixture(scope="module")
def workplace(papers_encoders):
    folder = papers_encoders(2)
    write_sets(folder)
    return folder


@pytest.fixture
def in_workplace(workplace, monkeypatch):
    monkeypatch.chdir(workplace)
    return workplace


def published_sizes(folder, **changes):
    """The data of a folder, and what a paper would say of it."""
    sizes = {"train_texts": SIZES["train"], "test_texts": SIZES["test"], "labels": NUM_LABELS, "labels_per_text": 20.0}
    recipe = read_table("glocal_xml/eurlex4k")
    return DataArguments(**find_files(str(folder))), type(recipe.data)("Set", "set", **(sizes | changes))


def test_data_as_published(tmp_path):
    write_pairs(tmp_path)
    lines, warnings = check_data(*published_sizes(tmp_path))
    assert warnings == []
    for part in ("train", "test"):
        for name in (f"{part}_raw_texts.txt", f"{part}_labels.txt"):
            digest = hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
            assert f"sha256 {digest}  {tmp_path / name}" in lines
    assert f"{tmp_path / 'train_raw_texts.txt'}: 24 texts, read as text_pair" in lines


def test_other_sizes_are_warnings_with_both_numbers(tmp_path):
    write_jsonl(tmp_path)
    lines, warnings = check_data(*published_sizes(tmp_path, train_texts=15539, labels=3956, labels_per_text=5.3))
    assert warnings == [
        "Set: train texts are 24 here and 15,539 in the paper",
        "Set: labels are 400 here and 3,956 in the paper",
        "Set: labels per text are 20.0 here and 5.3 in the paper",
    ]


def test_labels_of_test_texts_alone_are_counted(tmp_path):
    write_jsonl(tmp_path)
    with open(tmp_path / "test.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps({"text": "another", "labels": ["seen nowhere else"]}) + "\n")
    lines, warnings = check_data(*published_sizes(tmp_path, labels=NUM_LABELS + 1, test_texts=SIZES["test"] + 1))
    assert warnings == [] and "401 labels, 1 of them in test texts alone" in lines


def test_files_are_found_by_the_names_of_public_copies(tmp_path):
    with pytest.raises(ValueError, match=r"holds no data set: .*train\.csv and dev\.csv.*--data_dir"):
        find_files(str(tmp_path))
    write_aplc(tmp_path)
    assert find_files(str(tmp_path)) == {
        "train_file": str(tmp_path / "train.csv"),
        "test_file": str(tmp_path / "dev.csv"),
    }
    recipe = read_table("glocal_xml/eurlex4k")
    assert data_files(recipe, str(tmp_path), "a.txt", "b.txt") == {"train_file": "a.txt", "test_file": "b.txt"}
    with pytest.raises(ValueError, match="both `--train_file` and `--test_file`"):
        data_files(recipe, str(tmp_path), "a.txt")


def test_resumes_and_does_nothing_twice(in_workplace, tmp_path, monkeypatch, caplog, capsys):
    argv = ["glocal_xml/eurlex4k", *QUICK, "--output_dir", str(tmp_path)]
    (some,) = {row.run for row in main([*argv, "--members", "bert"]) if row.measured is not None}
    assert some == "bert" and not (tmp_path / "ensemble").exists()
    with caplog.at_level("INFO"):
        rows = main(argv)
    assert caplog.text.count("done before") == 1
    ensemble = json.loads((tmp_path / "ensemble" / "results.json").read_text())
    assert list(ensemble["test"]) == ["ensemble", "bert", "roberta", "xlnet"]
    by_run = {(row.run, row.branch, row.metric): row for row in rows}
    assert by_run["ensemble", "ensemble", "precision@1"].measured == 100 * ensemble["test"]["ensemble"]["precision@1"]
    assert by_run["ensemble", "ensemble", "precision@1"].published == 90.32
    local = json.loads((tmp_path / "roberta" / "results.json").read_text())["test"]["local"]
    assert by_run["roberta", "local", "precision@5"].measured == 100 * local["precision@5"]
    assert by_run["bert", "both", "precision@3"].published is None
    # A member that lost its results is trained again, and no other.
    (tmp_path / "xlnet" / "results.json").unlink()
    trained = []
    run = run_once.run
    monkeypatch.setattr(run_once, "run", lambda *arguments: trained.append(arguments[2].output_dir) or run(*arguments))
    assert main(argv) == rows and trained == [str(tmp_path / "xlnet")]
    assert command(["reproduce", *argv, "--learning_rate", "0.5"]) == 2
    assert "other settings (--learning_rate)" in capsys.readouterr().err and len(trained) == 1


def test_dry_run_shows_commands_that_do_the_same(in_workplace, monkeypatch, capsys):
    monkeypatch.setattr(run_once, "run", lambda *arguments: pytest.fail("a dry run trains"))
    flags = ["--num_train_epochs", "3"]
    assert main(["glocal_xml/eurlex4k", "--dry-run", *flags]) == []
    shown = capsys.readouterr().out
    commands = [shlex.split(line) for line in shown.splitlines() if line.startswith("glocal-xml ")]
    recipe = read_table("glocal_xml/eurlex4k")
    output = "outputs/reproduce/glocal_xml/eurlex4k"
    runs = runs_of_table(recipe, data_files(recipe, None), output, flags)
    for words, (_, arguments) in zip(commands, runs.values(), strict=False):
        assert words[:2] == ["glocal-xml", "train"]
        assert run_settings(*parse_arguments(words[2:])) == run_settings(*arguments)
        assert arguments[2].num_train_epochs == 3
    assert commands[3][1:5] == ["ensemble", *(f"{output}/{name}" for name in ("bert", "roberta", "xlnet"))]
    assert commands[3][5:7] == ["--test_file", "data/eurlex4k/dev.csv"]
    assert shown.count("GB of memory") == 3 and shown.count("on the CPUs of this machine") == 3


def test_dry_run_without_data_and_of_what_cannot_be_estimated(in_workplace, tmp_path, capsys):
    shutil.copytree("roberta-base", tmp_path / "roberta-base")
    main(["glocal_xml/eurlex4k_layers", "--data_dir", str(tmp_path), "--dry-run"])
    shown = capsys.readouterr().out
    assert f"{tmp_path} holds no data set" in shown and f"--train_file {tmp_path}/train.jsonl" in shown
    assert "layers: 3 points, " in shown and "glocal-xml analyse layers --" in shown
    main(["attention_xml/eurlex4k", "--dry-run"])
    assert "memory and time are not known (What word_lstm takes is not known here" in capsys.readouterr().out


def test_a_recipe_of_your_own(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "like: glocal_xml/eurlex4k\npaper: mine\nshared: {max_length: 64, model_config: {use_pooler: null}}\n"
        "members: {small: {encoder: minilm, model_config: {local_layer: 2}}}\n"
        "published: [{run: small, where: nowhere, precision@1: 50.0}]\n"
    )
    recipe = read_table(str(path))
    assert recipe.name == "mine" and recipe.data.labels == 3956
    assert recipe.settings("small")["model_config"] == {
        "attention_scoring": "mlp",
        "label_bias": False,
        "local_layer": 2,
    }
    (row,) = compare(recipe, {"small": {"both": {"precision@1": 0.6}, "global": {"precision@1": 0.1}}})
    assert row.cells() == ["small", "both", "precision@1", "60.00", "50.00", "+10.00", "nowhere"]
    assert merged({"a": {"b": 1, "c": 2}}, {"a": {"b": None}, "d": 3}) == {"a": {"c": 2}, "d": 3}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("like: glocal_xml/eurlex4k\npaper: x\nmember: {}", "got data, paper, member, shared"),
        (
            "like: glocal_xml/eurlex4k\nmembers: {a: {}}",
            "has paper, data, shared and some of members, study, ensemble, published and like",
        ),
        ("like: glocal_xml/eurlex4k\npaper: x", "either `members` or a `study`"),
        ("paper: x\ndata: {name: a}\nshared: {}\nmembers: {a: {}}", "`data` must have"),
        ("like: glocal_xml/eurlex4k\npaper: x\nmembers: {a: {}}\npublished: [{run: a}]", "published numbers have"),
        (
            "like: glocal_xml/eurlex4k\npaper: x\nmembers: {a: {}}\npublished: [{run: b, where: c, precision@1: 1}]",
            "published numbers of 'b'",
        ),
        ("like: nothing/there", "There is no recipe nothing/there"),
    ],
)
def test_broken_recipes_are_refused(content, message, tmp_path):
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_table(str(path))


def test_mistakes_are_one_line(in_workplace, capsys):
    assert command(["reproduce", "glocal/eurlex4k"]) == 2
    assert "did you mean glocal_xml/eurlex4k?" in capsys.readouterr().err
    assert command(["reproduce", "glocal_xml/eurlex4k", "--members", "gpt"]) == 2
    assert "no member 'gpt'; the members are bert, roberta, xlnet" in capsys.readouterr().err
    assert command(["reproduce", "glocal_xml/eurlex4k", "--data_dir", "nowhere"]) == 2
    assert "nowhere holds no data set" in capsys.readouterr().err
