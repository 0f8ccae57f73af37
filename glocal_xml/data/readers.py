"""Readers: one function per file format, all of them giving rows of `{"text", "labels"}`."""

import os
from collections.abc import Iterator
from pathlib import Path
from reprlib import repr as shortened
from typing import Any

from .repository_formats import (
    INDEXED_LINE,
    matrix_file,
    read_aplc_records,
    read_label_map,
    read_matrix_pairs,
    read_pecos_pairs,
    read_xc_pairs,
    sparse_header,
)
from .rows import BadRows, Records, RowProblem, clean_row, converted, good_records
from .text_files import (
    check_file,
    paired_lines,
    read_cells,
    read_json_objects,
    read_lines,
    read_text_lines,
    table_delimiter,
    table_rows,
)

_WITH_FIELDS = ("jsonl", "csv", "tsv", "aplc_csv")
FILE_FORMATS = ("jsonl", "csv", "tsv", "text_pair", "aplc_csv", "xc_json", "pecos", "pecos_npz", "sparse")


def read_rows(
    path: str | os.PathLike,
    *,
    file_format: str | None = None,
    text_column: str = "text",
    labels_column: str = "labels",
    label_delimiter: str | None = None,
    labels_path: str | os.PathLike | None = None,
    label_map: str | os.PathLike | None = None,
    allow_no_labels: bool = False,
    bad_rows: BadRows | None = None,
) -> Iterator[dict[str, Any]]:
    r"""Yields `{"text": str, "labels": list[str]}` for each row of a UTF-8 file, plain or gzipped.

    Args:
        path: The file; its lines end in `\n` or `\r\n`.
        file_format: One of `FILE_FORMATS`; detected when not given.
        text_column: Name of the text in jsonl, csv and tsv.
        labels_column: Name of the labels in jsonl, csv and tsv.
        label_delimiter: What separates labels inside a string; by default a space for text_pair and a comma otherwise.
        labels_path: The labels of a text_pair; by default the file called `labels` where this one is called `texts`.
            The matrix of pecos_npz; by default `Y….npz` beside `X….txt`.
        label_map: Names of the labels of xc_json, pecos and pecos_npz; without it labels are called by their index.
        allow_no_labels: Whether a row may have no labels, and a file no place for them.
        bad_rows: Where bad rows are reported; by default the first one is an error.
    """
    path = check_file(path)
    if file_format is None:
        file_format = detect_format(path, text_column=text_column, labels_column=labels_column)
    if file_format not in FILE_FORMATS:
        raise ValueError(f"file_format is {file_format!r}, allowed are {list(FILE_FORMATS)}; choose one of them")
    if file_format == "sparse":
        raise ValueError(
            f"{path} is a sparse feature file and holds no texts; train on the raw text files of the dataset "
            "and read this one with read_sparse to build a label tree"
        )
    if label_delimiter == "":
        raise ValueError("label_delimiter is an empty string; give the character between two labels")
    for name, value, formats in (
        ("labels_path", labels_path, ("text_pair", "pecos_npz")),
        ("label_map", label_map, ("xc_json", "pecos", "pecos_npz")),
    ):
        if value is not None and file_format not in formats:
            raise ValueError(f"{name} belongs to {' and '.join(formats)}, and {path} is {file_format}; leave it out")
    delimiter = label_delimiter or (" " if file_format == "text_pair" else ",")
    if file_format in _WITH_FIELDS:
        pairs = _field_pairs(path, file_format, text_column, labels_column, allow_no_labels)
    elif file_format == "text_pair":
        labels_file = _labels_file(path, labels_path, allow_no_labels)
        if labels_file is None:
            pairs = converted(read_text_lines(path), lambda text: (text, ""))
        else:
            pairs = paired_lines(path, labels_file, read_text_lines(labels_file))
    else:
        label_names = None if label_map is None else read_label_map(label_map)
        if file_format == "xc_json":
            pairs = read_xc_pairs(path, label_names, allow_no_labels)
        elif file_format == "pecos":
            pairs = read_pecos_pairs(path, label_names, allow_no_labels)
        else:
            pairs = read_matrix_pairs(path, labels_path, label_names)
    return valid_rows(path, pairs, delimiter, allow_no_labels, bad_rows)


def read_written_labels(
    path: str | os.PathLike,
    *,
    file_format: str | None = None,
    text_column: str = "text",
    labels_column: str = "labels",
    **_: Any,
) -> Iterator[Any]:
    """Yields the labels of each row of a table or of JSON lines that has some, as they are written."""
    path = check_file(path)
    file_format = file_format or detect_format(path, text_column=text_column, labels_column=labels_column)
    if file_format in _WITH_FIELDS:
        for _, pair in _field_pairs(path, file_format, text_column, labels_column, allow_no_labels=True):
            if not isinstance(pair, RowProblem) and pair[1] not in (None, []):
                yield pair[1]


def _field_pairs(path: Path, file_format: str, text_column: str, labels_column: str, allow_no_labels: bool) -> Records:
    """Yields (line number, (text, labels)) of a file of named fields."""
    if file_format == "aplc_csv":
        records, text_column, labels_column = read_aplc_records(path), "text", "labels"
    elif file_format == "jsonl":
        records = read_json_objects(path)
    else:
        records = _table(path, file_format, text_column, labels_column, allow_no_labels)

    def parse(record: dict) -> tuple[Any, Any]:
        for name in (text_column,) if allow_no_labels else (text_column, labels_column):
            if name not in record:
                remedy = f"the row has {shortened(list(record))}: name the right one as text_column or labels_column"
                raise RowProblem("missing field", repr(name), remedy)
        return record[text_column], record.get(labels_column, [])

    return converted(records, parse)


def valid_rows(
    source: str | os.PathLike, pairs: Records, delimiter: str, allow_no_labels: bool, bad_rows: BadRows | None
) -> Iterator[dict[str, Any]]:
    """Yields the clean rows of numbered pairs of text and labels; others are reported."""
    options = {"label_delimiter": delimiter, "allow_no_labels": allow_no_labels}
    rows = converted(pairs, lambda pair: clean_row(*pair, **options))
    return (row for _, row in good_records(source, rows, bad_rows))


def _table(path: Path, file_format: str, text_column: str, labels_column: str, allow_no_labels: bool) -> Records:
    first = next(read_lines(path)).decode("utf-8", "replace")
    # Where .csv is written with a decimal comma, its cells often have no comma between them.
    records = read_cells(path, "\t" if file_format == "tsv" else table_delimiter(first, text_column))
    _, header = next(good_records(path, records), (1, []))
    header = [name.strip() for name in header]
    for name in (text_column,) if allow_no_labels else (text_column, labels_column):
        if name not in header:
            remedy = (
                "name the right ones as text_column and labels_column, or choose the file_format aplc_csv if the "
                "columns are an id, text and labels"
            )
            if len(header) == 1:
                # Such as `text|labels`, or the line `sep=;` of Excel: another name would not help.
                remedy = "begin with the names of the columns, and put commas, semicolons or tabs between cells"
            raise ValueError(f"{path} has no column {name!r}, only {header}, by its first line; {remedy}")
        if header.count(name) > 1:
            raise ValueError(f"{path} has {header.count(name)} columns {name!r}; give each column a name of its own")
    return table_rows(header, records)


def _labels_file(path: Path, labels_path: str | os.PathLike | None, allow_no_labels: bool) -> Path | None:
    if labels_path is not None:
        return check_file(labels_path)
    names = [path.name.replace("raw_texts", "labels"), path.name.replace("texts", "labels")]
    candidates = [path.with_name(name) for name in names if name != path.name]
    found = [candidate for candidate in candidates if candidate.exists()]
    if found:
        return check_file(found[0])
    if allow_no_labels:
        return None
    if not candidates:
        raise ValueError(f"{path.name!r} does not contain 'texts': rename it, or pass labels_path in Python")
    raise FileNotFoundError(f"there is no {candidates[0]} with the labels of {path}; make it, or pass labels_path")


def files_of_texts(path: str | os.PathLike, file_format: str) -> list[Path]:
    """A file of texts, and the one with their labels where that is another one."""
    path = check_file(path)
    if file_format == "text_pair":
        apart = _labels_file(path, None, allow_no_labels=True)
    else:
        apart = matrix_file(path) if file_format == "pecos_npz" else None
    return [path] if apart is None else [path, apart]


def detect_format(path: str | os.PathLike, *, text_column: str = "text", labels_column: str = "labels") -> str:
    """Tells the format of a file, one of `FILE_FORMATS`, by its name and its first line."""
    path = check_file(path)
    name = path.name.lower().removesuffix(".gz")
    first = next((line for line in read_lines(path) if line.strip()), b"").lstrip()
    if name.endswith(".tsv"):
        return "tsv"
    if name.endswith(".csv"):
        _, header = next(read_cells(path, ","), (0, None))
        columns = [name.strip() for name in header] if isinstance(header, list) else []
        # Of other tables with three columns it is not known which one is the text.
        is_aplc = len(columns) == 3 and columns[0] == "guid" and not {text_column, labels_column} & set(columns)
        return "aplc_csv" if is_aplc else "csv"
    if name.endswith(".txt") and "texts" in name:
        return "text_pair"
    if matrix_file(path) is not None:
        return "pecos_npz"
    if INDEXED_LINE.match(first):
        return "pecos"
    # An array of objects is refused where it is read.
    if first.startswith((b"{", b"[")) or name.endswith(".jsonl"):
        _, record = next(read_json_objects(path), (0, None))
        return "xc_json" if isinstance(record, dict) and "target_ind" in record else "jsonl"
    if sparse_header(first) is not None:
        return "sparse"
    raise ValueError(f"the format of {path} is not known; pass file_format, one of {list(FILE_FORMATS[:-1])}")
