"""
glocal_xml by its command: `glocal-xml train` with the settings as flags and all else as it is by default.

Names of labels are training texts of the experts where the data set has them. No other contender reads them, so
`"label_texts": "false"` leaves them out.
"""

import os

import numpy as np
from exchange import run_peer
from transformers import pipeline

from glocal_xml.cli import main as glocal_xml
from glocal_xml.modeling import TASK
from glocal_xml.runs import fit  # noqa: F401  what the command imports, so that it is not timed


def train(task, texts, labels):
    flags = {
        "train_file": task.data / "train.jsonl",
        "output_dir": task.folder / "model",
        "seed": task.seed,
        "label_texts_file": task.label_texts_file,
        "minutes": task.minutes,
        "disable_tqdm": True,
        **task.settings,
    }
    if flags.get("label_texts") == "false":
        flags["label_texts_file"] = None
    code = glocal_xml(["train", *(f"--{name}={value}" for name, value in flags.items() if value is not None)])
    if code:
        raise SystemExit(code)
    return pipeline(TASK, model=os.fspath(task.folder / "model"))


def predict(task, model, texts):
    places = {name: place for place, name in enumerate(task.label_names())}
    found = list(model(texts, top_k=task.top_k, batch_size=32))
    width = max(map(len, found))
    ids, scores = np.full((len(texts), width), -1), np.zeros((len(texts), width))
    for row, labels in enumerate(found):
        ids[row, : len(labels)] = [places[label["label"]] for label in labels]
        scores[row, : len(labels)] = [label["score"] for label in labels]
    return ids, scores


if __name__ == "__main__":
    run_peer(train, predict, lambda model, folder: None, ["glocal-xml", "torch", "transformers", "numpy"])
