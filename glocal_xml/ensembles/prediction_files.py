"""Predictions kept in files, by this package and by others: labels of each text by name, with scores."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from glocal_xml.data import read_text_rows
from glocal_xml.data.array_files import read_sparse_matrix
from glocal_xml.data.rows import good_records
from glocal_xml.data.text_files import check_file, read_json_objects

# By their names; a model is a folder or an id on the Hub.
_TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
_SUFFIXES = (".jsonl", ".jsonl.gz", ".npz", ".txt", ".txt.gz", *_TABLES)
# Numbers of labels with their scores, best first.
NumberedRow = list[tuple[int, float]]


@dataclass
class PredictionFile:
    """What a file says of each text: names of its labels, best first, their scores, and the text if it is there."""

    path: str
    labels: list[list[str]]
    scores: list[list[float]]
    texts: list[str] | None = None

    @property
    def top_k(self) -> int:
        """Most labels of a text."""
        return max((len(names) for names in self.labels), default=0)


def is_prediction_file(path: str) -> bool:
    """Whether a member of an ensemble is a file, there or not, and no model."""
    return Path(path).is_file() or path.endswith(_SUFFIXES)


def read_prediction_file(
    path: str | os.PathLike, *, label_names: Sequence[str] | None = None, text_column: str = "text"
) -> PredictionFile:
    """
    Reads predictions in one of three formats, told apart by name and content:

    - JSON lines with `predictions`, as `glocal-xml predict` and `train` write them (of the latter the test texts);
    - the text file of `omikuji test --out_path`: a line for each text, `label score` between tabs;
    - the sparse matrix (texts, labels) that PECOS saves as `.npz`.

    The last two know labels by number: label i is `label_names[i]`.
    """
    path = str(check_file(path))
    if path.endswith(_TABLES):
        raise ValueError(f"{path} is for spreadsheets, which labels may be changed for; give predictions as .jsonl.")
    is_matrix = path.endswith(".npz")
    lines = [] if is_matrix else [row["text"] for row in read_text_rows(path, file_format="lines")]
    if lines and lines[0].lstrip().startswith("{"):
        rows = _json_rows(path, text_column)
    else:
        numbered = _matrix_rows(path) if is_matrix else _omikuji_rows(path, lines)
        rows = ((_named(path, row, label_names), None) for row in numbered)
    labels, scores, texts = [], [], []
    for number, (row, text) in enumerate(rows, start=1):
        if len({label for label, _ in row}) != len(row):
            raise ValueError(f"{path}, row {number}: a label is there twice; give each once.")
        if wrong := [score for _, score in row if not 0 <= score <= 1]:
            raise ValueError(
                f"{path}, row {number}: the score {wrong[0]} is no probability, so that a mean with others would "
                "say nothing: give scores from 0 to 1."
            )
        labels.append([label for label, _ in row])
        scores.append([score for _, score in row])
        texts.append(text)
    return PredictionFile(path, labels, scores, None if None in texts else texts)


def _json_rows(path: str, text_column: str) -> Iterator[tuple[list[tuple[str, float]], str | None]]:
    rows = list(good_records(path, read_json_objects(Path(path))))
    # A run writes the texts that it was to predict behind its test texts.
    has_test = any(row.get("part") == "test" for _, row in rows)
    for number, row in rows:
        if has_test and row.get("part") == "predict":
            continue
        if not isinstance(row.get(text_column, ""), str):
            raise ValueError(f"{path}, line {number}: the text is {row[text_column]!r}; it must be a string.")
        try:
            pairs = [(str(item["label"]), float(item["score"])) for item in row["predictions"]]
        except (KeyError, TypeError, ValueError):
            raise ValueError(
                f'{path}, line {number}: no `predictions` of the form [{{"label": "…", "score": 0.5}}, …]; write the '
                "file with `glocal-xml predict`."
            ) from None
        yield pairs, row.get(text_column)


def _omikuji_rows(path: str, lines: Iterable[str]) -> Iterator[NumberedRow]:
    for number, line in enumerate(lines, start=1):
        try:
            pairs = [cell.split(" ") for cell in line.split("\t")] if line.strip() else []
            row = [(int(label), float(score)) for label, score in pairs]
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: {line[:60]!r} is neither JSON nor `label score` pairs between tabs, as "
                "`omikuji test --out_path` writes them."
            ) from None
        yield row


def _matrix_rows(path: str) -> Iterator[NumberedRow]:
    matrix = read_sparse_matrix(path)
    for start, end in pairwise(matrix.indptr):
        ids, values = matrix.indices[start:end].tolist(), matrix.data[start:end].astype(float).tolist()
        # PECOS does not always write the best first.
        yield sorted(zip(ids, values, strict=True), key=lambda pair: (-pair[1], pair[0]))


def _named(path: str, row: NumberedRow, label_names: Sequence[str] | None) -> list[tuple[str, float]]:
    if label_names is None:
        raise ValueError(
            f"{path} has numbers for labels: pass their names, a line each, by `--label_names_file`, such as the "
            "labels.txt of a trained model where the numbers are those of it."
        )
    if wrong := [label for label, _ in row if not 0 <= label < len(label_names)]:
        raise ValueError(
            f"{path} has label {wrong[0]}, but there are {len(label_names)} names, from 0 on: pass the names of the "
            "labels it was made with by `--label_names_file`."
        )
    return [(label_names[label], score) for label, score in row]
