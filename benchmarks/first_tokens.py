r"""
How many of the first tokens of a text should be features of their own in the lexical expert and in the memory.

    python benchmarks/first_tokens.py --train_file train.jsonl --max_train_texts 8000 --pairs 200000 \
        --json benchmarks/results/first_tokens.json

A random part of the training texts judges, so no test texts are needed. PSP@5 is that of the texts that train.
"""

import argparse
import json
import os
import platform
from importlib.metadata import version
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
from transformers import AutoTokenizer

from glocal_xml.data import LabelSpace, load_xmtc_dataset, split_validation
from glocal_xml.experts.lexical import fit_lexical
from glocal_xml.experts.memory import fit_memory
from glocal_xml.experts.token_rows import padded_ids, whole_text_ids
from glocal_xml.metrics import pad_label_lists, xmtc_metrics
from glocal_xml.pretrained import minilm_path

BATCH, KS = 64, (1, 3, 5)


def judge(expert, rows, labels, inverse_propensities):
    """P@1, P@3, P@5 and PSP@5 of an expert, in percent."""
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    best = np.concatenate([expert(padded_ids(part)).top_k(KS[-1]).ids.numpy() for part in parts])
    found = xmtc_metrics(best, pad_label_lists(labels), ks=KS, inverse_propensities=inverse_propensities)
    return [round(100 * found[name], 2) for name in (*(f"precision@{k}" for k in KS), f"psp@{KS[-1]}")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", required=True, help="training texts")
    parser.add_argument("--max_train_texts", type=int, help="train on a random part of this size")
    parser.add_argument("--held_out", type=int, default=2000, help="texts that judge (default: 2000)")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of tokens in the lexical expert (default: 0)")
    parser.add_argument("--lexical", type=int, nargs="*", default=[0, 8, 16, 32], help="first tokens to try")
    parser.add_argument("--memory", type=int, nargs="*", default=[0, 4, 8, 16], help="first tokens to try")
    parser.add_argument("--threads", type=int, default=-1, help="processes of the fit (default: one per processor)")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(minilm_path())
    parts, space = load_xmtc_dataset({"train": options.train_file})
    texts, held_out = split_validation(parts["train"], fraction_or_size=options.held_out, seed=42)
    if options.max_train_texts is not None:
        texts = texts.shuffle(seed=42).select(range(options.max_train_texts))
    rows, judged = (whole_text_ids(part["text"], tokenizer) for part in (texts, held_out))
    # Labels of the texts that train come first; others are never found, but count as missed.
    counts = np.bincount(np.concatenate(list(texts["labels"])), minlength=space.num_labels)
    order = np.argsort(counts == 0, kind="stable")
    places, num_labels, tokens = order.argsort(), int((counts > 0).sum()), len(tokenizer)
    labels, true_labels = ([places[ids].tolist() for ids in part["labels"]] for part in (texts, held_out))
    names = [space.names[label] for label in order]
    weights = LabelSpace(names, counts[order].tolist(), len(rows)).inverse_propensities()
    figures = {}

    def add(name, fitted):
        figures[name] = judge(fitted[0], judged, true_labels, weights)
        print(f"{name:24}{' / '.join(f'{value:.2f}' for value in figures[name][:3])}, PSP@5 {figures[name][3]:.2f}")

    for lead in options.lexical:
        settings = {"pairs": options.pairs, "lead": lead, "workers": options.threads}
        add(f"lexical, first {lead}", fit_lexical(rows, labels, num_labels, tokens, **settings))
    for lead in options.memory:
        settings = {"ignored": tokenizer.all_special_ids, "lead": lead}
        add(f"memory, first {lead}", fit_memory(rows, labels, num_labels, tokens, **settings))
    if options.json is not None:
        name = Path(options.train_file).parent.name
        earlier = json.loads(options.json.read_text()) if options.json.exists() else {}
        environment = {"machine": platform.machine(), "scikit-learn": version("scikit-learn")}
        earlier[name] = {"texts": len(rows), "held out": len(judged), **environment, "figures": figures}
        options.json.write_text(json.dumps(earlier, indent=2) + "\n")


if __name__ == "__main__":
    main()
