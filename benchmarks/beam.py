"""
What a beam finds: a trained model with a label tree, against scoring every label, on real texts.

    python benchmarks/beam.py outputs/llms4subjects/glocal_xml_clusters ../shared/data/llms4subjects-en/dev.jsonl.gz

For each beam: time of a text (encoder included), share of texts with the same best five labels, P@5. Texts are taken
in batches from the start of the file, one beam after the other on the same batches; medians count.
"""

import argparse
import json
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from label_clusters import BEAMS, every_label
from transformers import AutoModel, AutoTokenizer

import glocal_xml  # noqa: F401
from glocal_xml.data import read_rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a trained model with a label tree")
    parser.add_argument("texts", help="texts with labels")
    parser.add_argument("--number", type=int, default=512, help="texts to take")
    parser.add_argument("--batch_size", type=int, default=32, help="texts at a time")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = AutoModel.from_pretrained(options.model).eval(), AutoTokenizer.from_pretrained(options.model)
    ids = {name: i for i, name in enumerate(model.label_names)}
    rows = [row for _, row in zip(range(options.number), read_rows(options.texts), strict=False)]
    batches = [
        tokenizer(
            [row["text"] for row in rows[start : start + options.batch_size]],
            padding=True,
            truncation=True,
            return_tensors="pt",
        )
        for start in range(0, len(rows), options.batch_size)
    ]
    truth = [{ids[label] for label in row["labels"] if label in ids} for row in rows]

    def run(predict):
        times, found = [], []
        for batch in batches:
            started = time.perf_counter()
            found.append(predict(batch))
            times.append((time.perf_counter() - started) / len(batch["input_ids"]))
        best = torch.cat(found)
        hits = sum(len(set(row) & true) for row, true in zip(best.tolist(), truth, strict=True))
        return statistics.median(times), best, hits / (5 * len(truth))

    seconds, exact, precision = run(lambda batch: every_label(model, batch["input_ids"], batch["attention_mask"]))
    figures = [
        {"beam": "every label", "seconds": seconds, "speedup": 1.0, "same_top_5": 1.0, "precision@5": precision}
    ]
    for beam in BEAMS:
        model.config.beam = beam
        took, best, precision = run(
            lambda batch: model.predict_top_k(batch["input_ids"], batch["attention_mask"], top_k=5).top_k_ids
        )
        same = (best == exact).all(dim=1).double().mean().item()
        figures.append(
            {"beam": beam, "seconds": took, "speedup": seconds / took, "same_top_5": same, "precision@5": precision}
        )
    print(f"{len(rows)} texts, {model.config.num_labels:,} labels in {model.config.tree_levels[-1]:,} clusters")
    print(f"{'beam':>12} {'ms a text':>10} {'speedup':>8} {'same top 5':>11} {'P@5':>6}")
    for row in figures:
        same, precision = 100 * row["same_top_5"], 100 * row["precision@5"]
        times = f"{1000 * row['seconds']:>10.2f} {row['speedup']:>7.1f}x"
        print(f"{row['beam']:>12} {times} {same:>10.1f}% {precision:>6.2f}")
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
        content = {
            "environment": environment,
            "texts": len(rows),
            "labels": model.config.num_labels,
            "tree_levels": model.config.tree_levels,
            "rows": figures,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
