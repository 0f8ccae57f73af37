"""`glocal-xml labels`, and training that continues with the new labels."""

import json
import logging

import pytest
from transformers import AutoModel

from glocal_xml import fit
from glocal_xml.cli import main
from glocal_xml.data import LabelSpace


@pytest.fixture(scope="module")
def trained(encoder_folder, text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "run"
    flags = ["--encoder", encoder_folder, "--model_config", '{"mlp_size": 16, "label_bias": true}']
    flags += ["--train_file", text_file("train.jsonl", 40), "--max_steps", "2", "--use_cpu", "true"]
    assert main(["train", *flags, "--output_dir", str(folder)]) == 0
    return folder


def test_edit_then_train_further(trained, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    before = LabelSpace.load(trained)
    (tmp_path / "add.txt").write_text("is queen\nis ocean\n", encoding="utf-8")
    (tmp_path / "remove.txt").write_text("is fox\n", encoding="utf-8")
    (tmp_path / "rename.tsv").write_text("is dog\tis hound\n\n", encoding="utf-8")
    edits = [f(name) for name in ("add", "remove") for f in (lambda n: f"--{n}", lambda n: str(tmp_path / f"{n}.txt"))]
    edited = tmp_path / "edited"
    command = ["labels", str(trained), *edits, "--rename", str(tmp_path / "rename.tsv"), "--output_dir", str(edited)]
    assert main(command) == 0
    assert "'is queen' starts as 'is" in caplog.text
    after = LabelSpace.load(edited)
    assert after.num_labels == before.num_labels + 1 and after.names[-2:] == ["is queen", "is ocean"]
    assert "is hound" in after.names and not {"is dog", "is fox"} & set(after.names)
    assert AutoModel.from_pretrained(edited).label_names == after.names
    assert main(command) == 2

    rows = [
        {"text": "queen paper", "labels": ["is queen"]},
        {"text": "apple ocean", "labels": ["is ocean", "is apple"]},
    ]
    more = tmp_path / "more.jsonl"
    more.write_text("".join(json.dumps(row) + "\n" for row in 4 * rows), encoding="utf-8")
    further = ["train", "--model", str(edited), "--train_file", str(more), "--use_cpu", "true"]
    assert main([*further, "--num_train_epochs", "1", "--output_dir", str(tmp_path / "more")]) == 0
    total = LabelSpace.load(tmp_path / "more")
    added = [count - old for count, old in zip(total.counts, after.counts, strict=True)]
    assert total.num_texts == after.num_texts + 8
    assert {name: n for name, n in zip(total.names, added, strict=True) if n} == {
        "is queen": 4,
        "is ocean": 4,
        "is apple": 4,
    }


def test_who_adds_a_label_without_heads_is_told_what_finds_it(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    folder, file = str(tmp_path / "experts"), tmp_path / "add.txt"
    fit(["apple dog", "fox dog"], [["is apple"], ["is fox"]], encoder=None, output_dir=folder)
    file.write_text("is foxes\n", encoding="utf-8")
    assert main(["labels", folder, "--add", str(file), "--output_dir", str(tmp_path / "edited")]) == 0
    assert "glocal-xml memory --add" in caplog.text and "starts as" not in caplog.text


def test_mistakes_are_one_line(trained, tmp_path, capsys):
    (tmp_path / "rename.tsv").write_text("is dog is hound\n", encoding="utf-8")
    command = ["labels", str(trained), "--output_dir", str(tmp_path / "edited")]
    assert main([*command, "--rename", str(tmp_path / "rename.tsv")]) == 2
    assert "line 1: 'is dog is hound' must be" in capsys.readouterr().err
    assert main(command) == 2
    assert "No change" in capsys.readouterr().err
    more = tmp_path / "more.jsonl"
    more.write_text('{"text": "queen", "labels": ["is queen"]}\n', encoding="utf-8")
    assert (
        main(["train", "--model", str(trained), "--train_file", str(more), "--output_dir", str(tmp_path / "x")]) == 2
    )
    assert "`glocal-xml labels --add`" in capsys.readouterr().err
