"""Readers of jsonl, csv, tsv and text pairs: round trips, errors with their line, detection."""

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glocal_xml.data import FILE_FORMATS, BadRow, BadRows, detect_format, read_rows, read_text_rows

quick = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())
names = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n\r,"), min_size=1, max_size=12)
labels = st.lists(names.map(str.strip).filter(bool), min_size=1, max_size=5, unique=True)
rows = st.lists(st.fixed_dictionaries({"text": texts, "labels": labels}), min_size=1, max_size=5)


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def write_table(path: Path, table: list[dict], delimiter: str) -> Path:
    buffer = io.StringIO(newline="")
    writer = csv.writer(buffer, delimiter=delimiter)
    writer.writerow(["text", "labels"])
    writer.writerows([row["text"], ",".join(row["labels"])] for row in table)
    return write(path, buffer.getvalue())


@quick
@given(table=rows, ascii_only=st.booleans())
def test_jsonl_round_trip(tmp_path, table, ascii_only):
    content = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in table)
    assert list(read_rows(write(tmp_path / "rows.jsonl", content))) == table


@quick
@given(table=rows, file_format=st.sampled_from(["csv", "tsv"]))
def test_table_round_trip(tmp_path, table, file_format):
    path = write_table(tmp_path / f"rows.{file_format}", table, {"csv": ",", "tsv": "\t"}[file_format])
    assert list(read_rows(path)) == table


@quick
@given(table=rows, mark=st.booleans(), windows=st.booleans())
def test_gzip_byte_order_mark_and_line_ends_change_nothing(tmp_path, table, mark, windows):
    content = ("\r\n" if windows else "\n").join(json.dumps(row) for row in table).encode()
    content = b"\xef\xbb\xbf" * mark + content
    # The name says nothing about compression: the magic bytes do.
    assert list(read_rows(write(tmp_path / "rows.jsonl", gzip.compress(content)))) == table
    assert list(read_rows(write(tmp_path / "rows.json", content))) == table


@quick
@given(
    content=st.one_of(
        st.binary(max_size=200),
        st.binary(max_size=100).map(lambda tail: b"\x1f\x8b" + tail),
        st.binary(max_size=100).map(gzip.compress),
        st.binary(max_size=100).map(lambda tail: b"text,labels\n" + tail),
        st.binary(max_size=100).map(lambda tail: b"text\tlabels\nx\ty\n" + tail),
        st.binary(max_size=60).map(lambda tail: b'{"text": "x", "labels": ["y"]}\n{"text": "' + tail),
        st.text('{}[]",:\\ud80123 texlabs\n', max_size=80).map(str.encode),
    ),
    file_format=st.sampled_from([*FILE_FORMATS, None]),
    mode=st.sampled_from(["error", "skip"]),
)
def test_any_bytes_give_rows_or_a_value_error(tmp_path, content, file_format, mode):
    path = write(tmp_path / "any_texts.bin", content)
    labels_path = write(tmp_path / "any_labels.bin", content[::-1])
    options = {"labels_path": labels_path} if file_format == "pecos_npz" else {}
    try:
        found = list(read_rows(path, file_format=file_format, bad_rows=BadRows(mode), **options))
    except ValueError:
        return
    for row in found:
        assert set(row) == {"text", "labels"} and row["text"].strip() and row["labels"]
        assert all(label == label.strip() != "" for label in row["labels"])
        json.dumps(row, ensure_ascii=False).encode("utf-8")


CORRUPTIONS = {
    "broken JSON": b'{"text": "x", "labels": ["a"]',
    "too deep": b"[" * 100_000,
    "huge integer": b'{"text": "x", "labels": [' + b"1" * 5000 + b"]}",
    "not an object": b'["x", "a"]',
    "missing text": b'{"labels": ["a"]}',
    "missing labels": b'{"text": "x"}',
    "text of a wrong type": b'{"text": 3, "labels": ["a"]}',
    "label of a wrong type": b'{"text": "x", "labels": ["a", null]}',
    "bool label": b'{"text": "x", "labels": [true]}',
    "float label": b'{"text": "x", "labels": [1.5]}',
    "nested label": b'{"text": "x", "labels": [["a"]]}',
    "multi-hot labels": b'{"text": "x", "labels": [0, 1, 0, 1]}',
    "null labels": b'{"text": "x", "labels": null}',
    "empty text": b'{"text": " \\u2028", "labels": ["a"]}',
    "no labels": b'{"text": "x", "labels": ["", " "]}',
    "line break in a label": b'{"text": "x", "labels": ["a\\nb"]}',
    "invalid UTF-8": b'{"text": "\xff", "labels": ["a"]}',
    "surrogate in the text": b'{"text": "\\ud800", "labels": ["a"]}',
    "surrogate in a label": b'{"text": "x", "labels": ["\\udfff"]}',
}


@pytest.mark.parametrize("bad", CORRUPTIONS.values(), ids=CORRUPTIONS)
def test_bad_json_lines_are_named_by_their_line_and_counted(tmp_path, bad):
    good = b'{"text": "x", "labels": ["a"]}'
    path = write(tmp_path / "rows.jsonl", b"\n".join([good, b"", good, bad, good, bad]))
    with pytest.raises(BadRow) as error:
        list(read_rows(path))
    assert str(error.value).startswith(f"{path}, line 4: ") and "; " in str(error.value)
    bad_rows = BadRows("skip")
    assert len(list(read_rows(path, bad_rows=bad_rows))) == 3
    assert bad_rows.total == sum(bad_rows.by_reason.values()) == 2
    assert "2 bad rows" in bad_rows.summary() and "line 6" in bad_rows.summary()


@quick
@given(corrupted=st.sets(st.integers(1, 30)), data=st.data())
def test_skip_mode_counts_every_corrupted_line(tmp_path, corrupted, data):
    lines = [b'{"text": "x", "labels": ["a"]}'] * 30
    for number in corrupted:
        lines[number - 1] = data.draw(st.sampled_from(list(CORRUPTIONS.values())[3:]))
    bad_rows = BadRows("skip")
    found = list(read_rows(write(tmp_path / "rows.jsonl", b"\n".join(lines)), bad_rows=bad_rows))
    assert (bad_rows.total, len(found)) == (len(corrupted), 30 - len(corrupted))
    assert len(bad_rows.messages) <= 5


def test_labels_are_stripped_unique_and_may_be_integers_or_a_string(tmp_path):
    content = '{"text": " x ", "labels": [" b", "a", 7, "b", ""]}\n{"text": "y", "labels": "p|q r|p"}\n'
    path = write(tmp_path / "rows.jsonl", content)
    assert list(read_rows(path, label_delimiter="|")) == [
        {"text": " x ", "labels": ["b", "a", "7"]},
        {"text": "y", "labels": ["p", "q r"]},
    ]


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ("['a', 'b, c']", ["a", "b, c"]),
        ("['a','b, c']", ["a", "b, c"]),
        ("[ 'a', \"it's\" ]", ["a", "it's"]),
        ('["a", "b, c"]', ["a", "b, c"]),
        ("('a', 'b')", ["a", "b"]),
        ("('a',)", ["a"]),
        ("{'b', 'a'}", ["a", "b"]),
        ("[1, 20]", ["1", "20"]),
        ("[3]", ["3"]),
        ("[a]", ["[a]"]),
        ("(1)", ["(1)"]),
        ("(a), [b]", ["(a)", "[b]"]),
        ("(a), b (c)", ["(a)", "b (c)"]),
    ],
)
def test_lists_that_were_written_into_cells_are_lists(tmp_path, cell, labels):
    cell = cell.replace('"', '""')
    (row,) = read_rows(write(tmp_path / "a.csv", f'text,labels\nx,"{cell}"\n'))
    # A set has no order.
    assert (sorted(row["labels"]) if "{" in cell else row["labels"]) == labels


# As NumPy writes them, which Python would read as one string; names without quotes; numbers in other brackets.
@pytest.mark.parametrize("cell", ["['a' 'b']", "['a'\n 'b']", "[a, b]", "{a, b}", "(1, 2)", "['a', 'b", "{'a': 'b'}"])
def test_lists_that_cannot_be_read_are_named(tmp_path, cell):
    with pytest.raises(BadRow, match="unreadable list of labels"):
        list(read_rows(write(tmp_path / "b.csv", f'text,labels\nx,"{cell}"\n')))


def test_null_is_no_labels(tmp_path):
    path = write(tmp_path / "a.jsonl", '{"text": "x", "labels": null}')
    assert list(read_rows(path, allow_no_labels=True)) == [{"text": "x", "labels": []}]
    with pytest.raises(BadRow, match="no labels"):
        list(read_rows(path))


def test_what_is_meant_is_told(tmp_path):
    for name, content, message in [
        ("a.json", '[{"text": "x", "labels": ["a"]}]', "without an array around them"),
        ("b.json", '[\n{"text": "x", "labels": ["a"]}]', "without an array around them"),
        ("a.csv", "text,labels\rx,a\r", "carriage return"),
        ("b.csv", "a text,a\nanother text,b\n", "no column 'text'.*by its first line; name the right ones"),
        ("b.csv", "text|labels\na text|a\n", r"only \['text\|labels'\].*put commas, semicolons or tabs between cells"),
        ("b.csv", "sep=;\ntext;labels\na text;a\n", "begin with the names of the columns"),
    ]:
        with pytest.raises(ValueError, match=message):
            list(read_rows(write(tmp_path / name, content)))


def test_named_columns(tmp_path):
    path = write(tmp_path / "rows.csv", "id,body, tags\n1,one,a;b\n")
    options = {"text_column": "body", "labels_column": "tags", "label_delimiter": ";"}
    assert list(read_rows(path, **options)) == [{"text": "one", "labels": ["a", "b"]}]
    with pytest.raises(ValueError, match=r"no column 'text', only \['id', 'body', 'tags'\]"):
        read_rows(path, file_format="csv")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b"one", "wrong number of cells"),
        (b"one,a,b", "wrong number of cells"),
        (b'"one"x,a', "broken CSV"),
        (b"on\re,a", "broken CSV"),
        (b"\xfe,a", "invalid UTF-8"),
        (b",a", "empty text"),
        (b"one,", "no labels"),
    ],
)
def test_bad_table_rows_are_named_by_their_first_line(tmp_path, bad, reason):
    path = write(tmp_path / "rows.csv", b'text,labels\n"two\nlines",a\n\n' + bad + b"\nlast,b\n")
    with pytest.raises(BadRow, match=f"line 5: {reason}"):
        list(read_rows(path))
    bad_rows = BadRows("skip")
    assert [row["labels"] for row in read_rows(path, bad_rows=bad_rows)] == [["a"], ["b"]]
    assert bad_rows.by_reason == {reason: 1}


def test_a_quote_that_is_never_closed_is_reported_where_it_opens(tmp_path):
    path = write(tmp_path / "rows.csv", 'text,labels\none,a\n"two,b\nthree,c\n')
    with pytest.raises(BadRow, match="line 3: broken CSV"):
        list(read_rows(path))


def test_a_cell_of_a_megabyte_and_nul_characters(tmp_path):
    path = write(tmp_path / "rows.csv", "text,labels\n" + "x" * 2**20 + ",a\n")
    assert len(next(read_rows(path))["text"]) == 2**20
    bad_rows = BadRows("skip")
    found = list(read_rows(write(path, "text,labels\na\0b,c\n"), bad_rows=bad_rows))
    assert len(found) + bad_rows.total == 1


@pytest.mark.parametrize("texts_name", ["train_texts.txt", "train_raw_texts.txt", "train_texts.txt.gz"])
def test_text_pair(tmp_path, texts_name):
    content = "first \u2028 text\r\nsecond\n".encode()
    write(tmp_path / texts_name, gzip.compress(content) if texts_name.endswith(".gz") else content)
    write(tmp_path / texts_name.replace("raw_texts", "labels").replace("texts", "labels"), "a b\r\nc  a c\n")
    expected = [{"text": "first \u2028 text", "labels": ["a", "b"]}, {"text": "second", "labels": ["c", "a"]}]
    assert list(read_rows(tmp_path / texts_name)) == expected


def test_text_pair_of_unequal_length_tells_both_counts(tmp_path):
    path = write(tmp_path / "texts.txt", "one\ntwo\nthree\n")
    write(tmp_path / "labels.txt", "a\n\xff\n".encode("latin-1"))
    with pytest.raises(ValueError, match="3 lines.*2 lines;"):
        list(read_rows(path, bad_rows=BadRows("skip")))
    with pytest.raises(BadRow, match="texts.txt, line 2: invalid UTF-8"):
        list(read_rows(path))


def test_text_pair_with_named_labels_and_delimiter(tmp_path):
    path = write(tmp_path / "corpus.txt", "one\n")
    labels_path = write(tmp_path / "tags", "a b,c\n")
    options = {"file_format": "text_pair", "labels_path": labels_path, "label_delimiter": ","}
    assert list(read_rows(path, **options)) == [{"text": "one", "labels": ["a b", "c"]}]
    with pytest.raises(ValueError, match="labels_path"):
        read_rows(path, file_format="text_pair")
    with pytest.raises(FileNotFoundError, match="train_labels.txt"):
        read_rows(write(tmp_path / "train_texts.txt", "one\n"))


def test_rows_without_labels_where_allowed(tmp_path):
    jsonl = write(tmp_path / "rows.jsonl", '{"text": "x"}\n{"text": "y", "labels": []}\n')
    table = write(tmp_path / "rows.csv", "text\nx\ny\n")
    plain = write(tmp_path / "texts.txt", "x\ny\n")
    for path in (jsonl, table, plain):
        found = read_rows(path, allow_no_labels=True)
        assert list(found) == [{"text": "x", "labels": []}, {"text": "y", "labels": []}]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a", '\n{"text": "x"}', "jsonl"),
        ("a", '{"text": "target_ind", "labels": ["target_ind"]}', "jsonl"),
        ("a.json.gz", '{"title": "x", "target_ind": [1]}', "xc_json"),
        ("a.CSV", "text,labels\n", "csv"),
        ("b.csv.gz", "text,labels,id\n", "csv"),
        ("c.csv", "id,text,tags\n", "csv"),
        ("d.csv", "guid,document,tags\n", "aplc_csv"),
        ("e.csv", "abstract,subjects,year\n", "csv"),
        ("a.tsv", "x\ty\n", "tsv"),
        ("train_texts.txt", "{not json\n", "text_pair"),
        ("train.txt", "3 40 5\n", "sparse"),
        ("train.txt", "3,40\ttext 5\n", "pecos"),
    ],
)
def test_detection(tmp_path, name, content, expected):
    assert detect_format(write(tmp_path / name, content)) == expected
    assert detect_format(write(tmp_path / name, gzip.compress(content.encode()))) == expected


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(FileNotFoundError, match="absent.jsonl"):
        read_rows(tmp_path / "absent.jsonl")
    with pytest.raises(ValueError, match="folder"):
        read_rows(tmp_path)
    for content in (b"", gzip.compress(b"")):
        with pytest.raises(ValueError, match="empty"):
            list(read_rows(write(tmp_path / "rows.jsonl", content)))
    with pytest.raises(ValueError, match="UTF-16 text; save it as UTF-8"):
        list(read_rows(write(tmp_path / "rows.csv", "text,labels\na,b\n".encode("utf-16"))))
    damaged = gzip.compress(b'{"text": "x", "labels": ["a"]}\n' * 50)[:-9]
    with pytest.raises(ValueError, match="damaged gzip"):
        list(read_rows(write(tmp_path / "rows.jsonl", damaged), bad_rows=BadRows("skip")))
    with pytest.raises(ValueError, match="pass file_format, one of"):
        detect_format(write(tmp_path / "notes", "hello\n"))


def test_wrong_options(tmp_path):
    path = write(tmp_path / "rows.jsonl", '{"text": "x", "labels": "a"}')
    for options, message in [
        ({"file_format": "xml"}, "file_format is 'xml'"),
        ({"label_delimiter": ""}, "label_delimiter"),
        ({"labels_path": path}, "labels_path belongs to text_pair"),
        ({"label_map": path}, "label_map belongs to xc_json"),
    ]:
        with pytest.raises(ValueError, match=message):
            read_rows(path, **options)
    with pytest.raises(ValueError, match="bad_rows is 'ignore'"):
        BadRows("ignore")


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_a_csv_file_may_have_other_delimiters(tmp_path, delimiter):
    path = tmp_path / "a.csv"
    path.write_text(delimiter.join(["text", "labels"]) + "\n" + delimiter.join(["1,5 litres", "a"]) + "\n")
    assert list(read_rows(path)) == [{"text": "1,5 litres", "labels": ["a"]}]
    assert list(read_text_rows(path)) == [{"text": "1,5 litres", "labels": "a"}]


def test_a_column_twice(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,labels,labels\na,b,c\n")
    with pytest.raises(ValueError, match="2 columns 'labels'"):
        read_rows(path)
