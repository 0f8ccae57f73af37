"""Files that were damaged, or made to do harm: an error that names them, and never a crash, a hang or a lost row."""

import bz2
import gzip
import io
import json
import lzma
import pickle
import re
import tracemalloc
import zipfile

import numpy as np
import pytest
from scipy import sparse

from glocal_xml.data import BadRow, LabelSpace, LabelTree, read_rows, read_text_rows, text_files
from glocal_xml.data.array_files import read_arrays, read_sparse_matrix
from glocal_xml.data.rows import BadRows
from glocal_xml.data.text_files import LONGEST_LINE, read_names
from glocal_xml.data.words import load_word_vectors
from glocal_xml.ensembles.files import read_prediction_file

GOOD = {
    "csr": {"data": np.ones(3), "indices": np.array([0, 2, 1]), "indptr": np.array([0, 2, 3])},
    "csc": {"data": np.ones(3), "indices": np.array([0, 1, 0]), "indptr": np.array([0, 1, 2, 3])},
    "coo": {"data": np.ones(3), "row": np.array([0, 0, 1]), "col": np.array([0, 2, 1])},
}
LARGE = np.array([0, 10**9, 1])
BROKEN = {
    "indices beyond the shape": ("csr", {"indices": LARGE}),
    "negative indices": ("csr", {"indices": np.array([0, -5, 1])}),
    "indices beyond the rows": ("csc", {"indices": LARGE}),
    "rows beyond the shape": ("coo", {"row": LARGE}),
    "columns beyond the shape": ("coo", {"col": -LARGE}),
    "falling indptr": ("csr", {"indptr": np.array([0, 9, 3])}),
    "negative indptr": ("csr", {"indptr": np.array([0, -4, 3])}),
    "indptr of another length": ("csr", {"indptr": np.array([0, 3])}),
    "indptr from elsewhere": ("csr", {"indptr": np.array([1, 2, 3])}),
    "indptr beyond the end": ("csr", {"indptr": np.array([0, 2, 30])}),
    "indptr before the end": ("csr", {"indptr": np.array([0, 1, 2])}),
    "fewer values": ("csr", {"data": np.ones(2)}),
    "fewer rows than values": ("coo", {"row": np.array([0])}),
    "indices that are fractions": ("csr", {"indices": np.array([0.5, 2.0, 1.0])}),
    "values without end": ("csr", {"data": np.array([1.0, np.inf, np.nan])}),
    "values that are texts": ("csr", {"data": np.array(["a", "b", "c"])}),
    "two-dimensional indices": ("csr", {"indices": np.zeros((3, 1), dtype=int)}),
    "a shape of one number": ("csr", {"shape": np.array([2])}),
    "a negative shape": ("csr", {"shape": np.array([-2, 3])}),
    "a shape without end": ("coo", {"shape": np.array([2**61, 3])}),
    "rows that fill the memory": ("coo", {"shape": np.array([10**11, 3])}),
    "an unknown format": ("dia", {}),
    "a format that is a number": ("csr", {"format": np.array(3)}),
    "pickled values": ("csr", {"data": np.array([1, 2, {}], dtype=object)}),
}


def matrix_file(path, kind, **changes):
    arrays = {"format": np.array(kind.encode()), "shape": np.array([2, 3]), **GOOD.get(kind, GOOD["csr"]), **changes}
    np.savez(path, **arrays)
    return path


@pytest.mark.parametrize("kind", GOOD)
def test_whole_matrices_are_read(kind, tmp_path):
    expected = [[1, 0, 1], [0, 1, 0]]
    assert read_sparse_matrix(matrix_file(tmp_path / "Y.npz", kind)).toarray().tolist() == expected
    sparse.save_npz(tmp_path / "scipy.npz", sparse.csr_matrix(expected).asformat(kind))
    assert read_sparse_matrix(tmp_path / "scipy.npz").toarray().tolist() == expected


@pytest.mark.parametrize("case", BROKEN)
def test_matrices_are_checked_before_they_are_used(case, tmp_path):
    kind, changes = BROKEN[case]
    matrix_file(tmp_path / "Y.trn.npz", kind, **changes)
    (tmp_path / "X.trn.txt").write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"Y\.trn\.npz"):
        list(read_rows(tmp_path / "X.trn.txt", file_format="pecos_npz"))
    with pytest.raises(ValueError, match=r"Y\.trn\.npz"):
        read_prediction_file(tmp_path / "Y.trn.npz", label_names=["x", "y", "z"])


def header_only(shape):
    """An array without its numbers."""
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return content.getvalue()


def npz(path, members, compression=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        {"data": header_only((10**12,))},
        {"data": header_only((2**40, 2**40))},
        {"data": header_only((-5,))},
        {"data": b"\x93NUMPY"},
        {"data": b"nothing"},
        {"data": header_only((3,)).replace(b"'<f8'", b"'|O8'")},
    ],
    ids=["12 zeros", "overflow", "negative", "magic alone", "no array", "pickle"],
)
def test_headers_are_not_believed(content, tmp_path):
    with pytest.raises(ValueError, match=r"x\.npz is no \.npz file"):
        read_arrays(npz(tmp_path / "x.npz", content))


def test_an_archive_that_would_fill_the_memory_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("vectors.npy", header_only((2**26,)) + bytes(2**20))
        # Written in the directory of the archive when it is closed.
        archive.filelist[0].file_size = 2**29 + 128
    tracemalloc.start()
    for read in (read_arrays, LabelTree.load, lambda path: load_word_vectors(path, ["a"])):
        with pytest.raises(ValueError, match="unpacks to"):
            read(tmp_path / "x.npz")
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()


def test_every_cut_of_an_archive_is_refused(tmp_path):
    whole = matrix_file(tmp_path / "whole.npz", "csr").read_bytes()
    for length in range(0, len(whole), 41):
        (tmp_path / "part.npz").write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"part\.npz"):
            read_sparse_matrix(tmp_path / "part.npz")
    np.save(tmp_path / "x.npy", np.ones(3))
    (tmp_path / "x.npy").rename(tmp_path / "x.npz")
    with pytest.raises(ValueError, match=r"x\.npz is no \.npz"):
        read_sparse_matrix(tmp_path / "x.npz")


@pytest.mark.parametrize(
    "arrays",
    [
        {"words": np.array([1, 2]), "vectors": np.ones((2, 3))},
        {"words": np.array(["a", "b"]), "vectors": np.array([["x"], ["y"]])},
        {"words": np.array(["a", "b"]), "vectors": np.full((2, 3), 1e300)},
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_word_vectors_are_checked(arrays, tmp_path):
    np.savez(tmp_path / "v.npz", **arrays)
    with pytest.raises(ValueError, match=r"v\.npz"):
        load_word_vectors(tmp_path / "v.npz", ["a", "b"])


def test_word_vectors_with_a_size_that_is_none(tmp_path):
    (tmp_path / "v.txt").write_text(f"1 {'9' * 40}\na 1 2\n")
    with pytest.raises(ValueError, match=r"v\.txt, line 2"):
        load_word_vectors(tmp_path / "v.txt", ["a"])


@pytest.mark.parametrize(
    ("names", "counts"),
    [
        ("a\nb", {"num_texts": 3, "counts": [1, 2]}),
        ("a\n", {"num_texts": 3, "counts": [1, 2]}),
        ("a\nb\nc\n", {"num_texts": 3, "counts": [1, 2]}),
        ("a\na\n", {"num_texts": 3, "counts": [1, 2]}),
        ("a\r\nb\r\n", {"num_texts": 3, "counts": [1, 2]}),
        ("a\nb\n", {"num_texts": 3, "counts": [1, float("nan")]}),
        ("a\nb\n", {"num_texts": 3, "counts": [1, 2.5]}),
        ("a\nb\n", {"num_texts": 3, "counts": [1, True]}),
        ("a\nb\n", {"num_texts": 3, "counts": [1, -2]}),
        ("a\nb\n", {"num_texts": 3, "counts": [1, 4]}),
        ("a\nb\n", {"num_texts": "3", "counts": [1, 2]}),
        ("a\nb\n", {"num_texts": 3, "counts": {"a": 1, "b": 2}}),
        ("a\nb\n", [1, 2]),
        ("a\nb\n", None),
    ],
)
def test_label_spaces_are_checked(names, counts, tmp_path):
    (tmp_path / "labels.txt").write_text(names, newline="")
    (tmp_path / "label_counts.json").write_text("[" * 10**5 if counts is None else json.dumps(counts))
    with pytest.raises(ValueError, match=r"labels\.txt and label_counts\.json"):
        LabelSpace.load(tmp_path)


def table(path, rows):
    path.write_text("text,labels\n" + "".join(rows), encoding="utf-8")
    return path


@pytest.mark.parametrize("broken", ['"open,a\n', 'x,"open\n', 'x,"a\nb",c"d\n', '"x"y,a\n', '"\n'])
@pytest.mark.parametrize("place", [0, 500, 1000])
@pytest.mark.parametrize("quoted", [False, True])
def test_a_broken_row_takes_no_other_with_it(broken, place, quoted, tmp_path):
    cell = '"text {}, quoted"' if quoted else "text {}"
    rows = [f"{cell.format(i)},a\n" for i in range(1000)]
    path = table(tmp_path / "rows.csv", [*rows[:place], broken, *rows[place:]])
    bad_rows = BadRows("skip")
    texts = [row["text"] for row in read_rows(path, bad_rows=bad_rows)]
    assert [text for text in texts if text.startswith("text ")] == [
        f"text {i}{', quoted' if quoted else ''}" for i in range(1000)
    ]
    assert 1 <= bad_rows.total <= 3
    with pytest.raises(BadRow, match=f"line {place + 2}: broken CSV"):
        list(read_rows(path))


def test_the_lines_of_an_open_quote_are_named(tmp_path):
    bad_rows = BadRows("skip")
    path = table(tmp_path / "rows.csv", ["x,a\n", '"open,a\n', *["y,b\n"] * 1000])
    assert len(list(read_rows(path, bad_rows=bad_rows))) == 1001
    assert bad_rows.total == 1 and "line 3: broken CSV" in bad_rows.messages[0]
    assert "lines 3 to 1003" in bad_rows.messages[0]


def test_cells_of_several_lines_stay_whole(tmp_path):
    path = table(tmp_path / "rows.csv", ['"one\ntwo ""2""\n\nthree",a\n', "y,b\n"])
    assert [row["text"] for row in read_rows(path)] == ['one\ntwo "2"\n\nthree', "y"]


def test_lines_are_bounded_and_the_others_used(tmp_path):
    long = "x" * (LONGEST_LINE + 1)
    for name, rows in {
        "rows.csv": ["text,labels\n", "y,a\n", f"{long},a\n", f'"{long}",a\n', "z,b\n"],
        "rows.jsonl": [json.dumps({"text": text, "labels": ["a"]}) + "\n" for text in ("y", long, long, "z")],
    }.items():
        (tmp_path / name).write_text("".join(rows))
        bad_rows = BadRows("skip")
        assert [row["text"] for row in read_rows(tmp_path / name, bad_rows=bad_rows)] == ["y", "z"]
        assert bad_rows.by_reason == {"line too long": 2}
        with pytest.raises(BadRow, match=f"{name}, line [23]: line too long"):
            list(read_text_rows(tmp_path / name))


def test_a_row_of_many_lines_is_bounded(tmp_path):
    line = "x" * 2**20 + "\n"
    path = table(tmp_path / "rows.csv", ['"', *[line] * 40, '",a\n', "y,b\n"])
    bad_rows = BadRows("skip")
    assert [row["text"] for row in read_rows(path, bad_rows=bad_rows)][-1] == "y"
    assert "lines 2 to 17 are one row" in bad_rows.messages[0]


@pytest.mark.parametrize("piece", [b" " * 2**20, (b"x" * 2**17 + b"\n") * 8], ids=["one line", "many lines"])
def test_a_gzip_bomb_is_refused(piece, tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_UNPACKED", 2**23)
    path = tmp_path / "bomb.jsonl.gz"
    path.write_bytes(30 * gzip.compress(piece))
    for read in (lambda: list(read_rows(path)), lambda: sum(1 for _ in read_text_rows(path, file_format="lines"))):
        with pytest.raises(ValueError, match=r"bomb\.jsonl\.gz(, line 1: (line too long|broken JSON)| unpacks to)"):
            read()
    with pytest.raises(ValueError, match=r"bomb\.jsonl\.gz"):
        list(read_rows(path, bad_rows=BadRows("skip")))


def test_a_file_of_names_that_is_no_text_is_named(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfgood \r\n\nb\xe4d\n")
    with pytest.raises(BadRow, match=r"names\.txt, line 3: invalid UTF-8"):
        read_names(tmp_path / "names.txt")
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfgood \r\n\nbetter")
    assert read_names(tmp_path / "names.txt") == ["good", "better"]


def test_numbers_that_json_does_not_have_are_refused(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"text": "x", "labels": ["a"], "weight": NaN}\n')
    with pytest.raises(BadRow, match="line 1: broken JSON"):
        list(read_text_rows(tmp_path / "rows.jsonl"))


NO_TEXTS = {
    "xz": lzma.compress(b'{"text": "a", "labels": ["b"]}\n'),
    "bz2": bz2.compress(b'{"text": "a", "labels": ["b"]}\n'),
    "zst": b"\x28\xb5\x2f\xfd" + bytes(9),
    "zip": b"PK\x03\x04" + bytes(9),
    "parquet": b"PAR1" + bytes(9),
    "pdf": b"%PDF-1.7\n",
    "pickle": pickle.dumps({"text": "a"}),
    "npy": b"\x93NUMPY" + bytes(9),
    "utf-16": "text,labels\na,b\n".encode("utf-16"),
    "utf-16 without mark": "text,labels\na,b\n".encode("utf-16-be"),
    "tar": b"a.txt".ljust(257, b"\0") + b"ustar" + bytes(250),
}


@pytest.mark.parametrize("kind", NO_TEXTS)
@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.txt", "rows"])
def test_files_that_are_no_text_are_named(kind, zipped, name, tmp_path):
    path = tmp_path / name
    path.write_bytes(gzip.compress(NO_TEXTS[kind]) if zipped else NO_TEXTS[kind])
    for read in (read_rows, read_text_rows):
        with pytest.raises(ValueError, match=re.escape(str(path))):
            list(read(path))


def test_zipped_texts_are_read_whatever_their_date(tmp_path):
    for date in (0, 1):
        (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "a", "labels": ["b"]}\n', mtime=date))
        assert list(read_rows(tmp_path / "a.jsonl.gz")) == [{"text": "a", "labels": ["b"]}]


def test_a_field_that_is_there_twice_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "text": "c", "labels": ["b"]}\n')
    with pytest.raises(BadRow, match=r"a\.jsonl, line 1: broken JSON .a field is there twice"):
        list(read_rows(tmp_path / "a.jsonl"))


def test_a_table_without_header_does_not_lose_its_first_row(tmp_path):
    (tmp_path / "a.csv").write_text('1,"a text",b\n2,"another",c\n')
    with pytest.raises(ValueError, match=r"a\.csv, line 1: .* is a row"):
        list(read_rows(tmp_path / "a.csv", file_format="aplc_csv"))
