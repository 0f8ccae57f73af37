"""`glocal-xml predict`, from files and pipes to rows."""

import csv
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from close_rankings import assert_best
from transformers import pipeline

from glocal_xml.cli import main
from glocal_xml.data import BadRows, read_rows
from glocal_xml.tagged_rows import tagged_rows

TEXTS = ["apple dog moon", "fox", "", "green house kite lemon moon night", "banana cherry", "queen paper ocean"]


@pytest.fixture(scope="session")
def expected(model_folder):
    """What the pipeline says of one text at a time; nothing of an empty one."""
    pipe = pipeline("extreme-multi-label-classification", model=model_folder, device="cpu")
    return lambda text, **options: pipe(text, **options) if text.strip() else []


@pytest.fixture
def predict(model_folder, capsys, monkeypatch):
    """Runs the command with some standard input, and gives the rows it wrote to standard output."""

    def run(*options, given: bytes = b"", code: int = 0):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(given))))
        assert main(["predict", model_folder, "--device", "cpu", *options]) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return err if code else [json.loads(line) for line in out.splitlines()]

    return run


def check(rows, texts, expected, **options):
    assert [row["text"] for row in rows] == texts
    for row in rows:
        assert len(row["predictions"]) == len(expected(row["text"], **options))
        # The command reads texts of several lengths at once.
        everything = options | {"threshold": 0.0, "top_k": 8, "branch_scores": True}
        assert_best(row["predictions"], expected(row["text"], **everything))


def test_lines_from_a_pipe(predict, expected):
    rows = predict("--top_k", "3", "--batch_size", "2", given="\n".join(TEXTS).encode())
    check(rows, TEXTS, expected, top_k=3)
    assert len({tuple(item["label"] for item in row["predictions"]) for row in rows}) > 2, "texts differ"


@pytest.mark.parametrize(
    "options", [{"threshold": 0.6}, {"candidate_labels": ["is cherry", "is dog", "is elephant"]}, {"windows": "max"}]
)
def test_options_reach_the_pipeline(predict, expected, tmp_path, options):
    (tmp_path / "names.txt").write_text("is cherry\n is dog \n\nis dog\nis elephant\n", encoding="utf-8")
    ((name, value),) = options.items()
    flag = str(tmp_path / "names.txt") if name == "candidate_labels" else str(value)
    check(predict(f"--{name}", flag, given="\n".join(TEXTS).encode()), TEXTS, expected, top_k=5, **options)


def test_rows_keep_what_they_hold(predict, expected, tmp_path):
    rows = [{"id": i, "text": text, "labels": ["x"], "predictions": "old"} for i, text in enumerate(TEXTS)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    tagged = predict(str(path), "--branch_scores")
    check(tagged, TEXTS, expected, top_k=5)
    assert [(row["id"], row["labels"]) for row in tagged] == [(i, ["x"]) for i in range(len(TEXTS))]
    for item in tagged[0]["predictions"]:
        assert item["score"] == pytest.approx(sum(item["branch_scores"].values()) / 2, abs=1e-5)


def test_one_text(predict, expected):
    check(predict("--text", "apple"), ["apple"], expected, top_k=5)
    assert "not both" in predict("--text", "apple", "file.txt", code=2)


@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
def test_a_table_for_spreadsheets(predict, expected, tmp_path, ending):
    (tmp_path / "in.csv").write_text('title,n\n"=a, b",1\nfox,2\n', encoding="utf-8")
    path = tmp_path / f"out.{ending}"
    options = ("--text-column", "title", "--top-k", "2", "--threshold", "0.5", "--branch_scores")
    assert predict(str(tmp_path / "in.csv"), *options, "--output", str(path)) == []
    content = path.read_bytes() if ending == "csv" else gzip.decompress(path.read_bytes())
    lines = io.StringIO(content.decode("utf-8-sig"), newline="")
    rows = list(csv.DictReader(lines, delimiter="," if ending == "csv" else "\t"))
    numbered = [f"{name}_{i}" for i in (1, 2) for name in ("label", "score", "global", "local")]
    assert list(rows[0]) == ["title", "n", *numbered]
    assert [row["title"] for row in rows] == ["'=a, b", "fox"]
    for row, text in zip(rows, ["=a, b", "fox"], strict=True):
        found = expected(text, top_k=2, threshold=0.5)
        assert [row["label_1"], row["label_2"]] == [item["label"] for item in found] + [""] * (2 - len(found))
        assert row["score_1"] == "" or float(row["score_1"]) == pytest.approx(found[0]["score"], abs=1e-5)


@pytest.mark.parametrize(
    ("options", "told"), [(["--top_k", "1"], "label_1, score_1, label_2"), (["--label_delimiter", "|"], "labels")]
)
def test_columns_of_labels_that_the_input_has_are_named(predict, tmp_path, caplog, options, told):
    (tmp_path / "in.csv").write_text("text,label_1,score_1,label_2,labels\nfox,old,0.5,older,mine\n", encoding="utf-8")
    predict(str(tmp_path / "in.csv"), *options, "--output", str(tmp_path / "out.csv"))
    assert caplog.text.count(f"the input has columns of labels already: {told};") == 1
    predict("--text", "fox", *options, "--output", str(tmp_path / "out.csv"))
    assert caplog.text.count("already") == 1


def test_all_labels_in_one_column(predict, expected, tmp_path):
    (tmp_path / "in.csv").write_text('title\napple dog moon\nfox\n""\n', encoding="utf-8")
    options = [str(tmp_path / "in.csv"), "--text_column", "title", "--output", str(tmp_path / "out.csv")]
    predict(*options, "--threshold", "0.3", "--label_delimiter", "|", "--labels_column", "subjects")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "out.csv").read_text(encoding="utf-8-sig"))))
    wanted = ["|".join(item["label"] for item in expected(row["title"], threshold=0.3)) for row in rows]
    assert [row["subjects"] for row in rows] == wanted and "|" in wanted[0] and not wanted[2]
    assert list(rows[0]) == ["title", "subjects"]
    # As training reads them, but for the empty text.
    columns = {"text_column": "title", "labels_column": "subjects", "label_delimiter": "|"}
    read = read_rows(tmp_path / "out.csv", **columns, bad_rows=BadRows("skip"))
    assert ["|".join(row["labels"]) for row in read] == wanted[:2]
    inside = wanted[0].split("|")[0][0]
    assert f"{inside!r} occurs in the label" in predict(*options, "--label_delimiter", inside, code=2)
    assert "is empty" in predict(*options, "--label_delimiter", "", code=2)
    assert "leave out --branch_scores" in predict(*options, "--label_delimiter", "|", "--branch_scores", code=2)
    assert "is for CSV and TSV" in predict("--text", "fox", "--label_delimiter", "|", code=2)
    assert "--label_delimiter" in predict(*options, "--threshold", "0.3", code=2)


ODD = {
    "empty": b"",
    "blank": b" \t\x0b \xc2\xa0",
    "a megabyte in one word": b"a" * 2**20,
    "a megabyte of words": b"apple " * 2**18,
    "emoji": "👩‍👩‍👧‍👦🏳️‍🌈 dog".encode(),
    "control characters": bytes(i for i in range(1, 32) if i != 10),
    "NUL": b"a\x00b",
    "right to left": "\u202eתפוח كلب\u202c".encode(),
    "invalid UTF-8": b"\xff\xfe apple \xed\xa0\x80 \xc3",
    "byte order mark": b"\xef\xbb\xbfapple",
    "carriage return": b"apple\r",
    "a formula": b"=cmd|' /C calc'!A0",
    "marks on marks": ("a" + "\u0301" * 5000).encode(),
    "special tokens": b"[CLS] [MASK] [SEP] [PAD] </s> <s>",
    "not a character": "\uffff\U0010ffff \ufdd0".encode(),
}


@pytest.mark.parametrize("windows", [[], ["--windows", "mean"]])
def test_odd_texts_are_texts(predict, tmp_path, windows):
    path = tmp_path / "odd.txt"
    # Windows over a megabyte would take a while.
    path.write_bytes(b"".join((content[:2000] if windows else content) + b"\n" for content in ODD.values()))
    rows = predict(str(path), "--batch_size", "4", *windows)
    assert len(rows) == len(ODD)
    for name, row in zip(ODD, rows, strict=True):
        assert len(row["predictions"]) == (0 if name in ("empty", "blank") else 5), name
        assert all(0 <= item["score"] <= 1 for item in row["predictions"])


def test_odd_texts_in_json(predict):
    given = [json.dumps({"text": content[:2000].decode("utf-8", "surrogateescape")}) for content in ODD.values()]
    rows = predict(given="\r\n".join(["\ufeff" + given[3], *given[1:]]).encode())
    assert len(rows) == len(ODD)


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (["missing.jsonl"], b"", "missing.jsonl does not exist"),
        ([], b'{"text": "a"}\n{"text":\n', "standard input, line 2: broken JSON"),
        (["--text_column", "title"], b'{"text": "a"}', "no text called 'title'"),
        (["--top_k", "0"], b"a", "at least 1, got '0'"),
        (["--threshold", "2"], b"a", "from 0 to 1, or calibrated, got '2'"),
        (["--threshold", "calibrated"], b"a", "no fitted threshold: run `glocal-xml calibrate MODEL FILE`"),
        (["--calibrated"], b"a", "unrecognized arguments: --calibrated"),
        (["--candidate_labels", "names.txt"], b"a", "no labels ['is pear']"),
        (["--output", "nowhere/out.jsonl"], b"a", "the folder nowhere for out.jsonl does not exist"),
        (["--output", "out.txt"], b"a", "cannot be written as 'lines'"),
        (["--device", "tpu:9"], b"a", "no device 'tpu:9'"),
        (["--windows", "min"], b"a", "invalid choice: 'min'"),
        (["--treshold", "1"], b"a", "unrecognized arguments: --treshold 1"),
    ],
)
def test_a_mistake_is_one_line(predict, tmp_path, monkeypatch, options, given, message):
    monkeypatch.chdir(tmp_path)
    Path("names.txt").write_text("is pear\n")
    error = predict(*options, given=given, code=2)
    assert message in error and error.startswith("glocal-xml: error: ") and error.count("\n") == 1


def test_memory_is_bounded_and_order_kept():
    """Rows are read as they are needed, and the first come out after a batch."""
    read = []

    def rows():
        for i in range(1000):
            read.append(i)
            yield {"text": "x" * (i * 37 % 11 + 1), "i": i}

    def pipe(texts, batch_size):
        assert len(texts) <= 16 * batch_size and texts == sorted(texts, key=len)
        return [[{"label": text, "score": 0.5}] for text in texts]

    out = tagged_rows(pipe, rows(), "text", 4)
    first = next(out)
    assert first["i"] == 0 and len(read) == 4
    for number, row in enumerate(out, start=1):
        assert row["i"] == number and row["predictions"][0]["label"] == row["text"]
        assert len(read) - number <= 64


@pytest.mark.slow
def test_a_reader_that_has_enough_and_one_that_interrupts(model_folder, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    start = [sys.executable, "-c", "import sys; from glocal_xml_command import main; sys.exit(main())"]
    arguments = [*start, "predict", model_folder, "--batch_size", "1"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    reading = subprocess.Popen(arguments, **pipes)
    writing = subprocess.Popen([*arguments, "--output", str(tmp_path / "out.jsonl")], **pipes)
    # One row at a time, so that both have predicted something and wait for more.
    for process in (reading, writing):
        process.stdin.write(b"apple\n" * 3)
        process.stdin.flush()
    assert json.loads(reading.stdout.readline())["text"] == "apple"
    reading.stdout.close()
    reading.stdin.write(b"apple\n" * 50)
    reading.stdin.close()
    assert (reading.wait(), reading.stderr.read()) == (141, b"")
    while not list(tmp_path.iterdir()):
        time.sleep(0.1)
    writing.send_signal(signal.SIGINT)
    assert writing.wait() == 130 and b"Traceback" not in writing.stderr.read()
    assert list(tmp_path.iterdir()) == [], "neither a part of the file nor a temporary one"


def test_code_of_a_foreign_model_is_not_run_whatever_the_texts_say(tmp_path, monkeypatch, capsys):
    """Transformers would ask, and read the answer from the pipe that the texts come by."""
    folder, mark = tmp_path / "foreign", tmp_path / "was_run"
    folder.mkdir()
    code = f"open({str(mark)!r}, 'w').close()\nfrom transformers import PreTrainedConfig as Own\n"
    (folder / "own_config.py").write_text(code, encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "own", "auto_map": {"AutoConfig": "own_config.Own"}}')
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"y\na text\n"), encoding="utf-8"))
    assert main(["predict", str(folder)]) == 2
    assert not mark.exists() and str(folder) in capsys.readouterr().err


@pytest.mark.parametrize("device", ["cpu:x", "cpu:7", "nothing"])
def test_a_device_that_is_not_there(model_folder, device, capsys):
    assert main(["predict", model_folder, "--text", "apple", "--device", device]) == 2
    assert "This machine has no device" in capsys.readouterr().err
