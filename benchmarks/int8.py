"""
A trained model with an int8 encoder, and as a program of torch.export, against the model itself on held-out texts.

    python benchmarks/int8.py outputs/demo --json benchmarks/results/int8.json

Batches go through one contender after the other, so that other work on the machine meets all alike; ratios are of
medians of the time that this process computed. Each gives the five best labels of every text: P@1, P@3, P@5, and the
share of texts with the same five in any order.
"""

import argparse
import gzip
import io
import json
import os
import platform
import random
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoTokenizer

import glocal_xml  # noqa: F401
from glocal_xml.export import exported, quantized

TEXTS = Path(__file__).parents[1] / "examples/data/debtags/test.jsonl.gz"


def megabytes(model):
    content = io.BytesIO()
    torch.save(model.state_dict(), content)
    return content.tell() / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model of `make demo`")
    parser.add_argument("--texts", type=int, default=800, help="test texts to take")
    parser.add_argument("--batch_size", type=int, default=16, help="texts at a time")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    model, tokenizer = AutoModel.from_pretrained(options.model).eval(), AutoTokenizer.from_pretrained(options.model)
    small, program = quantized(model), exported(model).module()
    ids = {name: i for i, name in enumerate(model.label_names)}
    with gzip.open(TEXTS, "rt", encoding="utf-8") as file:
        rows = random.Random(0).sample([json.loads(line) for line in file], options.texts)
    contenders = {
        "float32": lambda batch: model.predict_top_k(**batch, top_k=5).top_k_ids,
        "int8 encoder": lambda batch: small.predict_top_k(**batch, top_k=5).top_k_ids,
        "torch.export": lambda batch: program(batch["input_ids"], batch["attention_mask"]).topk(5, dim=1).indices,
    }
    times, found = {name: [] for name in contenders}, {name: [] for name in contenders}
    difference = 0.0
    for first in range(0, len(rows), options.batch_size):
        texts = [row["text"] for row in rows[first : first + options.batch_size]]
        batch = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        for name, predict in contenders.items():
            started = time.process_time()
            with torch.no_grad():
                best = predict(batch)
            times[name].append((time.process_time() - started) / len(texts))
            found[name].extend(best.tolist())
        if first == 0:
            every = model.score_labels(torch.arange(len(ids)), batch["input_ids"], batch["attention_mask"])["final"]
            with torch.no_grad():
                difference = (program(batch["input_ids"], batch["attention_mask"]) - every).abs().max().item()
    truth = [{ids[label] for label in row["labels"] if label in ids} for row in rows]
    sizes = {"float32": megabytes(model), "int8 encoder": megabytes(small)}
    figures = []
    for name in contenders:
        hits = {
            k: sum(len(true & set(top[:k])) for true, top in zip(truth, found[name], strict=True)) for k in (1, 3, 5)
        }
        same = sum(set(a) == set(b) for a, b in zip(found[name], found["float32"], strict=True)) / len(rows)
        seconds = statistics.median(times[name])
        figures.append(
            {
                "contender": name,
                "seconds_a_text": seconds,
                "speedup": statistics.median(times["float32"]) / seconds,
                "megabytes": sizes.get(name),
                **{f"precision@{k}": 100 * n / (k * len(rows)) for k, n in hits.items()},
                "same_best_five": same,
            }
        )
    print(f"{len(rows)} texts, {len(ids)} labels; torch.export differs by at most {difference:.1e}")
    print(f"{'':>14} {'ms a text':>10} {'speedup':>8} {'MB':>6} {'P@1':>6} {'P@3':>6} {'P@5':>6} {'same five':>10}")
    for row in figures:
        size = "" if row["megabytes"] is None else f"{row['megabytes']:.1f}"
        precision = " ".join(f"{row[f'precision@{k}']:>6.2f}" for k in (1, 3, 5))
        cost = f"{1000 * row['seconds_a_text']:>10.2f} {row['speedup']:>7.2f}x {size:>6}"
        print(f"{row['contender']:>14} {cost} {precision} {100 * row['same_best_five']:>9.1f}%")
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "quantised_engine": torch.backends.quantized.engine,
        }
        content = {
            "environment": environment,
            "texts": len(rows),
            "labels": len(ids),
            "export_difference": difference,
            "rows": figures,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
