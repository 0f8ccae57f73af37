"""Tiny data sets in the formats of the public copies, with more labels than a cluster of any recipe holds."""

import csv
import gzip
import json
from pathlib import Path

from scipy import sparse
from tiny_encoders import WORDS

NUM_LABELS = 400
LABELS_OF_A_TEXT = 20
SIZES = {"train": 24, "test": 8}


def rows(part):
    """Texts and label ids; every label has a training text."""
    first = 0 if part == "train" else 100
    for i in range(first, first + SIZES[part]):
        labels = sorted({(LABELS_OF_A_TEXT * i + step) % NUM_LABELS for step in range(LABELS_OF_A_TEXT)})
        yield f"{WORDS[i % 8]} {WORDS[(3 * i + 1) % 8]} number {i}", labels


def write_jsonl(folder: Path):
    """The format of this package."""
    for part in SIZES:
        lines = [json.dumps({"text": text, "labels": [f"label {i}" for i in ids]}) for text, ids in rows(part)]
        _write(folder / f"{part}.jsonl", lines)


def write_pairs(folder: Path):
    """AttentionXML and LightXML."""
    for part in SIZES:
        _write(folder / f"{part}_raw_texts.txt", [text for text, _ in rows(part)])
        _write(folder / f"{part}_labels.txt", [" ".join(f"label_{i}" for i in ids) for _, ids in rows(part)])


def write_aplc(folder: Path):
    """APLC_XLNet, whose test texts are called dev."""
    for part, name in (("train", "train.csv"), ("test", "dev.csv")):
        with open(folder / name, "w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["guid", "text_a", "classes"])
            writer.writerows([n, text, ",".join(map(str, ids))] for n, (text, ids) in enumerate(rows(part)))


def write_repository(folder: Path):
    """Raw texts of the Extreme Classification Repository."""
    for part, name in (("train", "trn.json.gz"), ("test", "tst.json.gz")):
        records = ({"uid": text, "title": text, "content": "", "target_ind": ids} for text, ids in rows(part))
        _write_gzip(folder / name, map(json.dumps, records))
    names = ({"uid": str(i), "title": f"label {i}"} for i in range(NUM_LABELS))
    _write_gzip(folder / "lbl.json.gz", map(json.dumps, names))


def write_pecos(folder: Path):
    """PECOS and X-Transformer."""
    for part, short in (("train", "trn"), ("test", "tst")):
        _write(folder / f"X.{short}.txt", [text for text, _ in rows(part)])
        places = [(row, label) for row, (_, ids) in enumerate(rows(part)) for label in ids]
        row, column = zip(*places, strict=True)
        matrix = sparse.csr_matrix(([1.0] * len(places), (row, column)), shape=(SIZES[part], NUM_LABELS))
        sparse.save_npz(folder / f"Y.{short}.npz", matrix)
    _write(folder / "output-items.txt", [f"label {i}" for i in range(NUM_LABELS)])


# Each set of the papers in another of the formats that can be found of it.
WRITERS = {
    "eurlex4k": write_aplc,
    "wiki10_31k": write_pairs,
    "amazoncat13k": write_repository,
    "wiki500k": write_jsonl,
    "amazon670k": write_pecos,
}


def write_sets(folder: Path):
    """All sets, and word vectors, below `folder/data`."""
    for name, write in WRITERS.items():
        (folder / "data" / name).mkdir(parents=True)
        write(folder / "data" / name)
    vectors = (f"{word} " + " ".join(str((3 * i + j) % 7 / 7) for j in range(12)) for i, word in enumerate(WORDS))
    _write(folder / "data" / "glove.840B.300d.txt", vectors)


def _write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _write_gzip(path, lines):
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in lines)
