"""Formats of public datasets: APLC_XLNet's CSV, the Repository's JSON and sparse files."""

import gzip
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

from glocal_xml.data import BadRow, BadRows, read_label_map, read_rows, read_sparse

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write_json_lines(path, objects):
    content = "".join(json.dumps(value) + "\n" for value in objects).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def test_aplc_csv_goes_by_position(tmp_path):
    path = tmp_path / "train.csv"
    path.write_text('guid,words,classes\n0,"one, two","3,14"\n1,three,\n2,four\n', encoding="utf-8")
    found = read_rows(path, allow_no_labels=True, bad_rows=(bad_rows := BadRows("skip")))
    assert list(found) == [{"text": "one, two", "labels": ["3", "14"]}, {"text": "three", "labels": []}]
    assert bad_rows.by_reason == {"wrong number of cells": 1}
    with pytest.raises(BadRow, match="line 3: no labels"):
        list(read_rows(path))
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(ValueError, match="three columns"):
        list(read_rows(path, file_format="aplc_csv"))


def test_xc_json_with_and_without_label_map(tmp_path):
    objects = [
        {"uid": "1", "title": " A book ", "content": "On things\n", "target_ind": [2, 0], "target_rel": [1.0, 1.0]},
        {"uid": "2", "title": "", "content": "Only content", "target_ind": [1, 1]},
        {"uid": "3", "title": "Only title", "target_ind": [1]},
    ]
    path = write_json_lines(tmp_path / "trn.json.gz", objects)
    texts = ["A book\nOn things", "Only content", "Only title"]
    assert [row["text"] for row in read_rows(path)] == texts
    assert [row["labels"] for row in read_rows(path)] == [["2", "0"], ["1"], ["1"]]
    names = [{"uid": f"B{i}", "title": title} for i, title in enumerate(["Same", "Other\nthing", "Same"])]
    label_map = write_json_lines(tmp_path / "lbl.json.gz", names)
    found = [row["labels"] for row in read_rows(path, label_map=label_map)]
    assert found == [["Same (B2)", "Same (B0)"], ["Other thing"], ["Other thing"]]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"title": "x", "target_ind": [2]}, "label index outside the map"),
        ({"title": "x", "target_ind": [-1]}, "label index outside the map"),
        ({"title": "x", "target_ind": [True]}, "wrong type"),
        ({"title": "x", "target_ind": "1"}, "wrong type"),
        ({"title": None, "target_ind": [1]}, "wrong type"),
        ({"title": " ", "content": "", "target_ind": [1]}, "empty text"),
        ({"title": "x"}, "missing field 'target_ind'"),
        ({"title": "x", "target_ind": []}, "no labels"),
    ],
)
def test_bad_rows_of_xc_json(tmp_path, row, reason):
    path = write_json_lines(tmp_path / "tst.json", [{"title": "good", "target_ind": [1]}, row])
    label_map = tmp_path / "Yf.txt"
    label_map.write_text("zero\none\n", encoding="utf-8")
    with pytest.raises(BadRow, match=f"line 2: {reason}"):
        list(read_rows(path, file_format="xc_json", label_map=label_map))


@quick
@given(
    titles=st.lists(st.sampled_from(["a", "b", "", "a (0)", "a (u1)", "0", "1"]) | st.text(max_size=3), min_size=1),
    uids=st.booleans(),
)
def test_label_maps_give_every_label_a_name_of_its_own(tmp_path, titles, uids):
    titles = [title.encode("utf-8", "ignore").decode() for title in titles]
    objects = [{"title": title, **({"uid": f"u{i % 3}"} if uids else {})} for i, title in enumerate(titles)]
    names = read_label_map(write_json_lines(tmp_path / "lbl.json", objects))
    assert len(set(names)) == len(names) == len(titles)
    for name, title in zip(names, titles, strict=True):
        assert name and "\n" not in name and "\r" not in name
        assert name.startswith(" ".join(title.split()))


def test_label_maps_of_plain_lines_and_damaged_ones(tmp_path):
    path = tmp_path / "Yf.txt"
    path.write_bytes("first\r\n\n\u2028third\u2028x\nfirst\n".encode())
    assert read_label_map(path) == ["first (0)", "1", "third x", "first (3)"]
    path.write_bytes(b"first\n\xff\n")
    with pytest.raises(BadRow, match="line 2: invalid UTF-8"):
        read_label_map(path)
    path.write_bytes(b'{"title": "a"}\n{"title": "\\ud800"}\n')
    with pytest.raises(BadRow, match="line 2: lone surrogate"):
        read_label_map(path)


@quick
@given(data=st.data())
def test_sparse_round_trip(tmp_path, data):
    shape = data.draw(st.tuples(st.integers(1, 6), st.integers(1, 9), st.integers(1, 7)))
    matrix = np.zeros(shape[:2])
    lines, expected = [f"{shape[0]} {shape[1]} {shape[2]}"], []
    for row in range(shape[0]):
        labels = data.draw(st.lists(st.integers(0, shape[2] - 1), unique=True))
        columns = data.draw(st.lists(st.integers(0, shape[1] - 1), unique=True))
        for column in columns:
            matrix[row, column] = data.draw(st.floats(-9, 9))
        features = [f"{column}:{float(matrix[row, column])!r}" for column in columns]
        lines.append(" ".join([",".join(map(str, labels)), *features]))
        expected.append(labels)
    path = tmp_path / "train.txt"
    path.write_bytes("\n".join(lines).encode() + b"\n")
    features, labels = read_sparse(path)
    assert sparse.issparse(features) and features.format == "csr"
    assert labels == expected and np.array_equal(features.toarray(), matrix)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("2 3\n", "line 1: the header"),
        ("1 3 x\n0 1:1\n", "line 1: the header"),
        ("1 99999999999999999999 3\n", "line 1: the header"),
        ("1 3 2\n0 1:1\n1 2:1\n", "announces 1 texts, the file has 2"),
        ("2 3 2\n0 1:1\n2 1:1\n", "line 3: label 2 is not between 0 and 1"),
        ("2 3 2\n0 1:1\n0 3:1\n", "line 3: feature 3 is not between 0 and 2"),
        ("1 3 2\n0 1:nan\n", "line 2: the value of feature 1"),
        ("1 3 2\n0 1:\n", "line 2: "),
        ("1 3 2\n0,x 1:1\n", "line 2: "),
    ],
)
def test_damaged_sparse_files_name_the_line(tmp_path, content, message):
    path = tmp_path / "train.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_sparse(path)


@quick
@given(
    content=st.binary(max_size=60) | st.text("0123 :,.-e\n", max_size=60).map(lambda tail: b"2 3 4\n" + tail.encode())
)
def test_any_bytes_give_features_or_a_value_error(tmp_path, content):
    path = tmp_path / "train.txt"
    path.write_bytes(content)
    try:
        features, labels = read_sparse(path)
    except ValueError:
        return
    assert features.shape[0] == len(labels)


def test_a_header_of_huge_counts_allocates_nothing(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("1 4000000000000 3000000\n2999999 3999999999999:0.5\n", encoding="utf-8")
    features, labels = read_sparse(path)
    assert features.nnz == 1 and labels == [[2_999_999]]


def test_sparse_files_are_no_text_datasets(tmp_path):
    path = tmp_path / "train.txt"
    path.write_text("1 3 2\n0 1:1\n", encoding="utf-8")
    with pytest.raises(ValueError, match="read_sparse"):
        read_rows(path)
