"""Lines, table cells and JSON objects of plain or gzipped UTF-8 files, each with its line number."""

import csv
import gzip
import json
import os
import sys
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import zip_longest
from pathlib import Path
from reprlib import repr as shortened
from typing import IO, Any, NoReturn

from .rows import Records, RowProblem, converted, good_records

_GZIP_MAGIC = b"\x1f\x8b"
# Bytes that tell what a file is.
_START = 512
# First bytes of files that people may give in place of texts.
_NO_TEXTS = {
    b"PK\x03\x04": "a zip archive or a spreadsheet",
    b"PK\x05\x06": "an empty zip archive",
    b"\xfd7zXZ\x00": "compressed by xz",
    b"BZh": "compressed by bzip2",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"\x04\x22\x4d\x18": "compressed by lz4",
    b"7z\xbc\xaf": "a 7z archive",
    b"Rar!\x1a": "a rar archive",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"ORC": "an ORC file",
    b"Obj\x01": "an Avro file",
    b"%PDF-": "a PDF file",
    b"SQLite f": "an SQLite database",
    b"\x89HDF": "an HDF5 file",
    b"\x93NUMPY": "a NumPy array",
    **{bytes([0x80, protocol]): "a Python pickle" for protocol in (2, 3, 4, 5)},
}
# Bytes of a line, and of a row of a table: five times the longest novels. What is longer is no text.
LONGEST_LINE = 2**24
# Bytes that anything compressed may hold, and further ones for each byte that it takes.
_UNPACKED, _UNPACKED_PER_BYTE = 2**28, 100
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


def _check_start(path: Path | str, start: bytes) -> None:
    """Refuses a file whose first bytes say that it is no UTF-8 text: it would be read as nonsense."""
    if start[:2] == _GZIP_MAGIC:
        return
    if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        raise ValueError(f"{name_of(path)} is UTF-16 text; save it as UTF-8, in Excel as `CSV UTF-8`")
    found = [kind for magic, kind in _NO_TEXTS.items() if start.startswith(magic)]
    if start[257:262] == b"ustar":
        found.append("a tar archive")
    elif b"\0" in start[:8]:
        found.append("binary, or UTF-16 without its mark")
    if found:
        raise ValueError(f"{name_of(path)} is {found[0]}, not text; unpack it, or save its rows as JSON lines or CSV")


def check_expansion(path: Path | str, packed: int, unpacked: int) -> None:
    """Refuses compressed content that would fill the memory or the disk."""
    if unpacked > _UNPACKED + _UNPACKED_PER_BYTE * packed:
        raise ValueError(
            f"{path} unpacks to {unpacked:,} bytes or more from {packed:,}, which is not read; give files that shrink "
            f"less than {_UNPACKED_PER_BYTE}-fold, or unpack it first"
        )


def read_lines(path: Path | str) -> Iterator[bytes]:
    r"""Yields the lines of a plain or gzipped file, ended by `\n` only, without a byte order mark."""
    return (line for _, line in good_records(name_of(path), _bounded_lines(path)))


def _bounded_lines(path: Path | str) -> Records:
    """Yields what `read_lines` does with its numbers, and a problem in the place of a line that is too long."""
    number = unpacked = 0
    is_cut = False
    with _opened(path) as (file, packed):
        try:
            while line := file.readline(LONGEST_LINE + 1):
                unpacked += len(line)
                if packed is not None:
                    check_expansion(name_of(path), packed.number, unpacked)
                is_rest, is_cut = is_cut, not line.endswith(b"\n") and (is_cut or len(line) > LONGEST_LINE)
                # The first part of a line that is too long stands for all of it.
                if is_rest:
                    continue
                number += 1
                if len(line) > LONGEST_LINE:
                    line = RowProblem("line too long", f"(above {LONGEST_LINE:,} bytes)", "split it, or remove it")
                elif number == 1:
                    line = line.removeprefix(BOM_UTF8)
                yield number, line
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise ValueError(
                f"{name_of(path)}, after line {number}: damaged gzip file ({error}); copy or compress it again"
            ) from error
    # What a pipe brings may be nothing; a file was meant to hold something.
    if not number and path != DASH:
        raise ValueError(f"{path} is empty; give a file with at least one row")


class _CountedFile:
    """A compressed file that counts the bytes that were read."""

    def __init__(self, file: IO[bytes]):
        self.file, self.number = file, 0

    def read(self, size: int) -> bytes:
        content = self.file.read(size)
        self.number += len(content)
        return content


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[IO[bytes], _CountedFile | None]]:
    """A file, or standard input for `-`, unzipped where it is zipped; then with what was read of the zipped one."""
    with nullcontext(sys.stdin.buffer) if path == DASH else open(path, "rb") as plain:
        start = plain.peek(_START)[:_START]
        _check_start(path, start)
        if start[:2] != _GZIP_MAGIC:
            yield plain, None
            return
        packed = _CountedFile(plain)
        with gzip.GzipFile(fileobj=packed, mode="rb") as unzipped:
            # Damage is reported with its line, where it is met.
            with suppress(gzip.BadGzipFile, EOFError, zlib.error):
                start = unzipped.peek(_START)[:_START]
            _check_start(path, start)
            yield unzipped, packed


def name_of(path: Path | str) -> str:
    """What errors call a file, or standard input."""
    return "standard input" if path == DASH else os.fspath(path)


def read_text_lines(path: Path) -> Records:
    """Yields (line number, line without its end)."""
    return converted(_bounded_lines(path), lambda line: line.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8"))


def read_strict_lines(path: str | os.PathLike) -> Records:
    """Yields (line number, line without its end) of a file in which no line may be broken."""
    return good_records(path, read_text_lines(check_file(path)))


def read_names(path: str | os.PathLike) -> list[str]:
    """Names that a file holds, one per line, without blanks around them; empty lines are left out."""
    return [line.strip() for _, line in read_strict_lines(path) if line.strip()]


def read_cells(path: Path, delimiter: str) -> Records:
    """Yields (number of the first line, cells) of each record of a delimited file, blank lines left out."""
    # Bytes that are no UTF-8 are found where it is known which row they belong to.
    lines = converted(_bounded_lines(path), lambda line: line.decode("utf-8", "surrogateescape"))
    return converted(parse_cells((line for _, line in lines), delimiter), _encodable)


def _encodable(cells: list[str]) -> list[str]:
    "".join(cells).encode("utf-8")
    return cells


def table_delimiter(header: str, column: str) -> str:
    """What separates the cells of a table with this header: a comma, or the semicolon or tab that gives the column."""
    for delimiter in ",;\t":
        # What is no header is reported with its line by those who read the table.
        with suppress(csv.Error):
            if column in (cell.strip() for cell in next(csv.reader([header], delimiter=delimiter), [])):
                return delimiter
    return ","


def parse_cells(lines: Iterable[str | RowProblem], delimiter: str) -> Records:
    """
    Yields what `read_cells` does, of lines with their ends. A quote that is never closed, or closed by that of another
    row, makes one row of several: such a row is a problem, and reading continues at its second line.
    """
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))
    source, again, taken = iter(lines), deque[str | RowProblem](), list[str | RowProblem]()
    number = width = 0

    def next_lines() -> Iterator[str]:
        size = 0
        while again or (line := next(source, None)) is not None:
            taken.append(again.popleft() if again else line)
            size += len(taken[-1]) if isinstance(taken[-1], str) else LONGEST_LINE + 1
            if size > LONGEST_LINE:
                return
            yield taken[-1]

    while True:
        taken.clear()
        try:
            # Strict: otherwise what follows an open quote would be one cell without a word.
            cells = next(csv.reader(next_lines(), delimiter=delimiter, strict=True), None)
        except csv.Error as error:
            cells = _broken_row(number + 1, len(taken), error)
        if not taken:
            return
        if cells is None:
            cells = taken[0] if isinstance(taken[0], RowProblem) else _broken_row(number + 1, len(taken), "too long")
        if isinstance(cells, list) and len(taken) > 1 and width not in (0, len(cells)):
            cells = _broken_row(number + 1, len(taken), f"{len(cells)} cells where the first row has {width}")
        if cells:
            yield number + 1, cells
            width = width or (len(cells) if isinstance(cells, list) else 0)
        kept = 1 if isinstance(cells, RowProblem) else len(taken)
        again.extendleft(reversed(taken[kept:]))
        number += kept


def _broken_row(first: int, length: int, error: csv.Error | str) -> RowProblem:
    if "new-line character" in str(error):
        return RowProblem("broken CSV", "(a carriage return outside quotes)", "end lines in \\n or \\r\\n")
    span = f"({error})" if length == 1 else f"({error}: lines {first} to {first + length - 1} are one row)"
    return RowProblem("broken CSV", span, "close every quote; put the cell in double quotes, doubling those inside")


def table_rows(header: Sequence[str], records: Records) -> Records:
    """Yields (line number, cells by the names of the header)."""

    def named(cells: list[str]) -> dict[str, str]:
        if len(cells) != len(header):
            detail = f"({len(cells)} where the header has {len(header)})"
            raise RowProblem("wrong number of cells", detail, "quote cells that hold the delimiter")
        return dict(zip(header, cells, strict=True))

    return converted(records, named)


def paired_lines(path: Path, labels_file: Path, labels: Records, unit: str = "line") -> Records:
    """Yields (line number, (text, labels)) of two files, line by line."""
    num_texts = num_labels = 0
    for (line, text), (labels_line, own) in zip_longest(read_text_lines(path), labels, fillvalue=(0, None)):
        num_texts, num_labels = max(num_texts, line), max(num_labels, labels_line)
        if text is not None and own is not None:
            yield line, next((part for part in (text, own) if isinstance(part, RowProblem)), (text, own))
    if num_texts != num_labels:
        raise ValueError(
            f"{path} has {num_texts} lines, {labels_file} has {num_labels} {unit}s; "
            f"line i of one must belong to {unit} i of the other"
        )


def read_json_objects(path: Path) -> Records:
    """Yields (line number, object) of a JSON lines file, blank lines left out."""
    return json_objects(read_text_lines(path))


def json_objects(lines: Records) -> Records:
    """Yields (line number, object) of numbered lines, blank ones left out."""
    filled = ((number, line) for number, line in lines if isinstance(line, RowProblem) or line.strip())
    return converted(filled, _json_object)


def _json_object(line: str) -> dict:
    remedy = "write one JSON object per line"
    if line.lstrip().startswith("["):
        remedy += ", without an array around them: `jq -c '.[]'` makes such lines"
    try:
        value = json.loads(line, parse_constant=_refuse_constant, object_pairs_hook=_unique_fields)
    # A deep nest exhausts the parser's stack, and an integer of 5000 digits is a plain ValueError.
    except (ValueError, RecursionError) as error:
        raise RowProblem("broken JSON", f"({error})", remedy) from None
    if not isinstance(value, dict):
        raise RowProblem("not a JSON object:", shortened(value), remedy)
    return value


def _unique_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")
    return fields


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
