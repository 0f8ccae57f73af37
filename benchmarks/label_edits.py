"""
New labels in a trained model: how they start, and what a short further training makes of them.

    python benchmarks/label_edits.py outputs/demo --json benchmarks/results/label_edits.json

Some labels are taken out of the model of `make demo` and added again by `edit_labels`, which cannot know them by then
but by their names (the encoder has once been trained with them, which helps every start alike). Starts: like the label
with the most similar name, as the package does; as the mean of all rare labels (1-20 training texts); as zeros with
the mean bias of these. Then one epoch over a few hundred texts that have new labels: with all of their labels, with
as many other texts besides, or with their new labels alone, as where nobody looked for old ones.

Of 1,000 test texts: P@5, R@5 of the new labels, and P@5 of the old labels among themselves.
"""

import argparse
import gzip
import json
import logging
import os
import platform
import random
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, AutoTokenizer

from glocal_xml.cli.train import main as train
from glocal_xml.data import BAND_LIMITS, LabelSpace
from glocal_xml.labels import edit_labels, label_tables

DATA = Path(__file__).parents[1] / "examples/data/debtags"
STARTS = ("names", "rare", "zero")
TEXTS = ("all their labels", "and other texts", "new labels alone")


def read(name):
    with gzip.open(DATA / name, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@torch.no_grad()
def start(model, label_space, number, how):
    """Other starts of the last labels than that of the package."""
    if how == "names":
        return
    lowest, highest = BAND_LIMITS["few"]
    rare = [i for i, count in enumerate(label_space.counts) if lowest <= count <= highest]
    # A head may have several tables, such as queries and output rows, of which one has the biases.
    for table in (table for head in model.branch_heads().values() for table in label_tables(head)):
        if table.bias is not None:
            table.bias[-number:] = table.bias[rare].mean()
        table.weight[-number:] = 0 if how == "zero" else table.weight[rare].mean(dim=0)


@torch.no_grad()
def judge(model, label_space, tokenizer, texts, new):
    """P@5, R@5 of the new labels, P@5 of the old ones among themselves, in percent."""
    ids = {name: i for i, name in enumerate(label_space.names)}
    new, model = {ids[name] for name in new}, model.eval()
    old = torch.tensor([i for i in range(len(ids)) if i not in new])
    hits, old_hits, found, wanted = 0, 0, 0, 0
    for first in range(0, len(texts), 50):
        rows = texts[first : first + 50]
        batch = tokenizer([row["text"] for row in rows], padding=True, truncation=True, return_tensors="pt")
        logits = model(**batch, output_logits=True).logits
        best = logits.topk(5, dim=1).indices.tolist()
        old_best = old[logits[:, old].topk(5, dim=1).indices].tolist()
        for row, top, old_top in zip(rows, best, old_best, strict=True):
            true = {ids[label] for label in row["labels"] if label in ids}
            hits += len(true & set(top))
            old_hits += len(true & set(old_top))
            found += len(true & new & set(top))
            wanted += len(true & new)
    return {
        "precision@5": 100 * hits / (5 * len(texts)),
        "new_recall@5": 100 * found / wanted,
        "old_precision@5": 100 * old_hits / (5 * len(texts)),
    }


def further_texts(rows, new, number, kind, seed):
    """Texts with new labels, with what labels they are to have."""
    with_new = [row for row in rows if new & set(row["labels"])]
    chosen = random.Random(seed).sample(with_new, number)
    if kind == "new labels alone":
        return [{**row, "labels": [label for label in row["labels"] if label in new]} for row in chosen]
    if kind == "and other texts":
        others = [row for row in rows if not new & set(row["labels"])]
        chosen = chosen + random.Random(seed).sample(others, number)
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of the model of `make demo`")
    parser.add_argument("--labels", type=int, default=20, help="labels to take out and to add again")
    parser.add_argument("--texts", type=int, default=400, help="texts with new labels to train on")
    parser.add_argument("--test_texts", type=int, default=1000, help="texts to judge on")
    parser.add_argument("--seed", type=int, default=1, help="decides labels and texts")
    parser.add_argument("--json", type=Path, help="file for the figures")
    options = parser.parse_args()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("glocal_xml").setLevel(logging.WARNING)
    started = time.time()
    model, tokenizer = AutoModel.from_pretrained(options.model), AutoTokenizer.from_pretrained(options.model)
    label_space = LabelSpace.load(options.model)
    train_rows, test_rows = read("train.jsonl.gz"), read("test.jsonl.gz")
    test_rows = random.Random(0).sample(test_rows, options.test_texts)
    # Labels that can be judged: with some texts to train and to test on.
    in_test = Counter(label for row in test_rows for label in row["labels"])
    counts = dict(zip(label_space.names, label_space.counts, strict=True))
    known = [name for name in label_space.names if counts[name] >= 10 and in_test[name] >= 5]
    new = sorted(random.Random(options.seed).sample(known, options.labels))
    fewer, fewer_space = edit_labels(model, label_space, tokenizer, remove=new)
    figures = [{"start": "never removed", "texts": None, **judge(model, label_space, tokenizer, test_rows, new)}]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        plans = [(how, None) for how in STARTS] + [(how, TEXTS[0]) for how in STARTS]
        for how, kind in [*plans, *(("names", kind) for kind in TEXTS[1:])]:
            edited, space = edit_labels(fewer, fewer_space, tokenizer, add=new)
            start(edited, space, len(new), how)
            if kind is not None:
                rows = further_texts(train_rows, set(new), options.texts, kind, options.seed)
                edited = trained_further(edited, space, tokenizer, rows, folder)
            figures.append({"start": how, "texts": kind, **judge(edited, space, tokenizer, test_rows, new)})
            print(figures[-1], flush=True)
    print(f"{len(new)} labels, {options.texts} texts to train on, {len(test_rows)} to judge on, percent")
    print(f"{'start':>14} {'trained on':>18} {'P@5':>6} {'R@5 of new':>11} {'P@5 of old':>11}")
    for row in figures:
        values = f"{row['precision@5']:>6.2f} {row['new_recall@5']:>11.2f} {row['old_precision@5']:>11.2f}"
        print(f"{row['start']:>14} {row['texts'] or '-':>18} {values}")
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
        options_used = {name: getattr(options, name) for name in ("labels", "texts", "test_texts", "seed")}
        content = {
            "environment": environment,
            "options": options_used,
            "new_labels": {name: counts[name] for name in new},
            "seconds": round(time.time() - started),
            "rows": figures,
        }
        options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def trained_further(model, label_space, tokenizer, rows, folder):
    """One epoch at the rates of the demo, as `glocal-xml train --model` does it."""
    model.save_pretrained(folder / "edited")
    tokenizer.save_pretrained(folder / "edited")
    label_space.save(folder / "edited")
    (folder / "more.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    rates = '{"encoder": 2e-4, "global_head": 2e-3, "local_head": 2e-3}'
    flags = ["--num_train_epochs", "1", "--per_device_train_batch_size", "16", "--module_learning_rates", rates]
    files = ["--train_file", str(folder / "more.jsonl"), "--output_dir", str(folder / "more")]
    train(["--model", str(folder / "edited"), *files, *flags, "--overwrite_output", "true", "--use_cpu", "true"])
    return AutoModel.from_pretrained(folder / "more")


if __name__ == "__main__":
    main()
