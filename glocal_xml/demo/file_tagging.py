"""Whole files tagged: texts in, the same rows with their labels out."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gradio as gr

from glocal_xml.data import read_text_rows, write_rows
from glocal_xml.tagged_rows import spread, tagged_rows

from .tagger import Predictions, Tagger

BATCH_SIZE = 32
NUM_SHOWN = 5


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
    jsonl, csv = folder / f"{stem}-tagged.jsonl", folder / f"{stem}-tagged.csv"
    write_rows(watched_rows(), jsonl)
    with open(jsonl, encoding="utf-8") as lines:
        write_rows((spread(json.loads(line), top_k, []) for line in lines), csv)
    return TaggedFile(str(jsonl), str(csv), num_texts, first)
