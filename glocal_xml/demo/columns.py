"""Which columns an uploaded file has, and which of them holds the texts."""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain, islice

from glocal_xml.data.rows import RowProblem
from glocal_xml.data.text_files import check_text_file, parse_cells, parse_json_object, read_lines
from glocal_xml.data.text_rows import format_by_name

_ROWS_READ = 20


def text_columns(path: str) -> list[str]:
    """
    The columns that hold strings; the most likely one comes first: that called "text", else that with the longest
    strings. A file of plain lines has none.
    """
    lines = (line.decode("utf-8", "replace") for line in read_lines(check_text_file(path)))
    kind, first = format_by_name(path), next(lines)
    if kind == "lines" or (kind is None and not first.lstrip().startswith("{")):
        return []
    lines = chain([first], lines)
    if kind in ("csv", "tsv"):
        rows = _table_rows(lines, "\t" if kind == "tsv" else _delimiter(first))
    else:
        rows = ((number, parse_json_object(line)) for number, line in enumerate(lines, start=1) if line.strip())
    lengths: dict[str, int] = {}
    for number, row in islice(rows, _ROWS_READ):
        if isinstance(row, RowProblem):
            raise ValueError(f"{path}, line {number}: {row}")
        for name, value in row.items():
            if isinstance(value, str):
                lengths[name] = lengths.get(name, 0) + len(value)
    if not any(lengths.values()):
        raise ValueError(f"None of the first {_ROWS_READ} rows of {path} holds a text; choose another file.")
    return sorted(lengths, key=lambda name: (name != "text", -lengths[name]))


def _delimiter(header: str) -> str:
    """The one that gives most columns."""
    return max(",;\t", key=lambda sign: len(next(csv.reader([header], delimiter=sign), [])))


def _table_rows(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, dict[str, str] | RowProblem]]:
    records = parse_cells(lines, delimiter)
    _, header = next(records)
    for number, cells in records:
        is_broken = isinstance(header, RowProblem) or isinstance(cells, RowProblem)
        yield number, cells if is_broken else dict(zip(map(str.strip, header), cells, strict=False))
