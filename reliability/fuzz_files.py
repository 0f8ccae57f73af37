"""Files as people, disks and attackers make them, for every reader, and what a reader may do with one."""

import gzip
import io
import json
import random
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from glocal_xml.data import BadRow, LabelSpace, LabelTree, read_label_map, read_rows, read_sparse, read_text_rows
from glocal_xml.data.array_files import read_sparse_matrix
from glocal_xml.data.rows import BadRows, RowProblem
from glocal_xml.data.text_files import read_names
from glocal_xml.data.words import load_word_vectors
from glocal_xml.ensembles.files import read_prediction_file

GOOD_TEXT = re.compile(r"good text \d+ end")


@dataclass(frozen=True)
class Target:
    """Content of a file, its name, and what reads it; `check` returns what became of it: "used" or "refused"."""

    content: st.SearchStrategy[bytes]
    name: str
    check: Callable[[Path, bytes], str]
    # Whether damaged copies of each file are tried too, which costs less than to think of another file.
    is_damaged: bool = True


def damaged_copies(content: bytes) -> Iterator[bytes]:
    """A file, and what copying, editing and sending makes of it; the same for the same file."""
    chance = random.Random(zlib.crc32(content))
    yield content
    yield content.replace(b"\n", b"\r\n")
    yield content.replace(b"\n", b"\r", chance.randint(1, 2))
    yield gzip.compress(content, 1, mtime=0)
    for _ in range(4):
        place = chance.randint(0, len(content))
        yield content[:place]
        yield content[:place] + chance.choice(_NASTY[:-9]) + content[place + chance.randint(0, 3) :]
        yield content[:place] + chance.randbytes(1) + content[place + 1 :]


class Broken(AssertionError):
    """A promise that did not hold."""


class _Reported(BadRows):
    """Keeps the lines of every bad row."""

    def __init__(self) -> None:
        super().__init__("skip")
        self.spans: list[tuple[int, int]] = []

    def report(self, file: Any, line: int, problem: RowProblem) -> None:
        super().report(file, line, problem)
        span = re.search(r"lines (\d+) to (\d+) are one row", str(problem))
        self.spans.append((int(span[1]), int(span[2])) if span else (line, line))
        if Path(file).name not in str(self.messages[0]) or line < 1:
            raise Broken(f"no file or line in {self.messages[0]!r}")


def refused(read: Callable[[], Any], path: Path) -> str:
    """Reads; an error must name the file, and its line where it is about a row."""
    try:
        read()
    except (ValueError, OSError) as error:
        message = str(error)
        if path.name.split(".")[0] not in message or isinstance(error, BadRow) and ", line " not in message:
            raise Broken(f"{type(error).__name__} without the place: {message[:300]}") from error
        return "refused"
    return "used"


def _lines(content: bytes) -> list[bytes]:
    """Lines as `\\n` ends them, without a mark before the first."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    lines = content.split(b"\n")
    lines = lines if lines[-1] else lines[:-1]
    return [line.removeprefix(b"\xef\xbb\xbf") if i == 0 else line for i, line in enumerate(lines)]


def _row_check(file_format: str, **options: Any) -> Callable[[Path, bytes], str]:
    """Every good row is used or lies in the lines of a bad one; where a line is a row, all of them are counted."""

    def check(path: Path, content: bytes) -> str:
        bad_rows = _Reported()
        rows: list[dict[str, Any]] = []

        def read() -> None:
            rows.extend(read_rows(path, file_format=file_format, bad_rows=bad_rows, **options))

        outcome = refused(read, path)
        if outcome == "refused":
            return outcome
        lines = _lines(content)
        if file_format in ("jsonl", "xc_json"):
            # What Python takes for a blank is one here, too.
            full = [line for line in lines if not _is_blank(line)]
            if len(rows) + bad_rows.total != len(full):
                raise Broken(f"{len(rows)} used and {bad_rows.total} refused of {len(full)} rows")
        if file_format in ("pecos", "text_pair") and len(rows) + bad_rows.total != len(lines):
            raise Broken(f"{len(rows)} used and {bad_rows.total} refused of {len(lines)} lines")
        # Where a line end is missing, a row is part of the labels of the one before.
        used = "\n".join("\n".join([row["text"], *map(str, row["labels"])]) for row in rows)
        # The first line of a table has the names of its columns.
        begin = int(file_format in ("csv", "tsv", "aplc_csv"))
        for number, line in enumerate(lines[begin:], start=begin + 1):
            for good in GOOD_TEXT.findall(line.decode("utf-8", "replace")):
                if good not in used and not any(first <= number <= last for first, last in bad_rows.spans):
                    raise Broken(f"{good!r} in line {number} is neither used nor refused ({bad_rows.spans})")
        return "used" if rows else "refused"

    return check


def _is_blank(line: bytes) -> bool:
    try:
        return not line.decode("utf-8").strip()
    except UnicodeDecodeError:
        return False


def _text_row_check(file_format: str | None) -> Callable[[Path, bytes], str]:
    def check(path: Path, content: bytes) -> str:
        rows: list[dict[str, Any]] = []
        outcome = refused(lambda: rows.extend(read_text_rows(path, file_format=file_format)), path)
        if outcome == "used":
            lines = _lines(content)
            if file_format == "lines" and len(rows) != len(lines):
                raise Broken(f"{len(rows)} texts of {len(lines)} lines")
            for row in rows:
                row["text"].encode("utf-8")
        return outcome

    return check


def _check(read: Callable[[Path], Any]) -> Callable[[Path, bytes], str]:
    return lambda path, content: refused(lambda: read(path), path)


def _label_space(path: Path) -> None:
    (path.parent / "label_counts.json").write_text('{"num_texts": 9, "counts": [1, 2, 3]}')
    LabelSpace.load(path.parent)


def _label_counts(path: Path) -> None:
    (path.parent / "labels.txt").write_text("a\nb\nc\n")
    LabelSpace.load(path.parent)


# Pieces that readers stumble over: quotes, delimiters, ends of lines, marks, halves of characters, endless numbers.
_NASTY = [
    *(
        b'"',
        b'""',
        b"'",
        b",",
        b";",
        b"\t",
        b"\\",
        b"\\n",
        b"\r",
        b"\r\n",
        b"\n",
        b"\0",
        b" ",
        b"\x0b",
        b"\x1c",
        b"\xe2\x80\xa8",
    ),
    *(b"\xef\xbb\xbf", b"\xff\xfe", b"\xc3", b"\xed\xa0\x80", b"\\ud800", b"\xf0\x9f\x8d\x8e", b"{", b"}", b"[", b"]"),
    *(
        b"NaN",
        b"Infinity",
        b"1e999",
        b"-1",
        b"0",
        b"9" * 30,
        b"9" * 5000,
        b"1:1",
        b"0:nan",
        b":",
        b"null",
        b"true",
        b"=1+1",
    ),
    *(
        b"[" * 3000,
        b"a" * 70_000,
        b"\x1f\x8b",
        b"PK\x03\x04",
        b"\x93NUMPY",
        b"#",
        b"---",
        b"&a *a",
        b"!!python/object:os.system x",
    ),
]
_PIECES = (
    st.sampled_from(_NASTY)
    | st.binary(max_size=8)
    | st.text(max_size=8).map(lambda text: text.encode("utf-8", "surrogatepass"))
)
_ENDS = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b"", b"\n \n"])


def _files(
    good: Callable[[int], bytes], header: bytes = b"", more: st.SearchStrategy[bytes] | None = None
) -> st.SearchStrategy[bytes]:
    """Files of good lines, damaged ones and nonsense, in any order, perhaps zipped or cut off."""
    nonsense = st.lists(_PIECES, max_size=4).map(b"".join)
    damaged = st.tuples(st.integers(0, 99), st.integers(0, 80), _PIECES, st.integers(0, 9)).map(
        lambda drawn: good(drawn[0])[: drawn[1]] + drawn[2] + good(drawn[0])[drawn[1] + drawn[3] :]
    )
    line = st.one_of(
        st.integers(0, 99).map(good), st.integers(0, 99).map(good), damaged, nonsense, *[more or st.nothing()]
    )
    lines = st.lists(st.tuples(line, _ENDS).map(b"".join), max_size=8).map(b"".join)
    start = st.sampled_from([b"", b"", b"", b"\xef\xbb\xbf"])
    whole = st.tuples(start, st.sampled_from([header, header, header, b""]), lines).map(b"".join)
    return st.one_of(whole, whole, whole, whole.map(_zipped), st.tuples(whole, st.integers(1, 60)).map(_cut_archive))


def _zipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)


def _cut_archive(drawn: tuple[bytes, int]) -> bytes:
    return _zipped(drawn[0])[: -drawn[1]]


def _json_line(i: int) -> bytes:
    return json.dumps({"text": f"good text {i} end", "labels": [f"label {i % 3}"]}).encode()


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
_OBJECTS = st.fixed_dictionaries(
    {}, optional={"text": _VALUES, "labels": _VALUES, "target_ind": _VALUES, "title": _VALUES}
).map(lambda value: json.dumps(value).encode("utf-8", "surrogatepass"))


def _npz(arrays: dict[str, Any], cut: int, flip: int) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            part = io.BytesIO()
            if isinstance(value, bytes):
                part.write(value)
            else:
                np.save(part, value, allow_pickle=False)
            archive.writestr(f"{name}.npy", part.getvalue())
    whole = bytearray(content.getvalue())
    if flip:
        whole[flip % len(whole)] ^= 1 + flip % 255
    return bytes(whole[: len(whole) - cut] if cut else whole)


_NUMBERS = st.lists(st.integers(-3, 9) | st.sampled_from([2**31, 2**62, -(2**62)]), max_size=6)
_ARRAYS = st.one_of(
    _NUMBERS.map(lambda values: np.array(values, dtype=np.int64)),
    st.lists(st.floats(), max_size=6).map(np.array),
    st.lists(st.sampled_from([0, 1, 2]), min_size=3, max_size=3).map(lambda values: np.array(values, dtype=np.int32)),
    st.lists(st.text("ab\0", max_size=3), max_size=3).map(np.array),
    st.just(np.zeros((2, 2))),
    st.just(np.array(True)),
    st.binary(max_size=20),
    st.sampled_from([np.array([0, 2, 3]), np.array([2, 3]), np.ones(3), np.array([0, 2, 1])]),
)
_DAMAGE = st.sampled_from([0, 0, 0, 1, 7, 40]), st.sampled_from([0, 0, 0]) | st.integers(1, 10**6)


def _archives(*whole: dict[str, np.ndarray]) -> st.SearchStrategy[bytes]:
    """Archives of these arrays, of which some are others or missing, perhaps damaged."""
    names = sorted({name for arrays in whole for name in arrays})
    others = st.dictionaries(st.sampled_from(names), _ARRAYS, max_size=2)
    missing = st.sets(st.sampled_from(names), max_size=1)
    arrays = st.tuples(st.sampled_from(whole), others, missing).map(
        lambda drawn: {name: value for name, value in (drawn[0] | drawn[1]).items() if name not in drawn[2]}
    )
    return st.tuples(arrays, *_DAMAGE).map(lambda drawn: _npz(*drawn))


def _matrix(kind: str, **arrays: list[int]) -> dict[str, np.ndarray]:
    values = {"format": np.array(kind.encode()), "shape": np.array([2, 3]), "data": np.ones(3)}
    return values | {name: np.array(value) for name, value in arrays.items()}


_MATRIX = _archives(
    _matrix("csr", indices=[0, 2, 1], indptr=[0, 2, 3]),
    _matrix("csc", indices=[0, 1, 0], indptr=[0, 1, 2, 3]),
    _matrix("coo", row=[0, 0, 1], col=[0, 2, 1]),
)
_TREE = {"label_order": np.array([0, 2, 1]), "child_starts_0": np.array([0, 2]), "child_starts_1": np.array([0, 2, 3])}
_VECTORS = _archives({"words": np.array(["a", "b", "c"]), "vectors": np.ones((3, 2), dtype=np.float32)})
_SPARSE_LINE = "0,2 0:0.5 3:{}"


def targets() -> dict[str, Target]:
    """What is fuzzed, by the name of the format."""
    table, tabs = b"text,labels\n", b"text\tlabels\n"
    rows = {
        "jsonl": Target(_files(_json_line, more=_OBJECTS), "rows.jsonl", _row_check("jsonl")),
        "csv": Target(
            _files(lambda i: f'"good text {i} end",label {i % 3}'.encode(), table), "rows.csv", _row_check("csv")
        ),
        "csv without quotes": Target(
            _files(lambda i: f"good text {i} end,label {i % 3}".encode(), table), "rows.csv", _row_check("csv")
        ),
        "tsv": Target(
            _files(lambda i: f"good text {i} end\tlabel {i % 3}".encode(), tabs), "rows.tsv", _row_check("tsv")
        ),
        "aplc_csv": Target(
            _files(lambda i: f'{i},"good text {i} end",1'.encode(), b"guid,text,labels\n"),
            "rows.csv",
            _row_check("aplc_csv"),
        ),
        "xc_json": Target(
            _files(
                lambda i: json.dumps({"title": f"good text {i} end", "target_ind": [i % 3]}).encode(), more=_OBJECTS
            ),
            "rows.json",
            _row_check("xc_json"),
        ),
        "pecos": Target(_files(lambda i: f"{i % 3},7\tgood text {i} end".encode()), "rows.txt", _row_check("pecos")),
        "text_pair": Target(_files(lambda i: f"good text {i} end".encode()), "texts.txt", _pair_check),
        "pecos_npz": Target(_MATRIX, "Y.trn.npz", _matrix_check),
        "any format": Target(
            _files(_json_line, table, _OBJECTS), "rows.csv", _check(lambda path: list(read_rows(path)))
        ),
    }
    texts = {
        f"predict {name or 'by content'}": Target(
            _files(_json_line if name in ("jsonl", None) else good, header, _OBJECTS),
            f"rows.{name or 'data'}",
            _text_row_check(name),
        )
        for name, good, header in (
            ("jsonl", _json_line, b""),
            ("csv", lambda i: f'"good text {i} end",{i}'.encode(), b"text,number\n"),
            ("tsv", lambda i: f"good text {i} end\t{i}".encode(), b"text\tnumber\n"),
            ("lines", lambda i: f"good text {i} end".encode(), b""),
            (None, _json_line, b""),
        )
    }
    names = ["a", "b", "c"]
    others = {
        "sparse matrix": Target(_MATRIX, "matrix.npz", _check(read_sparse_matrix)),
        "label tree": Target(_archives(_TREE), "tree.npz", _check(LabelTree.load)),
        "word vectors, npz": Target(_VECTORS, "vectors.npz", _check(lambda path: load_word_vectors(path, names))),
        "word vectors, text": Target(
            _files(lambda i: f"{'abc'[i % 3]} 0.5 {i}".encode(), b"3 2\n"),
            "vectors.txt",
            _check(lambda path: load_word_vectors(path, names)),
        ),
        "sparse features": Target(
            _files(lambda i: _SPARSE_LINE.format(i).encode(), b"2 9 3\n"), "features.txt", _check(read_sparse)
        ),
        "label map": Target(
            _files(lambda i: json.dumps({"title": f"t{i}", "uid": i}).encode(), more=_OBJECTS),
            "map.json",
            _check(read_label_map),
        ),
        "label names": Target(_files(lambda i: f"label {i}".encode()), "names.txt", _check(read_names)),
        "labels.txt": Target(
            st.one_of(st.just(b"a\nb\nc\n"), _files(lambda i: names[i % 3].encode())),
            "labels.txt",
            _check(_label_space),
        ),
        "label_counts.json": Target(
            st.dictionaries(st.sampled_from(["num_texts", "counts", "x"]), _VALUES).map(
                lambda value: json.dumps(value).encode()
            )
            | _files(lambda i: b'{"num_texts": 9, "counts": [1, 2, 3]}'),
            "label_counts.json",
            _check(_label_counts),
        ),
        "predictions, JSON lines": Target(
            _files(
                lambda i: json.dumps({"text": f"t{i}", "predictions": [{"label": "a", "score": 0.5}]}).encode(),
                more=_OBJECTS,
            ),
            "predictions.jsonl",
            _check(lambda path: read_prediction_file(str(path), label_names=names)),
        ),
        "predictions, matrix": Target(
            _MATRIX, "predictions.npz", _check(lambda path: read_prediction_file(str(path), label_names=names))
        ),
        "predictions, omikuji": Target(
            _files(lambda i: f"{i % 3}:0.5".encode()),
            "predictions.txt",
            _check(lambda path: read_prediction_file(str(path), label_names=names)),
        ),
    }
    return rows | texts | others


def _pair_check(path: Path, content: bytes) -> str:
    """Texts beside a file of labels with as many lines."""
    labels = path.with_name("labels.txt")
    labels.write_bytes(b"a b\n" * max(1, content.count(b"\n")))
    rows, bad_rows = [], _Reported()
    outcome = refused(
        lambda: rows.extend(read_rows(path, file_format="text_pair", labels_path=labels, bad_rows=bad_rows)), path
    )
    if outcome == "used" and len(rows) + bad_rows.total != len(_lines(content)):
        raise Broken(f"{len(rows)} used and {bad_rows.total} refused of {len(_lines(content))} lines")
    return outcome


def _matrix_check(path: Path, content: bytes) -> str:
    """The labels of two texts."""
    texts = path.with_name("X.trn.txt")
    texts.write_bytes(b"good text 1 end\ngood text 2 end\n")
    bad_rows = _Reported()
    rows: list[dict[str, Any]] = []
    outcome = refused(lambda: rows.extend(read_rows(texts, file_format="pecos_npz", bad_rows=bad_rows)), path)
    if outcome == "used" and len(rows) + bad_rows.total != 2:
        raise Broken(f"{len(rows)} used and {bad_rows.total} refused of 2 texts")
    return outcome
