"""
Micro F1 of a blend at its threshold, beside the most that each head or expert could reach alone.

    python benchmarks/blend_f1.py --model outputs/tags --test_file test.jsonl --json benchmarks/results/blend_f1.json

The threshold of the blend was chosen on the held-out texts of its run. Heads and experts get the threshold that is
best on the test texts themselves, which is more than a fair choice would give them.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datasets import Dataset
from transformers import AutoModel, AutoTokenizer

import glocal_xml  # noqa: F401
from glocal_xml.calibration import best_threshold, measures_at
from glocal_xml.data import read_rows
from glocal_xml.experts import blend_pairs
from glocal_xml.runs.blend import batches


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a run with a blend")
    parser.add_argument("--test_file", required=True, help="texts with labels")
    parser.add_argument("--max_test_texts", type=int, help="judge a random part of this size")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    model = AutoModel.from_pretrained(options.model)
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    ids = {name: number for number, name in enumerate(model.label_names)}
    rows = list(read_rows(options.test_file))
    # Labels that the model does not know are missed by all, and count.
    unknown = {name for row in rows for name in row["labels"]} - set(ids)
    ids |= {name: len(ids) + number for number, name in enumerate(sorted(unknown))}
    texts = Dataset.from_dict(
        {"text": [row["text"] for row in rows], "labels": [[ids[name] for name in row["labels"]] for row in rows]}
    )
    if options.max_test_texts is not None:
        texts = texts.shuffle(seed=0).select(range(min(options.max_test_texts, len(texts))))
    pairs = blend_pairs(model, batches(texts, tokenizer, bool(model.text_experts())))
    scored = pairs.scored(pairs.final_logits, len(ids))
    found = {"blend": measures_at(scored, model.config.blend["threshold"])["f"]}
    for column, name in enumerate(model.branch_names):
        scored = pairs.scored(pairs.logits[:, column], len(ids))
        found[name] = measures_at(scored, best_threshold(scored))["f"]
    for name, value in found.items():
        print(f"{name:10} {100 * value:6.2f}" + ("" if name == "blend" else "   (best threshold on these texts)"))
    if options.json:
        content = {"model": options.model, "test_texts": len(texts), "micro_f1": found}
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
