"""Formats of public extreme-classification data: APLC_XLNet's CSV, the Repository's JSON and sparse files, PECOS."""

import os
import re
from array import array
from collections import Counter
from itertools import pairwise
from math import isfinite
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from .array_files import read_sparse_matrix
from .rows import BadRow, Records, RowProblem, check_encodable, converted, good_records
from .text_files import (
    check_file,
    paired_lines,
    read_cells,
    read_json_objects,
    read_lines,
    read_text_lines,
    table_rows,
)

_LARGEST_INDEX = 2**63 - 1
# A line that reads `label,label<tab>text`, labels being indices.
INDEXED_LINE = re.compile(rb"\d+(:[^,\t]*)?(,\d+(:[^,\t]*)?)*\t")
_SPARSE_LINE = "write `label,label feature:value feature:value` with indices below those of the header"


def read_aplc_records(path: Path) -> Records:
    """Yields (line number, `guid`, `text` and `labels`) after checking that the header has three columns."""
    records = read_cells(path, ",")
    _, header = next(good_records(path, records), (1, []))
    if len(header) != 3:
        raise ValueError(f"{path}: the header is {header!r}, aplc_csv needs three columns (guid, text, labels)")
    # A file without header would lose its first row.
    if any(name.strip().isdigit() for name in header):
        raise ValueError(f"{path}, line 1: {shortened(header)} is a row, no header; begin with guid,text,labels")
    return table_rows(("guid", "text", "labels"), records)


def read_xc_pairs(path: Path, label_names: list[str] | None, allow_no_labels: bool) -> Records:
    """Yields (line number, (text, labels)) of the Repository's objects."""

    def parse(record: dict) -> tuple[str, list[str]]:
        parts = [record.get("title", ""), record.get("content", "")]
        if not all(isinstance(part, str) for part in parts):
            raise RowProblem("wrong type", "for title or content", "both must be strings")
        text = "\n".join(part.strip() for part in parts if part.strip())
        if "target_ind" not in record and not allow_no_labels:
            raise RowProblem("missing field", "'target_ind'", f"the row has {shortened(list(record))}")
        return text, named_labels(record.get("target_ind", []), label_names)

    return converted(read_json_objects(path), parse)


def read_pecos_pairs(path: Path, label_names: list[str] | None, allow_no_labels: bool) -> Records:
    """Yields (line number, (text, labels)) of lines that begin with label indices and a tab."""

    def parse(line: str) -> tuple[str, list[str]]:
        indices, tab, text = line.partition("\t")
        if not tab:
            if not allow_no_labels:
                raise RowProblem("no tab", "", "write `label,label<tab>text` with labels by their indices")
            return line, []
        # What follows a colon is a relevance, of which models here make no use.
        digits = [item.partition(":")[0] for item in indices.split(",") if item]
        if not all(item.isascii() and item.isdigit() and len(item) < 20 for item in digits):
            raise RowProblem("labels that are no indices:", repr(indices[:50]), "write `label,label<tab>text`")
        return text, named_labels([int(item) for item in digits], label_names)

    return converted(read_text_lines(path), parse)


def matrix_file(path: Path) -> Path | None:
    """The matrix of labels that belongs to a file of texts: `Y.trn.npz` to `X.trn.txt`; none where there is none."""
    if not (path.name.startswith("X") and path.name.endswith(".txt")):
        return None
    candidate = path.with_name(f"Y{path.name[1:].removesuffix('.txt')}.npz")
    return candidate if candidate.exists() else None


def read_matrix_pairs(path: Path, labels_path: str | os.PathLike | None, label_names: list[str] | None) -> Records:
    """Yields (line number, (text, labels)) of lines of text and the rows of a SciPy matrix in `.npz`."""
    labels_file = matrix_file(path) if labels_path is None else Path(labels_path)
    if labels_file is None:
        raise FileNotFoundError(f"{path} has no labels beside it: call them Y….npz and it X….txt, or pass labels_path")
    matrix = read_sparse_matrix(labels_file)
    # A stored zero is no label.
    matrix.eliminate_zeros()
    indices = (matrix.indices[start:stop].tolist() for start, stop in pairwise(matrix.indptr))
    labels = converted(enumerate(indices, start=1), lambda indices: named_labels(indices, label_names))
    return paired_lines(path, labels_file, labels, unit="row")


def named_labels(indices: Any, label_names: list[str] | None) -> list[str]:
    """The names of label indices, or the indices themselves as names; `RowProblem` for what is no index."""
    if not isinstance(indices, list) or any(type(index) is not int for index in indices):
        raise RowProblem("wrong type", f"for label indices: {shortened(indices)}", "give a list of integers")
    largest = _LARGEST_INDEX if label_names is None else len(label_names) - 1
    for index in indices:
        if not 0 <= index <= largest:
            remedy = f"indices run from 0 to {largest}; give the label file that belongs to this file"
            raise RowProblem("label index outside the map:", str(index), remedy)
    return [str(index) if label_names is None else label_names[index] for index in indices]


def read_label_map(path: str | os.PathLike) -> list[str]:
    """Reads the names of labels 0, 1, 2, ... from JSON lines with `title` and `uid`, or from plain text lines.

    Names are made unique: an empty title becomes the uid or the index, a repeated one gets it appended.
    """
    path = check_file(path)
    is_json = next(read_lines(path)).lstrip().startswith(b"{")
    records = converted(read_json_objects(path) if is_json else read_text_lines(path), _title_and_uid)
    # What has no title or no uid goes by its index.
    keyed = [(title, uid or str(index)) for index, (_, (title, uid)) in enumerate(good_records(path, records))]
    named = [(title or key, key) for title, key in keyed]
    times = Counter(title for title, _ in named)
    taken = {title for title, count in times.items() if count == 1}
    names = []
    for index, (title, key) in enumerate(named):
        name = title if times[title] == 1 else f"{title} ({key})"
        while times[title] > 1 and name in taken:
            name = f"{name} ({index})"
        taken.add(name)
        names.append(name)
    return names


def _title_and_uid(record: dict | str) -> tuple[str, str]:
    record = {"title": record} if isinstance(record, str) else record
    title, uid = (" ".join(str(record.get(name) or "").split()) for name in ("title", "uid"))
    check_encodable(title + uid)
    return title, uid


def read_sparse(path: str | os.PathLike) -> tuple[csr_matrix, list[list[int]]]:
    """Reads a Repository file of bag-of-words features: a header `N D L`, then `l1,l2 f:v f:v ...` per text.

    Returns the N x D features, sparse, and the label indices of each text.
    """
    path = check_file(path)
    lines = enumerate(read_lines(path), start=1)
    first = next(lines)[1]
    header = sparse_header(first)
    if header is None or max(header) > _LARGEST_INDEX:
        raise BadRow(
            f"{path}, line 1: the header is {shortened(first)}; "
            "a sparse file starts with its numbers of texts, features and labels"
        )
    num_texts, num_features, num_labels = header
    values, columns, ends, labels = array("d"), array("q"), array("q", [0]), []
    for number, line in lines:
        try:
            labels.append(_read_sparse_line(line, num_features, num_labels, columns, values))
        except ValueError as error:
            raise BadRow(f"{path}, line {number}: {error}; {_SPARSE_LINE}") from error
        ends.append(len(columns))
    if len(labels) != num_texts:
        raise ValueError(f"{path}: the header announces {num_texts} texts, the file has {len(labels)}; repair either")
    features = csr_matrix(
        (np.asarray(values), np.asarray(columns), np.asarray(ends)), shape=(num_texts, num_features), dtype=np.float64
    )
    features.sum_duplicates()
    return features, labels


def sparse_header(line: bytes) -> tuple[int, int, int] | None:
    """Returns N, D and L when the line is the header of a sparse file."""
    fields = line.split()
    if len(fields) != 3 or not all(field.isdigit() and len(field) < 20 for field in fields):
        return None
    return int(fields[0]), int(fields[1]), int(fields[2])


def _read_sparse_line(line: bytes, num_features: int, num_labels: int, columns: array, values: array) -> list[int]:
    fields = line.split()
    labels = []
    # A text without labels starts with a space, or at once with its first feature.
    if fields and b":" not in fields[0]:
        labels = [_index(label, num_labels, "label") for label in fields.pop(0).split(b",")]
    for field in fields:
        column, _, value = field.partition(b":")
        columns.append(_index(column, num_features, "feature"))
        values.append(float(value))
        if not isfinite(values[-1]):
            raise ValueError(f"the value of feature {columns[-1]} is {values[-1]}")
    return labels


def _index(digits: bytes, count: int, kind: str) -> int:
    index = int(digits)
    if not 0 <= index < count:
        raise ValueError(f"{kind} {index} is not between 0 and {count - 1}")
    return index
