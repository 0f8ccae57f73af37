"""The most frequent labels for every text: what any model must beat."""

import numpy as np
from exchange import run_peer, save_pickle


def train(task, texts, labels):
    counts = np.bincount(np.concatenate(labels), minlength=len(task.label_names()))
    best = np.argsort(-counts, kind="stable")[: task.top_k]
    return best, counts[best] / len(texts)


def predict(task, model, texts):
    return tuple(np.tile(part, (len(texts), 1)) for part in model)


if __name__ == "__main__":
    run_peer(train, predict, save_pickle, ["numpy"])
