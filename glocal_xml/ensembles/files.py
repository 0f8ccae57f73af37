"""Labels ranked by the mean of the scores that several prediction files, of this package and of others, give them."""

import logging
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from glocal_xml.data import LabelSpace, read_text_rows
from glocal_xml.data.array_files import read_sparse_matrix
from glocal_xml.data.rows import good_records
from glocal_xml.data.sources import read_known_rows
from glocal_xml.data.text_files import check_file, read_json_objects
from glocal_xml.metrics import pad_label_lists, xmtc_metrics
from glocal_xml.runs.prepare import read_label_names
from glocal_xml.runs.report import results_table
from glocal_xml.runs.run_folder import check_run_folder, prediction_lines
from glocal_xml.training.arguments import DataArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import ranking_metrics

from .checkpoints import ENSEMBLE, check_members, ensemble_facts, member_names, write_ensemble

logger = logging.getLogger(__name__)

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


def run_file_ensemble(
    paths: Sequence[str], data_args: DataArguments, args: XMTCTrainingArguments, *, top_k: int = 10
) -> dict[str, Any]:
    """
    Averages prediction files of the same texts, in the same order; a label that a file does not have counts 0 there.
    `data_args` names test texts, where metrics are asked for, training texts for the counts behind PSP and bands, and
    names of labels, for files that have numbers.
    """
    started = time.time()
    check_members(paths, top_k)
    check_run_folder(args.output_dir, resume=None, overwrite=args.overwrite_output)
    names = member_names(paths)
    label_names = read_label_names(data_args.label_names_file)
    files = [read_prediction_file(path, label_names=label_names, text_column=data_args.text_column) for path in paths]
    by_name = dict(zip(names, files, strict=True))
    for name, file in by_name.items():
        logger.info("%s: %d texts, %d labels each at most", name, len(file.labels), file.top_k)
    test = None if data_args.test_file is None else list(_rows(data_args.test_file, data_args, files))
    texts = check_same_texts(files, None if test is None else [row["text"] for row in test])
    space, has_counts = _label_space(files, test or [], label_names, data_args), data_args.train_file is not None
    ids, scores = mean_ranking(files, space)
    results = ensemble_facts(names, paths, data_args, args, top_k=top_k)
    results[ENSEMBLE]["labels_of_a_text"] = {name: file.top_k for name, file in by_name.items()}
    results["data"] = {"texts": {"test": len(ids)}, "labels": space.num_labels, "evaluation_only": len(space.unseen)}
    if test is not None:
        true = pad_label_lists([space.encode(row["labels"]) for row in test])
        rankings, results["test"] = {ENSEMBLE: ids}, {}
        for name, file in by_name.items():
            rankings[name] = pad_label_lists([_in_order(labels, space) for labels in file.labels])
        for name, best in rankings.items():
            # Those that go by training counts only where these are known.
            ks = [k for k in args.metrics_at if k <= best.shape[1]]
            found = ranking_metrics(best, true, space, args) if has_counts else xmtc_metrics(best, true, ks=ks)
            results["test"][name] = found
        logger.info("test, %d texts\n%s", len(test), results_table(results["test"], args))
        if not has_counts:
            logger.info("PSP needs training counts: pass the training texts by `--train_file`.")
    own = [best[best >= 0] for best in ids[:, :top_k]]
    values = [row[: len(best)] for row, best in zip(scores, own, strict=True)]
    labels = [[] if test is None else _in_order(test[row]["labels"], space) for row in range(len(ids))]
    lines = list(prediction_lines("test", texts or [None] * len(ids), own, values, labels, space))
    return write_ensemble(args.output_dir, results, lines, started)


def mean_ranking(files: Sequence[PredictionFile], space: LabelSpace) -> tuple[np.ndarray, np.ndarray]:
    """
    Ids and mean scores of all labels that files have for a text, best first and of equal ones the lower id first.

    Both are of shape (texts, most labels of a text), filled up with -1 and 0.
    """
    width = space.num_labels + len(space.unseen)
    mean = sparse.csr_array((len(files[0].labels), width))  # (texts, labels)
    for file in files:
        own = np.fromiter((i for labels in file.labels for i in _in_order(labels, space)), np.int64)
        values, ends = np.fromiter(chain.from_iterable(file.scores), float), np.cumsum([0, *map(len, file.labels)])
        mean += sparse.csr_array((values, own, ends), shape=mean.shape)
    mean /= len(files)
    numbers = np.diff(mean.indptr)  # (texts,)
    order = np.lexsort((mean.indices, -mean.data, np.repeat(np.arange(len(numbers)), numbers)))
    filled = np.arange(numbers.max(initial=0)) < numbers[:, None]
    ids, scores = np.full(filled.shape, -1, dtype=np.int64), np.zeros(filled.shape)
    ids[filled], scores[filled] = mean.indices[order], mean.data[order]
    return ids, scores


def _in_order(labels: Iterable[str], space: LabelSpace) -> list[int]:
    """Ids of labels in the order in which they are given."""
    return [space.encode([label])[0] for label in labels]


def check_same_texts(files: Sequence[PredictionFile], texts: list[str] | None) -> list[str] | None:
    """The texts, if the test file or any of the files has them; files about other texts are an error."""
    source = "the test file"
    if texts is None:
        texts, source = next(((file.texts, file.path) for file in files if file.texts is not None), (None, source))
    number = len(files[0].labels) if texts is None else len(texts)
    for file in files:
        if len(file.labels) != number:
            raise ValueError(
                f"{file.path} has predictions for {len(file.labels)} texts, {source if texts else files[0].path} has "
                f"{number}: row i of each must be about text i of all."
            )
        for row, (own, other) in enumerate(zip(file.texts or [], texts or [], strict=False), start=1):
            if own != other:
                raise ValueError(
                    f"Row {row} of {file.path} is about {own[:40]!r}, in {source} it is about {other[:40]!r}: "
                    "predict for the same texts in the same order."
                )
    return texts


def _label_space(
    files: Sequence[PredictionFile], test: Iterable[dict[str, Any]], names: list[str] | None, data_args: DataArguments
) -> LabelSpace:
    """All labels there are; without training texts their counts are 0."""
    predicted = [labels for file in files for labels in file.labels]
    if data_args.train_file is not None:
        lists = (row["labels"] for row in _rows(data_args.train_file, data_args, files))
        space = LabelSpace.from_label_lists(lists, names=names)
    else:
        names = names or sorted({name for labels in predicted for name in labels})
        space = LabelSpace(names, [0] * len(names), num_texts=1)
    space.add_unseen(predicted)
    space.add_unseen(row["labels"] for row in test)
    return space


def _rows(path: str, data_args: DataArguments, files: Sequence[PredictionFile]) -> Iterator[dict[str, Any]]:
    names = ("file_format", "text_column", "labels_column", "label_delimiter", "label_map")
    predicted = {name for file in files for labels in file.labels for name in labels}
    return read_known_rows(path, predicted, **{name: getattr(data_args, name) for name in names})
