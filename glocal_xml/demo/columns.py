"""Which columns an uploaded file has, and which of them holds the texts."""

import csv
from collections import Counter
from itertools import chain, islice

from glocal_xml.data.rows import converted, good_records
from glocal_xml.data.text_files import json_objects, parse_cells, read_lines
from glocal_xml.data.text_rows import format_by_name

_ROWS_READ = 20


def text_columns(path: str) -> list[str]:
    """
    The columns that hold strings; the most likely one comes first: that called "text", else that with the longest
    strings. A file of plain lines has none.
    """
    lines = (line.decode("utf-8", "replace") for line in read_lines(path))
    kind, first = format_by_name(path), next(lines)
    if kind == "lines" or (kind is None and not first.lstrip().startswith("{")):
        return []
    lines = chain([first], lines)
    if kind in ("csv", "tsv"):
        records = parse_cells(lines, "\t" if kind == "tsv" else _delimiter(first))
        _, header = next(good_records(path, records), (1, []))
        rows = converted(records, lambda cells: dict(zip(map(str.strip, header), cells, strict=False)))
    else:
        rows = json_objects(enumerate(lines, start=1))
    lengths = Counter[str]()
    for _, row in good_records(path, islice(rows, _ROWS_READ)):
        lengths.update({name: len(value) for name, value in row.items() if isinstance(value, str)})
    if not any(lengths.values()):
        raise ValueError(f"None of the first {_ROWS_READ} rows of {path} holds a text; choose another file.")
    return sorted(lengths, key=lambda name: (name != "text", -lengths[name]))


def _delimiter(header: str) -> str:
    """The one that gives most columns."""
    return max(",;\t", key=lambda sign: len(next(csv.reader([header], delimiter=sign), [])))
