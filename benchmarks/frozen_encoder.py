r"""
What embeddings of a frozen sentence encoder add to the experts: a dense memory, and a head that is trained on them.

    python benchmarks/frozen_encoder.py --train_file train.jsonl --max_train_texts 10000 --max_length 128 \
        --json benchmarks/results/frozen_encoder.json

Experts, memory and head are made from training texts; 3,000 others are split into halves three times, one that fits
the weights of a blend and one that judges it. No test texts are needed. PSP@5 is that of the texts that train.
"""

import argparse
import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
from blend_terms import of_texts
from transformers import AutoTokenizer

from glocal_xml import GlocalXMLForMultiLabel
from glocal_xml.data import LabelSpace, load_xmtc_dataset, split_validation
from glocal_xml.experts import (
    ExpertTexts,
    add_to_dense,
    blend_pairs,
    embed,
    fit_experts,
    log_frequencies,
)
from glocal_xml.experts.fit_blend import fitted_weights
from glocal_xml.metrics import pad_label_lists, xmtc_metrics
from glocal_xml.pretrained import minilm_path
from glocal_xml.runs.blend import batches
from glocal_xml.runs.experts import read_label_texts
from glocal_xml.training.frozen_encoder import train_on_embeddings

HALVES, KS = 3, (1, 3, 5)
BLENDS = {
    "lexical and memory": ("lexical", "memory"),
    "and dense": ("lexical", "memory", "dense"),
    "and head": ("lexical", "memory", "global"),
    "and both": ("lexical", "memory", "dense", "global"),
}


def judge(pairs, logits, space):
    """P@1, P@3, P@5 and PSP@5 of the best labels of each text by these logits, in percent."""
    order = np.lexsort((pairs.labels, -logits, pairs.texts))
    places = np.arange(len(order)) - np.searchsorted(pairs.texts[order], pairs.texts[order])
    kept = order[places < KS[-1]]
    best = pairs.labels[kept].reshape(len(pairs.true_labels), -1)
    weights = space.inverse_propensities()
    found = xmtc_metrics(best, pad_label_lists(pairs.true_labels), ks=KS, inverse_propensities=weights)
    return [100 * found[name] for name in (*(f"precision@{k}" for k in KS), f"psp@{KS[-1]}")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="training texts")
    parser.add_argument("--max_train_texts", type=int, help="train on a random part of this size")
    parser.add_argument("--held_out", type=int, default=3000, help="texts for blends and judgement (default: 3000)")
    parser.add_argument("--max_length", type=int, default=128, help="tokens that the encoder reads (default: 128)")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of tokens in the lexical expert (default: 0)")
    parser.add_argument("--label_texts_file", help="names of labels, which are texts then; as for `glocal-xml train`")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(minilm_path(), model_max_length=options.max_length)
    parts, space = load_xmtc_dataset({"train": options.train_file})
    texts, held_out = split_validation(parts["train"], fraction_or_size=options.held_out, seed=42)
    if options.max_train_texts is not None:
        texts = texts.shuffle(seed=42).select(range(options.max_train_texts))
    counts = np.bincount(np.concatenate(list(texts["labels"])), minlength=space.num_labels)
    space = LabelSpace(space.names, counts.tolist(), len(texts))
    model = GlocalXMLForMultiLabel.from_encoder(minilm_path(), label_names=space.names, branches="global").eval()
    model.start_label_bias(space.log_odds())
    names = None if options.label_texts_file is None else space.names
    descriptions = read_label_texts(options.label_texts_file)
    data = ExpertTexts.from_texts(texts["text"], texts["labels"], tokenizer, names, descriptions)
    seconds = {}

    def timed(name, run):
        started = time.monotonic()
        result = run()
        seconds[name] = round(time.monotonic() - started, 1)
        print(f"{name}: {seconds[name]:.1f} s", flush=True)
        return result

    timed("experts", lambda: fit_experts(model, data, tokenizer, pairs=options.pairs))
    embedded = timed("embeddings", lambda: embed(model, data, tokenizer, show_progress=True))
    timed("dense", lambda: add_to_dense(model, data, tokenizer, embedded=embedded))
    number = int((embedded.numbers >= 0).sum())
    timed("head", lambda: train_on_embeddings(model, embedded.embeddings, embedded.labels, num_texts=number))
    pairs = timed("held-out texts", lambda: blend_pairs(model, batches(held_out, tokenizer, True)))
    names, frequencies, random = model.branch_names, log_frequencies(space), np.random.default_rng(0)
    figures = {name: [judge(pairs, pairs.logits[:, column], space)] for column, name in enumerate(names)}
    for _ in range(HALVES):
        halves = np.array_split(random.permutation(len(held_out)), 2)
        fitted, judged = (of_texts(pairs, np.sort(half)) for half in halves)
        for title, members in BLENDS.items():
            # Terms such as `memory_vote` belong to the branch that they are named after.
            kept = {key: x for key, x in fitted.features(names).items() if key.split("_")[0] in members}
            weights = fitted_weights(kept, frequencies[fitted.labels], fitted.is_true)
            logits = judged.blended({"weights": weights}, names, frequencies)
            figures.setdefault(title, []).append(judge(judged, logits, space))
    figures = {name: np.mean(rows, axis=0).round(2).tolist() for name, rows in figures.items()}
    for name, values in figures.items():
        print(f"{name:24}{' / '.join(f'{value:.2f}' for value in values[:3])}, PSP@5 {values[3]:.2f}")
    if options.json is not None:
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        environment = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": version("torch")}
        settings = {name: getattr(options, name) for name in ("held_out", "max_length", "pairs")}
        content = {"texts": len(texts), **settings, **environment, "seconds": seconds, "figures": figures}
        earlier[Path(options.train_file).parent.name] = content
        options.json.write_text(json.dumps(earlier, indent=2) + "\n")


if __name__ == "__main__":
    main()
