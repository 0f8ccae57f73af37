"""
XR-Linear of PECOS with its defaults, in an environment of its own; `linear_peers.py --pecos_python` calls this.

    python3.11 -m venv pecos && pecos/bin/pip install "numpy<2" "scipy<1.14" scikit-learn
    pecos/bin/pip install --no-deps libpecos==1.2.8

It reads features.npz, labels.npz and test.npz from a folder, and writes best.npy and facts.json to it.
"""

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path

import numpy as np
from pecos.xmc import Indexer, LabelEmbeddingFactory
from pecos.xmc.xlinear.model import XLinearModel
from scipy.sparse import load_npz


def main():
    folder, top_k = Path(sys.argv[1]), int(sys.argv[2])
    features, labels, test = (load_npz(folder / f"{name}.npz") for name in ("features", "labels", "test"))
    started = time.perf_counter()
    embeddings = LabelEmbeddingFactory.create(labels, features, method="pifa")
    clusters = Indexer.gen(embeddings, indexer_type="hierarchicalkmeans")
    model = XLinearModel.train(features, labels, C=clusters)
    trained = time.perf_counter()
    found = model.predict(test, only_topk=top_k)
    seconds = time.perf_counter() - trained
    best = np.full((test.shape[0], top_k), -100, dtype=np.int64)
    for row in range(test.shape[0]):
        start, end = found.indptr[row : row + 2]
        order = np.argsort(-found.data[start:end], kind="stable")
        best[row, : end - start] = found.indices[start:end][order]
    np.save(folder / "best.npy", best)
    facts = {
        "version": version("libpecos"),
        "train_seconds": trained - started,
        "predict_ms_per_text": 1000 * seconds / test.shape[0],
    }
    (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")


if __name__ == "__main__":
    main()
