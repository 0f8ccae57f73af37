"""Predictions kept in files, by this package and by others: labels of each text by name, with scores."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from glocal_xml.data import BadRow, read_text_rows
from glocal_xml.data.array_files import read_sparse_matrix
from glocal_xml.data.rows import RowProblem
from glocal_xml.data.text_files import check_file, read_json_objects

# By their names; a model is a folder or an id on the Hub.
_SUFFIXES = (".jsonl", ".jsonl.gz", ".npz", ".txt", ".txt.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


@dataclass
class PredictionFile:
    """
    What a file says of each text.

    Args:
        path: The file.
        labels: Names of the labels of each text, best first.
        scores: Their scores.
        texts: The texts, where the file has them.
    """

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

    Args:
        path: The file.
        label_names: Label i is `label_names[i]`, for the last two, which know labels by number.
        text_column: The field of the text in JSON lines, where they have it.
    """
    path = str(check_file(path))
    if path.endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        raise ValueError(f"{path} is for spreadsheets, which labels may be changed for; give predictions as .jsonl.")
    if path.endswith(".npz"):
        read = _from_matrix(path, _known(path, label_names))
    else:
        rows = [row["text"] for row in read_text_rows(path, file_format="lines")]
        if rows and rows[0].lstrip().startswith("{"):
            read = _from_json_lines(path, text_column)
        else:
            read = _from_omikuji(path, rows, _known(path, label_names))
    _check_scores(read)
    return read


def _known(path: str, label_names: Sequence[str] | None) -> Sequence[str]:
    if label_names is None:
        raise ValueError(
            f"{path} has numbers for labels: pass their names, a line each, by `--label_names_file`, such as the "
            "labels.txt of a trained model where the numbers are those of it."
        )
    return label_names


def _from_json_lines(path: str, text_column: str) -> PredictionFile:
    labels, scores, texts, rows = [], [], [], list(read_json_objects(Path(path)))
    # A run writes the texts that it was to predict behind its test texts.
    has_test = any(isinstance(row, dict) and row.get("part") == "test" for _, row in rows)
    for number, row in rows:
        if isinstance(row, RowProblem):
            raise BadRow(f"{path}, line {number}: {row}")
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
        labels.append([label for label, _ in pairs])
        scores.append([score for _, score in pairs])
        texts.append(row.get(text_column))
    return PredictionFile(path, labels, scores, None if None in texts else texts)


def _from_omikuji(path: str, rows: Iterable[str], label_names: Sequence[str]) -> PredictionFile:
    labels, scores = [], []
    for number, row in enumerate(rows, start=1):
        try:
            pairs = [cell.split(" ") for cell in row.split("\t")] if row.strip() else []
            ids, values = [int(label) for label, _ in pairs], [float(score) for _, score in pairs]
        except ValueError:
            raise ValueError(
                f"{path}, line {number}: {row[:60]!r} is neither JSON nor `label score` pairs between tabs, as "
                "`omikuji test --out_path` writes them."
            ) from None
        labels.append(_names(path, ids, label_names))
        scores.append(values)
    return PredictionFile(path, labels, scores)


def _from_matrix(path: str, label_names: Sequence[str]) -> PredictionFile:
    matrix = read_sparse_matrix(path)
    labels, scores = [], []
    for start, end in pairwise(matrix.indptr):
        ids, values = matrix.indices[start:end], matrix.data[start:end].astype(float)
        # PECOS does not always write the best first.
        order = np.lexsort((ids, -values))
        labels.append(_names(path, ids[order].tolist(), label_names))
        scores.append(values[order].tolist())
    return PredictionFile(path, labels, scores)


def _names(path: str, ids: list[int], label_names: Sequence[str]) -> list[str]:
    if ids and not 0 <= min(ids) <= max(ids) < len(label_names):
        wrong = next(i for i in ids if not 0 <= i < len(label_names))
        raise ValueError(
            f"{path} has label {wrong}, but there are {len(label_names)} names, from 0 on: pass the names of the "
            "labels it was made with by `--label_names_file`."
        )
    return [label_names[i] for i in ids]


def _check_scores(read: PredictionFile) -> None:
    for number, (labels, scores) in enumerate(zip(read.labels, read.scores, strict=True), start=1):
        if len(set(labels)) != len(labels):
            raise ValueError(f"{read.path}, row {number}: a label is there twice; give each once.")
        wrong: list[Any] = [score for score in scores if not 0 <= score <= 1]
        if wrong:
            raise ValueError(
                f"{read.path}, row {number}: the score {wrong[0]} is no probability, so that a mean with others would "
                "say nothing: give scores from 0 to 1."
            )
