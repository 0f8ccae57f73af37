"""Labels ranked by the mean of the scores that several prediction files give them, whatever made the files."""

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from scipy import sparse

from glocal_xml.data import LabelSpace
from glocal_xml.data.sources import read_known_rows
from glocal_xml.metrics import pad_label_lists, xmtc_metrics
from glocal_xml.runs.prepare import read_label_names
from glocal_xml.runs.report import results_table
from glocal_xml.runs.run_folder import check_run_folder, prediction_lines
from glocal_xml.training.arguments import DataArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import ranking_metrics

from .checkpoints import ENSEMBLE, check_members, ensemble_facts, member_names, write_ensemble
from .prediction_files import PredictionFile, read_prediction_file

logger = logging.getLogger(__name__)


def run_file_ensemble(
    paths: Sequence[str], data_args: DataArguments, args: XMTCTrainingArguments, *, top_k: int = 10
) -> dict[str, Any]:
    """
    Averages prediction files of the same texts, in the same order; a label that a file does not have counts 0 there.

    Args:
        paths: The files; see [`read_prediction_file`].
        data_args: Test texts, where metrics are asked for; training texts for the counts behind PSP and bands; names
            of labels, for files that have numbers.
        args, top_k: As in [`run_ensemble`].
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
    mean = sum(_matrix(file, space, width) for file in files) / len(files)  # (texts, labels), sparse
    numbers = np.diff(mean.indptr)  # (texts,)
    order = np.lexsort((mean.indices, -mean.data, np.repeat(np.arange(len(numbers)), numbers)))
    filled = np.arange(numbers.max(initial=0)) < numbers[:, None]
    ids, scores = np.full(filled.shape, -1, dtype=np.int64), np.zeros(filled.shape)
    ids[filled], scores[filled] = mean.indices[order], mean.data[order]
    return ids, scores


def _matrix(file: PredictionFile, space: LabelSpace, width: int) -> sparse.csr_array:
    ids = np.fromiter((i for labels in file.labels for i in _in_order(labels, space)), np.int64)
    scores = np.fromiter(chain.from_iterable(file.scores), float)
    return sparse.csr_array((scores, ids, np.cumsum([0, *map(len, file.labels)])), shape=(len(file.labels), width))


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
