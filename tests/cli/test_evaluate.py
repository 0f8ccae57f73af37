"""`glocal-xml evaluate`: what it prints, what it keeps, and what it says of models that are none."""

import json
import shutil
from pathlib import Path

import pytest

from glocal_xml import fit
from glocal_xml.cli import main
from glocal_xml.data import read_rows


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_a_table_or_json_and_no_folder_unless_asked_for(model_folder, text_file, tmp_path, capsys):
    test_file = text_file("test.jsonl", 6)
    arguments = ["evaluate", model_folder, test_file, "--metrics_at", "1", "3", "--use_cpu", "true"]
    assert main(arguments) == 0
    table = capsys.readouterr().out.splitlines()
    assert table[0] == f"{test_file}, 6 texts"
    assert [line.split("  ")[0] for line in table[2:6]] == ["both", "global", "local", "label frequency"]
    assert list(tmp_path.iterdir()) == []
    assert main([*arguments, "--json", "--output_dir", "kept"]) == 0
    printed = json.loads(capsys.readouterr().out)
    kept = json.loads(Path("kept/results.json").read_text(encoding="utf-8"))
    assert printed == {"texts": 6, **kept["test"]}
    assert f"{100 * printed['both']['precision@3']:.2f}" == table[2].split()[2]
    assert len(Path("kept/predictions.jsonl").read_text().splitlines()) == 6


@pytest.mark.parametrize("kind", ["heads", "experts"])
def test_a_stream_has_the_metrics_of_the_file(kind, model_folder, text_file, tmp_path, capsys):
    test_file = text_file("test.jsonl", 6)
    if kind == "experts":
        rows = list(read_rows(test_file))
        model_folder = str(tmp_path / "experts")
        fit([row["text"] for row in rows], [row["labels"] for row in rows], encoder=None, output_dir=model_folder)
    arguments = ["evaluate", model_folder, test_file, "--metrics_at", "1", "3", "--use_cpu", "true"]
    capsys.readouterr()
    assert main(arguments) == 0
    whole = capsys.readouterr().out
    assert main([*arguments, "--streaming", "true"]) == 0
    assert capsys.readouterr().out == whole


def broken(model_folder, name):
    """A copy of the model with something wrong."""
    folder = Path(name)
    shutil.copytree(model_folder, folder)
    weights = folder / "model.safetensors"
    if name == "half":
        weights.write_bytes(weights.read_bytes()[:1000])
    elif name == "none":
        weights.unlink()
    elif name == "larger":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "value_size": 9}))
    elif name == "parent":
        shutil.rmtree(folder)
        shutil.copytree(model_folder, folder / "checkpoint-7")
    elif name == "garbled":
        (folder / "config.json").write_text("{")
    elif name == "tokenless":
        (folder / "tokenizer.json").unlink()
    return str(folder)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("half", "half cannot be loaded: model.safetensors is cut off"),
        ("none", "none cannot be loaded: Error no file named model.safetensors"),
        ("larger", "larger cannot be loaded: "),
        ("parent", "parent is no model, since it has no config.json; one of the folders in it may be: checkpoint-7"),
        ("garbled", "garbled cannot be loaded: It looks like the config file at"),
        ("tokenless", "tokenless has no words for its tokenizer"),
        ("encoder", "is a model of the type bert, but those of this package are glocal_xml"),
        ("file", "is a file, but a model is a folder"),
        ("a/b/c", "There is no model folder a/b/c"),
        ("user/nothing", "There is no folder user/nothing, nor a Hub model: "),
    ],
)
def test_models_that_are_none(model_folder, encoder_folder, text_file, capsys, name, message):
    test_file = text_file("test.jsonl", 2)
    if name == "encoder":
        model = encoder_folder
    elif name == "file":
        model = test_file
    else:
        model = name if "/" in name else broken(model_folder, name)
    for arguments in (["evaluate", model, test_file, "--use_cpu", "true"], ["predict", model, test_file]):
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert message in err and err.splitlines()[-1].startswith("glocal-xml: error: ") and out == ""


def test_mistakes_are_named(model_folder, text_file, tmp_path, capsys):
    test_file = text_file("test.jsonl", 2)
    for arguments, message in {
        ("missing.jsonl",): "missing.jsonl does not exist",
        (model_folder,): "is a folder, not a file",
        (test_file, "--metric_at", "1"): "did you mean --metrics_at?",
        (test_file, "--metrics_at", "one"): "invalid int value: 'one'; see `glocal-xml evaluate --help`",
        (test_file, "--train_file", test_file): "unrecognized arguments: --train_file",
        (test_file, "--labels_column", "tags"): "missing field 'tags'",
    }.items():
        assert main(["evaluate", model_folder, *arguments]) == 2
        assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
