"""Files of texts: which columns an uploaded one has, and the same with labels."""

import csv
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from glocal_xml.data import read_text_rows, write_rows
from glocal_xml.data.rows import converted, good_records
from glocal_xml.data.text_files import json_objects, parse_cells, read_lines
from glocal_xml.data.text_rows import format_by_name
from glocal_xml.tagged_rows import spread, tagged_rows

from .tagger import Predictions, Tagger

BATCH_SIZE = 32
NUM_SHOWN = 5
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


class TaggedFile(NamedTuple):
    """Where the tagged rows are, how many, and the first texts with their labels."""

    jsonl: str
    csv: str
    num_texts: int
    first: list[tuple[str, Predictions]]


def tag_file(tagger: Tagger, path: str, text_column: str, top_k: int, **options: Any) -> TaggedFile:
    """
    Tags every text of a file (JSONL, CSV, TSV or plain lines, gzipped or not) with at most `top_k` labels, by options
    of the pipeline; the results are put beside it, from where the page may serve them.
    """
    num_texts = sum(1 for _ in read_text_rows(path, text_column=text_column))
    first, progress = [], gr.Progress()

    def watched_rows() -> Iterator[dict[str, Any]]:
        rows = read_text_rows(path, text_column=text_column)
        tagged = tagged_rows(tagger.tag, rows, text_column, BATCH_SIZE, top_k=top_k, **options)
        for done, row in enumerate(tagged, start=1):
            if done <= NUM_SHOWN:
                first.append((row[text_column], row["predictions"][:NUM_SHOWN]))
            if done % BATCH_SIZE == 0:
                progress((done, num_texts), unit="texts")
            yield row

    # In a folder of its own: two people may send the same file at the same time.
    folder = Path(tempfile.mkdtemp(dir=Path(path).parent))
    stem = Path(path).name.removesuffix(".gz").rsplit(".", 1)[0]
    jsonl, table = folder / f"{stem}-tagged.jsonl", folder / f"{stem}-tagged.csv"
    write_rows(watched_rows(), jsonl)
    with open(jsonl, encoding="utf-8") as lines:
        write_rows((spread(json.loads(line), top_k, []) for line in lines), table)
    return TaggedFile(str(jsonl), str(table), num_texts, first)
