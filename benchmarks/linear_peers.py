"""
P@k of linear models, omikuji (Parabel-style) and XR-Linear of PECOS, beside runs of our own.

    pip install ".[bench]"
    python benchmarks/linear_peers.py --results outputs/debtags/glocal_xml/results.json --json peers.json
    python benchmarks/linear_peers.py --train_file train.jsonl --test_file test.jsonl --pecos_python pecos/bin/python

Both run with their defaults, on all cores, on the same TF-IDF of words (min_df 2, sublinear tf); the metrics are those
of this package. XR-Linear needs older packages and so an environment of its own: `xr_linear.py` says which.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from datasets import Dataset
from scipy.sparse import csr_matrix, save_npz

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import LabelSpace, read_rows
from glocal_xml.metrics import pad_label_lists, xmtc_metrics

DATA = Path(__file__).parents[1] / "examples" / "data" / "debtags"
COLUMNS = ["precision@1", "precision@3", "precision@5", "ndcg@5", "psp@5"]
TOP_K = 5


def tf_idf(train_texts, test_texts):
    """Features of training and test texts, and seconds for those of training."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    started = time.perf_counter()
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True, dtype=np.float32)
    features = vectorizer.fit_transform(train_texts)
    seconds = time.perf_counter() - started
    return features, vectorizer.transform(test_texts), seconds


def omikuji(features, train_labels, rows, num_labels):
    """Ids of the best labels of the test texts, and what is to be said of the run."""
    import omikuji

    started = time.perf_counter()
    with tempfile.NamedTemporaryFile("w", suffix=".txt", delete=False) as file:
        file.write(f"{features.shape[0]} {features.shape[1]} {num_labels}\n")
        for row, labels in enumerate(train_labels):
            start, end = features.indptr[row : row + 2]
            pairs = zip(features.indices[start:end], features.data[start:end], strict=True)
            file.write(",".join(map(str, labels)) + " " + " ".join(f"{i}:{v:.6f}" for i, v in pairs) + "\n")
    try:
        model = omikuji.Model.train_on_data(file.name)
    finally:
        os.unlink(file.name)
    trained = time.perf_counter()
    best = []
    for row in range(rows.shape[0]):
        start, end = rows.indptr[row : row + 2]
        pairs = list(zip(rows.indices[start:end].tolist(), rows.data[start:end].tolist(), strict=True))
        best.append([label for label, _ in model.predict(pairs, top_k=TOP_K)])
    seconds = time.perf_counter() - trained
    facts = {
        "version": version("omikuji"),
        "train_seconds": trained - started,
        "predict_ms_per_text": 1000 * seconds / rows.shape[0],
    }
    return pad_label_lists(best), facts


def xr_linear(features, train_labels, rows, num_labels, python):
    """The same of XR-Linear, by another Python."""
    numbers = [len(labels) for labels in train_labels]
    ids = np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(labels) for labels in train_labels)])
    starts = np.concatenate([[0], np.cumsum(numbers)])
    labels = csr_matrix(
        (np.ones(len(ids), dtype=np.float32), ids.astype(np.int64), starts), shape=(len(train_labels), num_labels)
    )
    labels.sort_indices()
    with tempfile.TemporaryDirectory() as folder:
        for name, matrix in (("features", features), ("labels", labels), ("test", rows)):
            save_npz(Path(folder, f"{name}.npz"), matrix.sorted_indices())
        script = Path(__file__).with_name("xr_linear.py")
        # Packages of this environment would hide those of the other.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, script, folder, str(TOP_K)], check=True, env=environment)
        facts = json.loads(Path(folder, "facts.json").read_text(encoding="utf-8"))
        return np.load(Path(folder, "best.npy")), facts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", default=DATA / "train.jsonl.gz", help="training texts; default: debtags")
    parser.add_argument("--test_file", default=DATA / "test.jsonl.gz", help="test texts; default: debtags")
    parser.add_argument("--max_train_texts", type=int, help="the same random part as a run with this flag takes")
    parser.add_argument("--seed", type=int, default=42, help="decides that part (default: 42)")
    parser.add_argument("--results", nargs="*", default=[], help="results.json of runs on the same data")
    parser.add_argument("--pecos_python", help="Python of an environment with libpecos; without it omikuji runs alone")
    parser.add_argument("--json", help="file to write the table to")
    options = parser.parse_args()

    train, test = (list(read_rows(file)) for file in (options.train_file, options.test_file))
    space = LabelSpace.from_label_lists(row["labels"] for row in train)
    if options.max_train_texts is not None:
        part = Dataset.from_dict({"row": range(len(train))}).shuffle(seed=options.seed)["row"]
        train = [train[row] for row in part[: options.max_train_texts]]
        counts = LabelSpace.from_label_lists((row["labels"] for row in train), names=space.names)
        space = replace(space, counts=counts.counts, num_texts=len(train))
    space.add_unseen(row["labels"] for row in test)
    true_labels = pad_label_lists([space.encode(row["labels"]) for row in test])
    features, rows, feature_seconds = tf_idf([row["text"] for row in train], [row["text"] for row in test])
    train_labels = [space.encode(row["labels"]) for row in train]
    peers = {"omikuji": omikuji(features, train_labels, rows, space.num_labels)}
    if options.pecos_python:
        peers["XR-Linear"] = xr_linear(features, train_labels, rows, space.num_labels, options.pecos_python)
    most_frequent = np.argsort(-np.asarray(space.counts), kind="stable")[:TOP_K]
    propensities = space.inverse_propensities()

    def metrics(best):
        return xmtc_metrics(best, true_labels, inverse_propensities=propensities)

    table = {"label frequency": metrics(np.tile(most_frequent, (len(test), 1)))}
    table |= {f"{name} {facts['version']}": metrics(best) for name, (best, facts) in peers.items()}
    for path in options.results:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        family = run["settings"]["model"]["model_type"]
        table |= {f"{family}, {name}": row for name, row in run["test"].items() if name != "label frequency"}

    print(f"{options.test_file}, {len(test)} test texts, percent; PSP with A = 0.55, B = 1.5")
    print(f"{'':28}" + "".join(f"{column:>13}" for column in COLUMNS))
    for name, values in table.items():
        print(f"{name:28}" + "".join(f"{100 * values[column]:13.2f}" for column in COLUMNS))
    print(f"TF-IDF of the training texts: {feature_seconds:.1f} s")
    for name, (_, facts) in peers.items():
        print(
            f"{name}: {facts['train_seconds']:.1f} s to train, {facts['predict_ms_per_text']:.2f} ms to predict a text"
        )
    if options.json:
        content = {
            "data": os.path.relpath(options.test_file),
            "feature_seconds": feature_seconds,
            "peers": {name: facts for name, (_, facts) in peers.items()},
            "python": platform.python_version(),
            "results": table,
        }
        write_atomically(options.json, json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
