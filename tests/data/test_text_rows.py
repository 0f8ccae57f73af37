"""Rows of texts as people and other programs send them, and as spreadsheets and other programs read them."""

import csv
import gzip
import io
import json
import os
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glocal_xml.data import BadRow, read_text_rows, write_rows
from glocal_xml.data.text_rows import format_rows, row_format

ROWS = [{"id": "1", "text": "a, b"}, {"id": "2", "text": ""}, {"id": "3", "text": "c\nd"}]


@pytest.fixture
def standard_input(monkeypatch):
    def give(content: bytes):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))

    return give


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv"])
def test_what_is_written_is_read(tmp_path, name, zipped):
    path = tmp_path / (name + ".gz" * zipped)
    assert write_rows(ROWS, path) == 3
    assert (path.read_bytes()[:2] == b"\x1f\x8b") == zipped
    assert list(read_text_rows(path)) == ROWS
    assert os.listdir(tmp_path) == [path.name]


TEXT = st.text(st.characters(exclude_categories=["Cs"]))


@given(rows=st.lists(st.fixed_dictionaries({"text": TEXT, "id": TEXT}), min_size=1))
def test_json_lines_keep_every_character(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    write_rows(rows, path)
    assert list(read_text_rows(path)) == rows


@given(content=st.binary())
def test_any_bytes_are_lines(content, tmp_path_factory):
    path = tmp_path_factory.mktemp("rows") / "rows.txt"
    # Behind a start that is text; by their start other kinds of files are known.
    content = b"a text\n\n" + content
    path.write_bytes(content + b"\n")
    rows = list(read_text_rows(path))
    assert len(rows) == content.count(b"\n") + 1
    "".join(row["text"] for row in rows).encode("utf-8")


def test_lines_of_any_kind(tmp_path):
    path = tmp_path / "odd.txt"
    path.write_bytes(b"\xef\xbb\xbffirst\r\n\n \xff \n\x00\x85\n{\nlast \xe2\x80\xa8 line")
    texts = [row["text"] for row in read_text_rows(path)]
    assert texts == ["first", "", " \ufffd ", "\x00\ufffd", "{", "last \u2028 line"]


def test_standard_input_is_looked_at_once(standard_input):
    standard_input(b'\n{"text": "a", "n": 1}\n')
    assert list(read_text_rows("-")) == [{"text": "a", "n": 1}]
    standard_input(gzip.compress(b"\na\nb"))
    assert [row["text"] for row in read_text_rows("-")] == ["", "a", "b"]
    standard_input(b"title\tkind\nx\ty\n")
    assert list(read_text_rows("-", file_format="tsv", text_column="title")) == [{"title": "x", "kind": "y"}]
    for file_format in (None, "jsonl", "csv", "tsv"):
        standard_input(b"")
        assert list(read_text_rows("-", file_format=file_format)) == []


def test_a_named_pipe_is_read(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = threading.Thread(target=path.write_bytes, args=(b"a\nb\n",))
    writer.start()
    assert [row["text"] for row in read_text_rows(path)] == ["a", "b"]
    writer.join()


def test_rows_come_before_the_input_ends(monkeypatch):
    reader, writer = os.pipe()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(os.fdopen(reader, "rb")))
    os.write(writer, b"first\n")
    rows = read_text_rows("-")
    assert next(rows) == {"text": "first"}
    os.close(writer)
    assert list(rows) == []


def test_halves_of_surrogate_pairs(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a \\ud83d b \\ud83d\\ude00", "id": "\\ud83d"}\n', encoding="utf-8")
    rows = list(read_text_rows(path))
    assert rows == [{"text": "a \ufffd b \U0001f600", "id": "\ud83d"}]
    write_rows(rows, tmp_path / "out.jsonl")
    assert json.loads((tmp_path / "out.jsonl").read_text(encoding="utf-8")) == rows[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"text": "x"}\n{"text": \n', "line 2: broken JSON"),
        ("a.jsonl", '{"text": "x"}\n\n[1]\n', "line 3: not a JSON object"),
        ("a.jsonl", '{"title": "x"}\n', "line 1: no text called 'text'; it has .'title'."),
        ("a.jsonl", '{"text": 3}\n', "line 1: wrong type for the text: 3"),
        ("a.csv", "text,id\nx,1\ny\n", "line 3: wrong number of cells .1 where the header has 2."),
        ("a.csv", 'text,id\n"x,1\n', "line 2: broken CSV"),
        ("a.csv", "title,id\n", "line 1: no text called 'text'; it has .'title', 'id'."),
    ],
)
def test_broken_rows_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(BadRow, match=message):
        list(read_text_rows(tmp_path / name))


def test_what_looks_like_a_table_but_is_read_as_lines_is_told(standard_input, caplog):
    standard_input(b"id,text\n1,x\n")
    assert len(list(read_text_rows("-"))) == 2
    assert "read as one text per line, but begins with 'id,text'" in caplog.text


def test_mistakes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="does not exist"):
        read_text_rows(tmp_path / "none.txt")
    with pytest.raises(ValueError, match="file_format is 'xml'"):
        read_text_rows("-", file_format="xml")
    with pytest.raises(ValueError, match="cannot be written as 'lines'"):
        row_format("out.txt")
    for name in ("out.xlsx", "out.parquet.gz"):
        with pytest.raises(ValueError, match="cannot be written as"):
            row_format(name)
    assert row_format("out.xlsx", "csv") == "csv" and row_format("v1.2/out") == row_format("-") == "jsonl"
    with pytest.raises(FileNotFoundError, match="folder .*nowhere for out.csv does not exist"):
        write_rows(ROWS, tmp_path / "nowhere" / "out.csv")


def test_a_file_is_whole_or_not_there(tmp_path):
    def rows():
        yield ROWS[0]
        raise KeyboardInterrupt

    path = tmp_path / "out.csv"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        write_rows(rows(), path)
    assert os.listdir(tmp_path) == ["out.csv"] and path.read_text() == "old"


def test_a_folder_is_not_written_to(tmp_path):
    with pytest.raises(OSError, match="is a folder; give the name of a file"):
        write_rows([{"text": "a"}], tmp_path, file_format="csv")


def test_a_device_is_written_to_and_stays_one(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    received = []
    reader = threading.Thread(target=lambda: received.append(path.read_bytes()))
    reader.start()
    write_rows([{"text": "a"}], path)
    reader.join()
    assert received == [b'{"text": "a"}\n'] and path.is_fifo()


def test_a_spreadsheet_runs_no_formula():
    values = ["=1+1", "+a", "-a", "@a", "\ta", "\ra", "-1.5", "+2", "a=1", "", ["=x"], None, 3, -0.5]
    lines = "".join(format_rows([{"=name": 1} | {str(i): value for i, value in enumerate(values)}], "csv"))
    assert lines.startswith("\ufeff'=name,")
    cells = list(csv.reader(io.StringIO(lines.removeprefix("\ufeff"), newline="")))[1][1:]
    assert cells == [
        *("'=1+1", "'+a", "'-a", "'@a", "'\ta", "'\ra", "-1.5", "+2", "a=1", "", '["=x"]', "", "3", "-0.5"),
    ]


def test_columns_are_those_of_the_first_row(caplog):
    lines = list(format_rows([{"a": 1}, {"b": 2}, {"a": 3, "c": 4}], "tsv"))
    assert lines == ["a\n", "1\n", '""\n', "3\n"]
    assert caplog.messages == ["left out ['b'], which the first row does not have; jsonl keeps all"]
    assert list(format_rows([], "csv")) == [""]
