"""
How many texts a second the experts score, tokenisation apart.

    python benchmarks/experts.py --json benchmarks/results/experts.json

A model without an encoder is made up: tokens are as frequent as in natural texts, weights and texts of the memory as
many as fits of debtags and llms4subjects have. Each line is the best of several runs over batches of token ids:
the lexical expert alone, the memory alone, and both with their blend, which is what a prediction takes. Beside it, how
long a processor works on a text: on a machine that is busy otherwise this says more.
"""

import argparse
import json
import os
import platform
import time
from pathlib import Path

import numpy as np
import torch
from scipy.sparse import csr_matrix

from glocal_xml.experts.memory import NEIGHBORS, POWER
from glocal_xml.experts.token_rows import inverse_frequencies, padded_ids, sparse_rows, table_tensors
from glocal_xml.modeling import LexicalExpert, MemoryExpert, TextExpertsConfig, TextExpertsForMultiLabel
from glocal_xml.modeling.token_counts import TextCounter

TOKENS = 30_000
# Labels: texts of the memory, clusters of the lexical expert, weights of a cluster and of a label.
SIZES = {4_000: (20_000, 40, 5_000, 400), 20_000: (50_000, 200, 5_000, 250)}


def random_rows(random, number, length):
    """Texts with tokens as frequent as in natural language, of different lengths."""
    chances = 1 / np.arange(3, TOKENS + 3)
    lengths = random.integers(length // 2, 3 * length // 2, size=number)
    ids = random.choice(TOKENS, size=lengths.sum(), p=chances / chances.sum()).astype(np.int32)
    return np.split(ids, np.cumsum(lengths)[:-1])


def random_weights(random, rows, per_row):
    """Weights of rows: more of them for frequent tokens, less than by frequency, as regularisation leaves it."""
    chances = 1 / np.arange(20, TOKENS + 20) ** 0.6
    columns = random.choice(TOKENS, size=rows * per_row, p=chances / chances.sum())
    values = random.normal(0, 0.3, size=len(columns)).astype(np.float32)
    matrix = csr_matrix((values, columns, np.arange(rows + 1) * per_row), shape=(rows, TOKENS))
    matrix.sum_duplicates()
    return matrix


def make_model(num_labels, length):
    random = np.random.default_rng(0)
    texts, clusters, of_cluster, of_label = SIZES[num_labels]
    rows = random_rows(random, texts, length)
    frequencies = np.bincount(np.concatenate([np.unique(row) for row in rows]), minlength=TOKENS)
    weights = inverse_frequencies(frequencies, texts)
    tables = [random_weights(random, clusters, of_cluster), random_weights(random, num_labels, of_label)]
    sizes = {"tokens": TOKENS, "pairs": 0, "levels": [clusters], "entries": [table.nnz for table in tables]}
    lexical = LexicalExpert(num_labels, **sizes)
    lexical.counter.weights.copy_(torch.from_numpy(weights))
    for table, matrix in zip(lexical.tables, tables, strict=True):
        table.load_state_dict(table_tensors(matrix))
    lexical.biases_0.fill_(-0.8)
    lexical.biases_1.fill_(-0.8)
    lexical.parents_1.copy_(torch.arange(num_labels) * clusters // num_labels)
    model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=num_labels))
    model.set_expert("lexical", lexical, sizes)

    counter = TextCounter(TOKENS)
    counter.weights.copy_(torch.from_numpy(np.where(frequencies > 0.1 * texts, 0, weights)))
    matrix = sparse_rows(rows, counter)
    numbers = random.integers(1, 8, size=texts)
    sizes = {"tokens": TOKENS, "texts": texts, "entries": matrix.nnz, "labels": int(numbers.sum())}
    sizes |= {"neighbors": NEIGHBORS, "power": POWER}
    memory = MemoryExpert(num_labels, **sizes)
    memory.counter.load_state_dict(counter.state_dict())
    memory.texts.load_state_dict(table_tensors(matrix))
    memory.label_starts[1:] = torch.from_numpy(np.cumsum(numbers))
    memory.label_ids.copy_(torch.from_numpy(random.integers(0, num_labels, size=numbers.sum())))
    model.set_expert("memory", memory, sizes)
    weights = {"lexical": 0.7, "lexical_bend": -0.3, "memory": 0.4, "memory_vote": 2.0, "frequency": 0.2, "bias": -0.5}
    blend = {"weights": weights, "threshold": 0.4, "f": "micro", "beta": 1.0, "texts": 1000}
    model.set_blend(blend, torch.full((num_labels,), -7.0))
    return model.eval()


@torch.inference_mode()
def speed_of(task, batches, runs):
    task(batches[0])
    seconds, work = [], []
    for _ in range(runs):
        started, worked = time.perf_counter(), time.process_time()
        for batch in batches:
            task(batch)
        seconds.append(time.perf_counter() - started)
        work.append(time.process_time() - worked)
    texts = sum(map(len, batches))
    return texts / min(seconds), 1000 * min(work) / texts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", choices=SIZES, default=list(SIZES))
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--batches", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=120, help="mean length of a text")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, help="of torch; its own number by default")
    parser.add_argument("--json", metavar="FILE", help="file for the numbers")
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    found = []
    for num_labels in args.labels:
        model = make_model(num_labels, args.tokens)
        rows = random_rows(np.random.default_rng(1), args.batch_size * args.batches, args.tokens)
        batches = [padded_ids(rows[start : start + args.batch_size]) for start in range(0, len(rows), args.batch_size)]
        tasks = {
            "lexical": model.lexical.logits,
            "memory": model.memory.logits,
            "blend": lambda ids, model=model: model.predict_top_k(ids, torch.ones_like(ids), text_ids=ids),
        }
        for name, task in tasks.items():
            speed, work = speed_of(task, batches, args.runs)
            print(
                f"{num_labels:>6} labels  {name:8} {speed:8.0f} texts a second, {work:.2f} ms of work a text",
                flush=True,
            )
            row = {"labels": num_labels, "what": name, "texts_per_second": round(speed), "work_ms": round(work, 3)}
            found.append(row)
    if args.json:
        machine = {"processors": os.cpu_count(), "threads": torch.get_num_threads(), "machine": platform.machine()}
        facts = {"torch": torch.__version__, **machine, "batch_size": args.batch_size, "tokens": args.tokens}
        Path(args.json).write_text(json.dumps({**facts, "speeds": found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
