"""Lines, table cells and JSON objects of plain or gzipped UTF-8 files, each with its line number."""

import csv
import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from reprlib import repr as shortened
from typing import IO

from .rows import RowProblem

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_GZIP_MAGIC = b"\x1f\x8b"
_LARGEST_CELL = 2**27
# What stands for standard input, and for standard output, in place of a file.
DASH = "-"


def check_file(path: str | os.PathLike) -> Path:
    """Returns the path of an existing, non-empty file or says why it is none."""
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder, not a file; give the path of one file inside it")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; check the path")
    if not path.stat().st_size:
        raise ValueError(f"{path} is empty; give a file with at least one row")
    return path


def read_lines(path: Path | str) -> Iterator[bytes]:
    r"""Yields the lines of a plain or gzipped file, ended by `\n` only, without a byte order mark."""
    number = 0
    with _opened(path) as file:
        try:
            for number, line in enumerate(file, start=1):
                yield line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{path}, after line {number}: damaged gzip file ({error}); copy or compress it again"
            ) from error
    # What a pipe brings may be nothing; a file was meant to hold something.
    if not number and path != DASH:
        raise ValueError(f"{path} is empty; give a file with at least one row")


@contextmanager
def _opened(path: Path | str) -> Iterator[IO[bytes]]:
    """A file, or standard input for `-`, unzipped where it is zipped."""
    with nullcontext(sys.stdin.buffer) if path == DASH else open(path, "rb") as plain:
        if plain.peek(2)[:2] != _GZIP_MAGIC:
            yield plain
            return
        with gzip.open(plain) as unzipped:
            yield unzipped


def read_text_lines(path: Path) -> Iterator[tuple[int, str | RowProblem]]:
    """Yields (line number, line without its end)."""
    for number, line in enumerate(read_lines(path), start=1):
        try:
            yield number, line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError:
            yield number, _not_utf8()


def read_cells(path: Path, delimiter: str) -> Iterator[tuple[int, list[str] | RowProblem]]:
    """Yields (number of the first line, cells) of each record of a delimited file, blank lines left out."""
    lines = (line.decode("utf-8", "surrogateescape") for line in read_lines(path))
    for number, cells in parse_cells(lines, delimiter):
        yield number, cells if isinstance(cells, RowProblem) or _is_utf8(cells) else _not_utf8()


def table_delimiter(header: str, column: str) -> str:
    """What separates the cells of a table with this header: a comma, or the semicolon or tab that gives the column."""
    for delimiter in ",;\t":
        if column in (cell.strip() for cell in next(csv.reader([header], delimiter=delimiter), [])):
            return delimiter
    return ","


def parse_cells(lines: Iterable[str], delimiter: str) -> Iterator[tuple[int, list[str] | RowProblem]]:
    """Yields what `read_cells` does, of lines with their ends."""
    csv.field_size_limit(max(csv.field_size_limit(), _LARGEST_CELL))
    # Not strict, a quote that is never closed would swallow the rest of the file without a word.
    reader = csv.reader(lines, delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            yield (
                number,
                RowProblem("broken CSV", f"({error})", "put the cell in double quotes, doubling those inside"),
            )
            continue
        if cells:
            yield number, cells


def read_json_objects(path: Path) -> Iterator[tuple[int, dict | RowProblem]]:
    """Yields (line number, object) of a JSON lines file, blank lines left out."""
    for number, line in read_text_lines(path):
        if isinstance(line, RowProblem):
            yield number, line
        elif line.strip():
            yield number, parse_json_object(line)


def parse_json_object(line: str) -> dict | RowProblem:
    """The JSON object of a line, or why it is none."""
    try:
        value = json.loads(line)
    # A deep nest exhausts the parser's stack, and an integer of 5000 digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        return RowProblem("broken JSON", f"({error})", "write one JSON object per line")
    if not isinstance(value, dict):
        return RowProblem("not a JSON object:", shortened(value), "write one JSON object per line")
    return value


def _not_utf8() -> RowProblem:
    return RowProblem("invalid UTF-8", "", "save the file as UTF-8 or repair the line")


def _is_utf8(cells: list[str]) -> bool:
    try:
        "".join(cells).encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
