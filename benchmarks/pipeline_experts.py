"""
What experts and blend add to the time of a pipeline, with long texts.

    python benchmarks/pipeline_experts.py --test_file test.jsonl --json benchmarks/results/pipeline_experts.json

One GlocalXML around MiniLM with 4,000 labels, heads, experts of `experts.py` and a dense memory made up, in turns: the
heads alone, and with experts and blend. Times are those that a processor works on a text, medians of rounds: other
work on the machine hardly changes them.
"""

import argparse
import json
import os
import platform
import statistics
import time
from importlib.metadata import version

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from experts import make_model
from transformers import AutoTokenizer, pipeline

from glocal_xml import GlocalXMLForMultiLabel, minilm_path
from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import read_rows
from glocal_xml.experts.memory import extended
from glocal_xml.modeling import TASK, DenseMemory

LABELS = 4000


def dense_memory(memory, size):
    """Embeddings, made up, of as many texts as the memory of words has, with the same labels."""
    empty = DenseMemory(LABELS, size, 0, 0, memory.neighbors, memory.power)
    directions = torch.nn.functional.normalize(torch.randn(len(memory.text_numbers), size), dim=1)
    return extended(empty, directions.numpy(), [memory.labels_of(row) for row in range(len(directions))])


def contenders(length, memory_tokens):
    tokenizer = AutoTokenizer.from_pretrained(minilm_path(), model_max_length=length)
    heads = GlocalXMLForMultiLabel.from_encoder(minilm_path(), num_labels=LABELS).eval()
    whole = GlocalXMLForMultiLabel.from_encoder(heads.encoder, num_labels=LABELS).eval()
    experts = make_model(LABELS, memory_tokens)
    for name, expert in experts.text_experts().items():
        whole.set_expert(name, expert, getattr(experts.config, name))
    whole.set_expert("dense", *dense_memory(experts.memory, whole.config.hidden_size))
    weights = {"global": 0.3, "local": 0.3, "dense": 0.3, "dense_vote": 0.2, **experts.config.blend["weights"]}
    whole.set_blend({**experts.config.blend, "weights": weights}, experts.log_frequencies)
    return {
        "heads alone": pipeline(TASK, model=heads, tokenizer=tokenizer),
        "with experts and blend": pipeline(TASK, model=whole, tokenizer=tokenizer),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--test_file", required=True, help="texts, as long as they come")
    parser.add_argument("--texts", type=int, default=256)
    parser.add_argument("--lengths", type=int, nargs="+", default=[48, 128], help="most tokens that the encoder reads")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--memory_tokens", type=int, default=300, help="mean length of the texts of the memory")
    parser.add_argument("--json", help="file to write the figures to")
    options = parser.parse_args()
    torch.manual_seed(0)
    texts = [row["text"] for row, _ in zip(read_rows(options.test_file), range(options.texts), strict=False)]
    figures = {name: version(name) for name in ("torch", "transformers", "tokenizers")}
    figures |= {"machine": platform.machine(), "threads": torch.get_num_threads(), **vars(options), "ms": {}}
    for length in options.lengths:
        pipes = contenders(length, options.memory_tokens)
        milliseconds = {name: [] for name in pipes}
        # The first round warms up.
        for number in range(options.rounds + 1):
            for name, pipe in pipes.items():
                started = time.process_time()
                pipe(texts if number else texts[: options.batch_size], batch_size=options.batch_size)
                if number:
                    milliseconds[name].append(1000 * (time.process_time() - started) / len(texts))
        medians = {name: statistics.median(values) for name, values in milliseconds.items()}
        print(f"{length} tokens, {len(texts)} texts of {sum(map(len, texts)) / len(texts):.0f} characters")
        for name, value in medians.items():
            print(f"  {name:24} {value:7.2f} ms  {value / medians['heads alone']:5.2f}", flush=True)
        figures["ms"][length] = milliseconds
    if options.json:
        write_atomically(options.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
