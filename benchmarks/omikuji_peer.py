"""
P@k of omikuji (a Parabel-style tree over TF-IDF), by the metrics of this package, beside runs of our own.

    pip install ".[bench]"
    python benchmarks/omikuji_peer.py --results outputs/debtags/glocal_xml/results.json --json peers.json
    python benchmarks/omikuji_peer.py --train_file train.jsonl --test_file test.jsonl

omikuji runs with its defaults on unigrams (min_df 2, sublinear tf), in this process on all cores.
"""

import argparse
import json
import os
import platform
import tempfile
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import numpy as np
from datasets import Dataset

from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import LabelSpace, read_rows
from glocal_xml.metrics import pad_label_lists, xmtc_metrics

DATA = Path(__file__).parents[1] / "examples" / "data" / "debtags"
COLUMNS = ["precision@1", "precision@3", "precision@5", "ndcg@5", "psp@5"]


def omikuji_top_k(train_texts, train_labels, test_texts, num_labels, top_k=5):
    """Ids of the best labels of the test texts, seconds to train and milliseconds to predict a text."""
    import omikuji
    from sklearn.feature_extraction.text import TfidfVectorizer

    started = time.perf_counter()
    vectorizer = TfidfVectorizer(min_df=2, sublinear_tf=True)
    features = vectorizer.fit_transform(train_texts)
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
    rows = vectorizer.transform(test_texts)
    best = []
    for row in range(rows.shape[0]):
        start, end = rows.indptr[row : row + 2]
        pairs = list(zip(rows.indices[start:end].tolist(), rows.data[start:end].tolist(), strict=True))
        best.append([label for label, _ in model.predict(pairs, top_k=top_k)])
    seconds = time.perf_counter() - trained
    return pad_label_lists(best), trained - started, 1000 * seconds / rows.shape[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", default=DATA / "train.jsonl.gz", help="training texts; default: debtags")
    parser.add_argument("--test_file", default=DATA / "test.jsonl.gz", help="test texts; default: debtags")
    parser.add_argument("--max_train_texts", type=int, help="the same random part as a run with this flag takes")
    parser.add_argument("--seed", type=int, default=42, help="decides that part (default: 42)")
    parser.add_argument("--results", nargs="*", default=[], help="results.json of runs on the same data")
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
    best, train_seconds, predict_ms = omikuji_top_k(
        [row["text"] for row in train],
        [space.encode(row["labels"]) for row in train],
        [row["text"] for row in test],
        space.num_labels,
    )
    most_frequent = np.argsort(-np.asarray(space.counts), kind="stable")[:5]
    propensities = space.inverse_propensities()
    table = {
        "label frequency": xmtc_metrics(
            np.tile(most_frequent, (len(test), 1)), true_labels, inverse_propensities=propensities
        ),
        f"omikuji {version('omikuji')}": xmtc_metrics(best, true_labels, inverse_propensities=propensities),
    }
    for path in options.results:
        run = json.loads(Path(path).read_text(encoding="utf-8"))
        family = run["settings"]["model"]["model_type"]
        table |= {f"{family}, {name}": row for name, row in run["test"].items() if name != "label frequency"}

    print(f"{options.test_file}, {len(test)} test texts, percent; PSP with A = 0.55, B = 1.5")
    print(f"{'':28}" + "".join(f"{column:>13}" for column in COLUMNS))
    for name, values in table.items():
        print(f"{name:28}" + "".join(f"{100 * values[column]:13.2f}" for column in COLUMNS))
    print(
        f"omikuji: {train_seconds:.1f} s to train, {predict_ms:.2f} ms to predict a text, TF-IDF included in training"
    )
    if options.json:
        facts = {
            "train_seconds": train_seconds,
            "predict_ms_per_text": predict_ms,
            "python": platform.python_version(),
        }
        facts |= {name: version(name) for name in ("omikuji", "scikit-learn", "numpy")}
        content = {"data": os.path.relpath(options.test_file), "omikuji": facts, "results": table}
        write_atomically(options.json, json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
