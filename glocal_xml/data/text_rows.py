"""Texts to predict labels for, row by row from a file or a pipe, and rows written back in their order."""

import csv
import gzip
import json
import logging
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import chain, islice
from pathlib import Path
from reprlib import repr as shortened
from types import SimpleNamespace
from typing import Any

from ..atomic_file import open_atomically
from ..json_text import json_text
from .rows import RowProblem, converted, good_records
from .text_files import DASH, check_file, json_objects, name_of, parse_cells, read_lines, table_delimiter, table_rows

logger = logging.getLogger(__name__)

TEXT_FORMATS = ("jsonl", "csv", "tsv", "lines")
ROW_FORMATS = ("jsonl", "csv", "tsv")

_FORMATS_BY_NAME = {
    **{".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv"},
    **{".tab": "tsv", ".txt": "lines"},
}
_SURROGATES = re.compile("[\ud800-\udfff]")
_NUMBER = re.compile(r"[-+]?\d+([.,]\d+)?([eE][-+]?\d+)?")
# A spreadsheet takes a cell that begins like this for a formula, which may run programs or send cells away.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def format_by_name(path: str | os.PathLike) -> str | None:
    """What the name of a file says of its format, zipped or not; nothing for names that say nothing."""
    name = Path(path).name.lower().removesuffix(".gz")
    return _FORMATS_BY_NAME.get(os.path.splitext(name)[1])


def read_text_rows(
    path: str | os.PathLike, *, file_format: str | None = None, text_column: str = "text"
) -> Iterator[dict[str, Any]]:
    """
    Yields the rows of a file, plain or gzipped, one at a time and with all that they hold; the text of each is
    `row[text_column]`, a string that may be empty.

    Whatever a text is made of, it is read: bytes that are no UTF-8 and halves of surrogate pairs become U+FFFD. A row
    that is broken as such (no JSON object, no text, cells that do not fit the header) raises [`BadRow`] with its line.

    Args:
        path: The file, or `-` for standard input.
        file_format: One of `TEXT_FORMATS`, where "lines" is one text per line. By default by its name; else "jsonl"
            where the first line begins with a brace, and "lines" where it does not.
        text_column: The field or column that holds the text.
    """
    if file_format not in (None, *TEXT_FORMATS):
        raise ValueError(f"file_format is {file_format!r}, allowed are {list(TEXT_FORMATS)}; choose one of them")
    # The size of a pipe is not known.
    if path != DASH and not Path(path).is_fifo():
        check_file(path)
    return _rows(path, file_format or format_by_name(path), text_column)


def _rows(path: str | os.PathLike, file_format: str | None, text_column: str) -> Iterator[dict[str, Any]]:
    name = name_of(path)
    lines = _decoded(read_lines(path), name)
    if file_format is None:
        seen = []
        for line in lines:
            seen.append(line)
            if line.strip():
                break
        first = seen[-1] if seen else ""
        file_format = "jsonl" if first.lstrip().startswith(("{", "[{")) else "lines"
        if file_format == "lines" and text_column in re.split("[,;\t]", first.strip()):
            logger.warning(
                "%s is read as one text per line, but begins with %r: give `--input_format csv` if it is a table",
                *(name, first.strip()),
            )
        lines = chain(seen, lines)
    if file_format == "lines":
        plain = (line.removesuffix("\n").removesuffix("\r") for line in lines)
        records = ((number, {text_column: line}) for number, line in enumerate(plain, start=1))
    elif file_format == "jsonl":
        records = json_objects(enumerate(map(str.strip, lines), start=1))
    else:
        header = next(lines, "")
        delimiter = "\t" if file_format == "tsv" else table_delimiter(header, text_column)
        cells = parse_cells(chain([header] if header else [], lines), delimiter)
        # A pipe may bring nothing, not even a header.
        names = converted(islice(cells, 1), lambda names: _checked_header(names, text_column))
        records = (record for _, header in good_records(name, names) for record in table_rows(header, cells))
    for _, row in good_records(name, converted(records, lambda record: _readable(record, text_column))):
        yield row


def _decoded(lines: Iterable[bytes], name: str) -> Iterator[str]:
    errors = "strict"
    for number, line in enumerate(lines, start=1):
        try:
            yield line.decode("utf-8", errors)
        except UnicodeDecodeError:
            message = "%s, line %d: not UTF-8; what cannot be read is taken for U+FFFD, here and further on"
            logger.warning(message, name, number)
            errors = "replace"
            yield line.decode("utf-8", errors)


def _checked_header(cells: list[str], text_column: str) -> list[str]:
    header = [name.strip() for name in cells]
    if twice := [name for i, name in enumerate(header) if name in header[:i]]:
        raise RowProblem("two columns", f"called {twice[0]!r}", "give each a name of its own")
    _readable(dict.fromkeys(header, ""), text_column)
    return header


def _readable(record: dict[str, Any], text_column: str) -> dict[str, Any]:
    if text_column not in record:
        remedy = f"it has {shortened(list(record))}: name the column of the text by text_column"
        raise RowProblem("no text", f"called {text_column!r}", remedy)
    text = record[text_column]
    if not isinstance(text, str):
        raise RowProblem("wrong type", f"for the text: {shortened(text)}", "the text must be a string")
    return {**record, text_column: _SURROGATES.sub("\ufffd", text)}


def write_rows(rows: Iterable[dict[str, Any]], path: str | os.PathLike, *, file_format: str | None = None) -> int:
    """
    Writes rows as they come and returns their number. A file is there when it is whole, and not before.

    JSON lines hold every value as it is. CSV and TSV are for spreadsheets: their columns are those of the first row;
    values that are neither strings nor numbers are written as JSON; a cell that a spreadsheet would take for a formula
    gets a `'` in front; CSV begins with a byte order mark, without which Excel reads it as Latin-1.

    Args:
        rows: What to write.
        path: The file, or `-` for standard output, which gets each row at once.
        file_format: One of `ROW_FORMATS`; by default what the name says, or else "jsonl".
    """
    file_format = row_format(path, file_format)
    # The first line is what comes before all rows.
    number = -1
    with ExitStack() as stack:
        file = sys.stdout.buffer if path == DASH else stack.enter_context(open_atomically(path))
        if os.fspath(path).endswith(".gz"):
            file = stack.enter_context(gzip.open(file, "wb"))
        for line in format_rows(rows, file_format):
            number += 1
            # Half of a surrogate pair becomes the escape that JSON has for it.
            file.write(line.encode("utf-8", "backslashreplace"))
            if path == DASH:
                file.flush()
    return number


def row_format(path: str | os.PathLike, file_format: str | None = None) -> str:
    """The format to write rows in: the one asked for, what the name of the file says, or JSON lines."""
    suffix = os.path.splitext(os.fspath(path).removesuffix(".gz"))[1]
    found = file_format or format_by_name(path) or suffix or "jsonl"
    if found not in ROW_FORMATS:
        raise ValueError(
            f"rows cannot be written as {found!r}, allowed are {list(ROW_FORMATS)}; name the file accordingly, "
            "such as tagged.csv, or choose a format"
        )
    return found


def format_rows(rows: Iterable[dict[str, Any]], file_format: str) -> Iterator[str]:
    """Yields what comes before the rows of a format, which may be empty, and then each row with its line end."""
    if file_format == "jsonl":
        yield ""
        yield from (json_text(row) + "\n" for row in rows)
        return
    rows = iter(rows)
    first = next(rows, None)
    if first is None:
        yield ""
        return
    mark, end, delimiter = ("\ufeff", "\r\n", ",") if file_format == "csv" else ("", "\n", "\t")
    # A writer returns what the file returns that it writes to: here the line itself.
    writer = csv.writer(SimpleNamespace(write=str), delimiter=delimiter, lineterminator=end)
    yield mark + writer.writerow(map(_cell, first))
    warned = False
    for row in chain([first], rows):
        extra = row.keys() - first.keys()
        if extra and not warned:
            logger.warning("left out %s, which the first row does not have; jsonl keeps all", sorted(extra))
            warned = True
        yield writer.writerow([_cell(row.get(column)) for column in first])


def _cell(value: Any) -> Any:
    if value is None or isinstance(value, int | float):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(text) else text
