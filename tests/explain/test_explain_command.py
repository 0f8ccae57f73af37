import io
import json
import sys

import pytest
from blended_models import blended_model
from tiny_model import save_tiny_model

from glocal_xml.cli import main


@pytest.fixture(scope="module")
def model_folder(encoder_folder, tokenizer, tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model"), encoder_folder, tokenizer)


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.csv"
    path.write_text('id,body\n1,"apple, moon"\n2,fox\n', encoding="utf-8")
    return str(path)


def test_text_on_standard_output(model_folder, capsys):
    assert main(["explain", model_folder, "--text", "apple moon", "--top_k", "2", "--num_words", "1"]) == 0
    title, *lines = capsys.readouterr().out.splitlines()
    assert title == "apple moon" and "what it adds to the label's logit" in lines[2]
    assert all("adds: " in line and "by attention" in line and "\x1b" not in line for line in lines[:2])


def test_colours_on_a_terminal_alone(model_folder, capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["explain", model_folder, "--text", "apple"])
    assert "\x1b[1m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["explain", model_folder, "--text", "apple"])
    assert "\x1b" not in capsys.readouterr().out


def test_a_file_as_json_and_page(model_folder, texts, tmp_path, capsysbinary):
    flags = ["explain", model_folder, texts, "--text_column", "body", "--labels", "x"]
    assert main([*flags, "--format", "json"]) == 0
    rows = [json.loads(line) for line in capsysbinary.readouterr().out.splitlines()]
    assert [row["text"] for row in rows] == ["apple, moon", "fox"]
    assert [[label["label"] for label in row["labels"]] for row in rows] == [["x"], ["x"]]
    assert main([*flags, "--format", "html", "--output", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text(encoding="utf-8").count("<article>") == 2
    assert main([*flags, "--output", str(tmp_path / "page.txt")]) == 0
    assert (tmp_path / "page.txt").read_text(encoding="utf-8").count("adds: ") == 2
    # What the numbers are is said once.
    assert (tmp_path / "page.txt").read_text(encoding="utf-8").count("speaks for the") == 1


@pytest.mark.parametrize("file", [[], ["-"]])
def test_standard_input(model_folder, file, monkeypatch, capsys):
    lines = io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"apple\nfox moon\n")))
    monkeypatch.setattr(sys, "stdin", lines)
    assert main(["explain", model_folder, *file, "--top_k", "1"]) == 0
    assert [part.splitlines()[0] for part in capsys.readouterr().out.split("\n\n")] == ["apple", "fox moon"]


def test_figure(model_folder, texts, tmp_path, capsys):
    picture = tmp_path / "words.png"
    flags = ["explain", model_folder, "--labels", "x", "--format", "figure", "--output", str(picture)]
    assert main([*flags, "--text", "apple moon"]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*flags, texts, "--text_column", "body"]) == 2
    assert "one text, got 2" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "start"), [("a.html", b"<!DOCTYPE html>"), ("a.json", b"{"), ("a.txt", b"apple")])
def test_the_name_of_the_output_says_its_format(model_folder, tmp_path, name, start):
    assert main(["explain", model_folder, "--text", "apple", "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["texts.txt", "--text", "x"], "leave out texts.txt"),
        (["missing.txt"], "missing.txt does not exist"),
        (["--text", "x", "--format", "figure"], "needs a file"),
        (["--text", "x", "--output", "missing/page.html"], "does not exist"),
        (["--text", "x", "--labels", "unknown"], "no labels ['unknown']; its `labels.txt` lists those it has"),
        (["--text", "x", "--output", "words.xlsx"], "words.xlsx: explanations are written as .txt, "),
        (["--text", "x", "--branch", "global"], "must be one of local"),
        (["--text", "x", "--top_k", "0"], "top_k"),
    ],
)
def test_a_mistake_is_one_line(model_folder, flags, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["explain", model_folder, *flags]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and len(error.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_an_encoder(tokenizer, tmp_path, capsys):
    folder = tmp_path / "model"
    blended_model("no encoder", tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    text = "apple moon fox"
    assert main(["explain", str(folder), "--text", text, "--top_k", "2"]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{text}\n") and out.count("adds: ") == out.count(" = logit ") == 2
    assert "(label frequency)" in out and "sigmoid is the score" in " ".join(out.split())
    for form, start in {"html": b"<!DOCTYPE html>", "json": b"{", "figure": b"\x89PNG"}.items():
        file = tmp_path / f"words.{form}"
        name = file.with_suffix(".png") if form == "figure" else file
        assert main(["explain", str(folder), "--text", text, "--format", form, "--output", str(name)]) == 0
        assert name.read_bytes().startswith(start)
    assert main(["explain", str(folder), "--text", text, "--branch", "local"]) == 2
    assert "must be one of blend" in capsys.readouterr().err


@pytest.mark.parametrize("length", ["-1", "0", "2", "9" * 30])
def test_lengths_that_make_no_sense_are_refused(model_folder, length, capsys):
    assert main(["explain", model_folder, "--text", "apple", "--max_length", length]) == 2
    assert "`--max_length` is" in capsys.readouterr().err
