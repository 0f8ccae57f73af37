"""
Time and memory of label features and label tree on growing synthetic data, and of PECOS' clustering beside it.

    python -m venv pecos && pecos/bin/pip install libpecos
    python benchmarks/label_tree.py --peer_python pecos/bin/python --json label_tree.json

The largest size has the shape of Amazon-670K: 490,000 texts of 75 words, 670,000 labels, 5 labels a text. Labels and
topics follow Zipf's law with exponent 1/2; half of the words of a text belong to its topic, a tenth to its first
label, the rest to the language. Each measurement is a process of its own, with its own peak of memory. "Whole" goes
from TF-IDF rows of the texts to the tree; then ours and PECOS cluster the same features, read from a file, in turns.
"Cosine" is the mean cosine of a label with the sum of its cluster, over labels with texts.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix, load_npz, save_npz

SHAPES = {6_700: 4_900, 67_000: 49_000, 670_000: 490_000}
WORDS, VOCABULARY, LABELS_PER_TEXT, TOPIC_SIZE, TOPIC_WORDS = 75, 135_000, 5, 60, 300


def synthetic_texts(num_texts, num_labels, seed=0):
    """TF-IDF rows of texts, and the label ids of each."""
    from sklearn.feature_extraction.text import TfidfTransformer

    rng = np.random.default_rng(seed)
    num_topics = -(-num_labels // TOPIC_SIZE)
    # Rank r of n is drawn with a probability that falls as r^-1/2.
    topics = (num_topics * rng.random(num_texts) ** 2).astype(np.int64)
    places = (TOPIC_SIZE * rng.random((num_texts, LABELS_PER_TEXT)) ** 2).astype(np.int64)
    labels = np.minimum(topics[:, None] * TOPIC_SIZE + places, num_labels - 1)
    topic_words = rng.integers(0, VOCABULARY, (num_topics, TOPIC_WORDS), dtype=np.int32)
    label_words = rng.integers(0, VOCABULARY, (num_labels, 10), dtype=np.int32)
    words = (VOCABULARY ** rng.random((num_texts, WORDS), dtype=np.float32)).astype(np.int32) - 1
    of_topic, of_label = WORDS // 2, WORDS // 10
    ranks = (TOPIC_WORDS ** rng.random((num_texts, of_topic), dtype=np.float32)).astype(np.int32) - 1
    words[:, :of_topic] = topic_words[topics[:, None], ranks]
    words[:, of_topic : of_topic + of_label] = label_words[labels[:, :1], rng.integers(0, 10, (num_texts, of_label))]
    counts = csr_matrix(
        (np.ones(words.size, dtype=np.float32), words.ravel(), np.arange(0, words.size + 1, WORDS)),
        shape=(num_texts, VOCABULARY),
    )
    counts.sum_duplicates()
    # Ids in random order: neighbours in the numbering are strangers.
    labels = rng.permutation(num_labels)[labels]
    return TfidfTransformer(sublinear_tf=True).fit_transform(counts), labels.tolist()


def whole(folder, options):
    from glocal_xml.data import build_label_tree, label_features_from_matrix

    matrix, label_ids = synthetic_texts(SHAPES.get(options.labels[0], options.labels[0]), options.labels[0])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    features = label_features_from_matrix(matrix, label_ids, options.labels[0], show_progress=False)
    made = time.perf_counter()
    tree = build_label_tree(features, workers=options.threads, show_progress=False)
    ended = time.perf_counter()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    save_npz(folder / "features.npz", features, compressed=False)
    return {
        "texts": len(label_ids),
        "text_entries": matrix.nnz,
        "feature_entries": features.nnz,
        "labels_without_texts": int((np.diff(features.indptr) == 0).sum()),
        "clusters": tree.level_sizes[-1],
        "features_seconds": made - started,
        "tree_seconds": ended - made,
        "data_gb": before / 1e6,
        "peak_gb": peak / 1e6,
    }


def timed(cluster):
    """What a function gives, and its seconds by the clock and by the processors, which other work disturbs less."""
    started, used = time.perf_counter(), time.process_time()
    result = cluster()
    return result, {"seconds": time.perf_counter() - started, "cpu_seconds": time.process_time() - used}


def ours(folder, options):
    from glocal_xml.data import build_label_tree

    features = load_npz(folder / "features.npz")
    tree, times = timed(lambda: build_label_tree(features, workers=options.threads, show_progress=False))
    codes = np.empty(tree.num_labels, dtype=np.int64)
    codes[tree.label_order] = np.repeat(np.arange(tree.level_sizes[-1]), np.diff(tree.child_starts[-1]))
    np.save(folder / "ours.npy", codes)
    return times | {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def peer(folder, options):
    from pecos.xmc.base import HierarchicalKMeans

    features = load_npz(folder / "features.npz")
    chain, times = timed(
        lambda: HierarchicalKMeans.gen(features, max_leaf_size=100, nr_splits=2, threads=options.threads)
    )
    np.save(folder / "peer.npy", chain[-1].tocsr().indices)
    return times | {"peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6}


def cosine(folder, options):
    features = load_npz(folder / "features.npz")
    with_texts = int((np.diff(features.indptr) > 0).sum())
    found = {}
    for path in folder.glob("*.npy"):
        codes = np.load(path)
        sizes = np.bincount(codes)
        order = np.argsort(codes, kind="stable")
        ones = np.ones(len(codes), dtype=np.float32)
        members = csr_matrix((ones, order, np.cumsum([0, *sizes])), shape=(len(sizes), len(codes)))
        total = 0.0
        for start in range(0, len(sizes), 512):
            sums = members[start : start + 512] @ features
            total += np.sqrt(np.asarray(sums.multiply(sums).sum(axis=1))).sum()
        found[path.stem] = {"cosine": float(total) / with_texts, "cluster_sizes": [int(sizes.min()), int(sizes.max())]}
    return found


WORKERS = {"whole": whole, "ours": ours, "peer": peer, "cosine": cosine}


def call(worker, folder, num_labels, options, python=sys.executable):
    """The answer of a worker in a process of its own, None where it failed."""
    command = [python, __file__, "--worker", worker, "--folder", str(folder), "--labels", str(num_labels)]
    # Else it might bind the threads of PECOS, which are given.
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command += ["--threads", str(options.threads)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def measure(num_labels, options):
    with tempfile.TemporaryDirectory(dir=options.scratch) as folder:
        result = {"labels": num_labels, "whole": call("whole", folder, num_labels, options)}
        if result["whole"] is None:
            raise SystemExit(f"the run with {num_labels:,} labels failed, see above")
        print_whole(result)
        contenders = {"ours": sys.executable} | ({"peer": options.peer_python} if options.peer_python else {})
        runs = {name: [] for name in contenders}
        for _ in range(options.repeats):
            for name, python in contenders.items():
                runs[name].append(call(name, folder, num_labels, options, python))
        cosines = call("cosine", folder, num_labels, options)
    for name, answers in runs.items():
        # A contender that does not finish a size is reported, not left out.
        if None in answers:
            print(f"{name} did not finish {num_labels:,} labels")
            continue
        result[name] = {
            "seconds": statistics.median(answer["seconds"] for answer in answers),
            "all_seconds": [answer["seconds"] for answer in answers],
            "cpu_seconds": statistics.median(answer["cpu_seconds"] for answer in answers),
            "peak_gb": max(answer["peak_gb"] for answer in answers),
            **cosines[name],
        }
    return result


def print_whole(result):
    row = result["whole"]
    print(
        f"\n{result['labels']:,} labels, {row['texts']:,} texts, {row['text_entries'] / 1e6:.1f} M entries; "
        f"label features {row['feature_entries'] / 1e6:.1f} M entries, "
        f"{row['labels_without_texts']:,} labels without texts\n"
        f"whole: features {row['features_seconds']:.1f} s, tree of {row['clusters']:,} clusters "
        f"{row['tree_seconds']:.1f} s, peak {row['peak_gb']:.2f} GB (of which the data {row['data_gb']:.2f} GB)",
        flush=True,
    )


def print_comparison(result):
    print(f"{'clustering':12}{'seconds':>10}{'of CPUs':>10}{'peak GB':>10}{'cosine':>10}{'cluster sizes':>16}")
    for name, title in {"ours": "glocal_xml", "peer": "PECOS"}.items():
        if name in result:
            row = result[name]
            sizes = "-".join(map(str, row["cluster_sizes"]))
            times = f"{row['seconds']:10.2f}{row['cpu_seconds']:10.2f}"
            print(f"{title:12}{times}{row['peak_gb']:10.2f}{row['cosine']:10.4f}{sizes:>16}")
    if "ours" in result and "peer" in result:
        ours, peer = result["ours"], result["peer"]
        result["speed_up"] = peer["seconds"] / ours["seconds"]
        result["cosine_ratio"] = ours["cosine"] / peer["cosine"]
        result["cpu_speed_up"] = peer["cpu_seconds"] / ours["cpu_seconds"]
        print(
            f"{result['speed_up']:.2f}x as fast as PECOS ({result['cpu_speed_up']:.2f}x by CPU time), "
            f"{result['cosine_ratio']:.4f} of its cosine",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=list(SHAPES), help="numbers of labels")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="threads of either contender")
    parser.add_argument("--repeats", type=int, default=3, help="interleaved repeats, of which the median is taken")
    parser.add_argument("--peer_python", help="interpreter of an environment with libpecos")
    parser.add_argument("--scratch", help="folder for features of up to 2 GB; default: that for temporary files")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    parser.add_argument("--worker", choices=WORKERS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(WORKERS[options.worker](options.folder, options)))
        return
    if options.peer_python is None:
        print("PECOS is not measured: give --peer_python, an interpreter of an environment with libpecos")
    elif subprocess.run([options.peer_python, "-c", "import pecos.xmc.base"]).returncode:
        raise SystemExit(f"{options.peer_python} has no PECOS; `{options.peer_python} -m pip install libpecos`")
    results = []
    for num_labels in options.labels:
        results.append(measure(num_labels, options))
        print_comparison(results[-1])
    if options.json:
        import scipy
        import sklearn

        versions = {name.__name__: name.__version__ for name in (np, scipy, sklearn)}
        machine = {"platform": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}
        settings = {"threads": options.threads, "repeats": options.repeats, "cluster_size": 100}
        report = {"machine": machine, "versions": versions, "settings": settings, "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
