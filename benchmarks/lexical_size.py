"""
Time and memory of the fit of the lexical expert on growing synthetic data, and of omikuji beside it.

    pip install ".[bench]"
    python benchmarks/lexical_size.py --json benchmarks/results/lexical_size.json

The texts are those of `label_tree.py` with a vocabulary of 30,000 tokens, as tokenizers have it: labels and topics
follow Zipf's law with exponent 1/2. Each measurement is a process of its own, with its own peak of memory, workers
included, and a processor for each of `--threads`; on a busy machine compare processor time. omikuji (defaults: three
trees) reads the same counts, weighted by TF-IDF. P@1 is on 1,000 further texts.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
import psutil

TOKENS, WORDS, LABELS_PER_TEXT, TOPIC_SIZE, TOPIC_TOKENS = 30_000, 40, 3, 60, 100
# Labels: training texts.
SHAPES = {5_000: 5_000, 50_000: 50_000, 200_000: 200_000, 500_000: 500_000}
TEST_TEXTS = 1000


def synthetic_texts(num_texts, num_labels, seed=0):
    """Token ids, (texts, tokens), and label ids, (texts, labels), of texts."""
    rng = np.random.default_rng(seed)
    num_topics = -(-num_labels // TOPIC_SIZE)
    # Rank r of n is drawn with a probability that falls as r^-1/2.
    topics = (num_topics * rng.random(num_texts) ** 2).astype(np.int64)
    places = (TOPIC_SIZE * rng.random((num_texts, LABELS_PER_TEXT)) ** 2).astype(np.int64)
    labels = np.minimum(topics[:, None] * TOPIC_SIZE + places, num_labels - 1)
    topic_tokens = rng.integers(0, TOKENS, (num_topics, TOPIC_TOKENS), dtype=np.int32)
    label_tokens = rng.integers(0, TOKENS, (num_labels, 5), dtype=np.int32)
    ids = (TOKENS ** rng.random((num_texts, WORDS), dtype=np.float32)).astype(np.int32) - 1
    ranks = (TOPIC_TOKENS ** rng.random((num_texts, WORDS // 4), dtype=np.float32)).astype(np.int32) - 1
    ids[:, : WORDS // 4] = topic_tokens[topics[:, None], ranks]
    # Two tokens of each label of the text.
    own = np.repeat(labels, 2, axis=1)
    columns = slice(WORDS // 4, WORDS // 4 + own.shape[1])
    ids[:, columns] = label_tokens[own, rng.integers(0, 5, own.shape)]
    # Any order: the start of a text, which our expert counts apart, says no more than the rest of it. The same for the
    # numbers of labels, of which neighbours are strangers.
    return rng.permuted(ids, axis=1), rng.permutation(num_labels)[labels]


def cpu_seconds():
    """Processor time of this process and its workers: what others do on the machine does not count."""
    process = psutil.Process()
    return sum(sum(part.cpu_times()[:2]) for part in [process, *process.children(recursive=True)])


def split(num_labels):
    ids, labels = synthetic_texts(SHAPES[num_labels] + TEST_TEXTS, num_labels)
    return (ids[:-TEST_TEXTS], labels[:-TEST_TEXTS]), (ids[-TEST_TEXTS:], labels[-TEST_TEXTS:])


def fit_ours(num_labels, threads):
    import torch

    from glocal_xml.experts.lexical import fit_lexical

    (ids, labels), (test_ids, test_labels) = split(num_labels)
    rows = list(ids)
    label_lists = [np.unique(row).tolist() for row in labels]
    started, cpu = time.perf_counter(), cpu_seconds()
    expert, sizes = fit_lexical(rows, label_lists, num_labels, TOKENS, pairs=0, workers=threads, show_progress=False)
    seconds = time.perf_counter() - started, cpu_seconds() - cpu
    best = [expert(torch.from_numpy(test_ids[i : i + 50].astype(np.int64))).top_k(1).ids for i in range(0, 1000, 50)]
    hits = (torch.cat(best).numpy() == test_labels).any(axis=1)
    return seconds, hits.mean(), sum(sizes["entries"])


def fit_omikuji(num_labels, threads):
    import omikuji
    from scipy.sparse import csr_matrix
    from sklearn.feature_extraction.text import TfidfTransformer

    (ids, labels), (test_ids, test_labels) = split(num_labels)

    def counts(part):
        starts = np.arange(0, part.size + 1, part.shape[1])
        matrix = csr_matrix((np.ones(part.size, dtype=np.float32), part.ravel(), starts), shape=(len(part), TOKENS))
        matrix.sum_duplicates()
        return matrix

    weights = TfidfTransformer(sublinear_tf=True).fit(counts(ids))
    features, rows = weights.transform(counts(ids)), weights.transform(counts(test_ids))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "texts.txt")
        with path.open("w") as file:
            file.write(f"{len(ids)} {TOKENS} {num_labels}\n")
            for row, own in enumerate(labels):
                span = slice(*features.indptr[row : row + 2])
                pairs = zip(features.indices[span], features.data[span], strict=True)
                file.write(
                    ",".join(map(str, np.unique(own))) + " " + " ".join(f"{i}:{v:.5f}" for i, v in pairs) + "\n"
                )
        started, cpu = time.perf_counter(), cpu_seconds()
        model = omikuji.Model.train_on_data(str(path), n_threads=threads)
        seconds = time.perf_counter() - started, cpu_seconds() - cpu
    hits = 0
    for row in range(len(test_ids)):
        span = slice(*rows.indptr[row : row + 2])
        pairs = list(zip(rows.indices[span].tolist(), rows.data[span].tolist(), strict=True))
        hits += model.predict(pairs, top_k=1)[0][0] in test_labels[row]
    return seconds, hits / len(test_ids), None


def measure(system, num_labels, threads):
    """Time, P@1 and the highest memory of this process and its workers, as JSON on standard output."""
    peak, done = [0], threading.Event()

    def watch():
        process = psutil.Process()
        while not done.wait(0.5):
            parts = [process, *process.children(recursive=True)]
            try:
                peak[0] = max(peak[0], sum(part.memory_full_info().uss for part in parts))
            except psutil.Error:
                continue

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    seconds, precision, entries = {"ours": fit_ours, "omikuji": fit_omikuji}[system](num_labels, threads)
    done.set()
    watcher.join()
    found = {
        "seconds": round(seconds[0], 1),
        "cpu_seconds": round(seconds[1], 1),
        "p@1": round(100 * float(precision), 2),
        "peak_gb": round(peak[0] / 1e9, 2),
    }
    print(json.dumps(found | ({} if entries is None else {"weights": entries})))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--systems", nargs="+", choices=["ours", "omikuji"], default=["ours", "omikuji"])
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="workers (default: one per processor)")
    parser.add_argument("--minutes", type=float, default=60, help="most that a fit may take (default: 60)")
    parser.add_argument("--json", type=Path, help="file to write the figures to, after every fit")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        return measure(options.one[0], int(options.one[1]), options.threads)
    environment = {"python": platform.python_version(), "threads": options.threads, "texts": SHAPES}
    environment |= {name: version(name) for name in ("scikit-learn", "numpy")}
    fits = []
    print(f"{'labels':>9} {'system':9} {'seconds':>9} {'CPU s':>9} {'P@1':>7} {'peak GB':>8}")
    for num_labels in options.labels:
        for system in options.systems:
            command = [sys.executable, __file__, "--one", system, str(num_labels), "--threads", str(options.threads)]
            try:
                output = subprocess.run(
                    command,
                    check=True,
                    timeout=60 * options.minutes,
                    stdout=subprocess.PIPE,
                    # Bars of omikuji.
                    stderr=subprocess.DEVNULL,
                    text=True,
                ).stdout
                found = json.loads(output.splitlines()[-1])
                print(
                    f"{num_labels:9,} {system:9} {found['seconds']:9} {found['cpu_seconds']:9} {found['p@1']:7} "
                    f"{found['peak_gb']:8}",
                    flush=True,
                )
            except subprocess.TimeoutExpired:
                found = {"stopped_after_minutes": options.minutes}
                print(f"{num_labels:9,} {system:9} stopped after {options.minutes:g} minutes", flush=True)
            fits.append({"labels": num_labels, "system": system, **found})
            if options.json:
                content = {"environment": environment, "fits": fits}
                options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return None


if __name__ == "__main__":
    main()
