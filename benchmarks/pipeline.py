"""
What the pipeline costs beside the encoder that it cannot do without: one text at a time, and a batch.

    python benchmarks/pipeline.py --json FILE

Contenders share one MiniLM and are interleaved; heads over labels are random, since time does not depend on what they
learned. "Bare" is the tokenizer and the encoder, with nothing done about labels. The pipeline of this package gives
the ten best labels, over all labels and with local scores for a shortlist alone; Transformers' own text-classification
pipeline runs the same model. Ratios are those of medians, with those of single rounds, in percentiles, beside them.
With `--attention_scoring mlp` the model is that of the paper, without biases.

For context, from others' reports on other machines: XR-Transformer takes 306 ms on a CPU for a text and 1,073 labels
(amzn/pecos#142).
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version

import torch
from transformers import AutoTokenizer, pipeline

from glocal_xml import GlocalXMLForMultiLabel, minilm_path
from glocal_xml.atomic_file import write_atomically

BARE = "tokenizer and encoder"
WORDS = [
    "house",
    "small",
    "green",
    "fox",
    "near",
    "water",
    "old",
    "trees",
    "children",
    "read",
    "books",
    "music",
    "the",
]


def make_text(tokenizer, tokens, seed):
    """A text of so many tokens, special ones included."""
    words = [WORDS[(seed + 7 * i) % len(WORDS)] for i in range(tokens - tokenizer.num_special_tokens_to_add())]
    text = " ".join(words)
    if len(tokenizer(text)["input_ids"]) != tokens:
        raise ValueError("A word of the benchmark is more than one token of this tokenizer.")
    return text


def contenders(options):
    """Functions from a list of texts to something about each."""
    tokenizer = AutoTokenizer.from_pretrained(minilm_path(), model_max_length=options.tokens)
    fields = {"num_labels": options.labels, "attention_scoring": options.attention_scoring}
    fields["label_bias"] = options.attention_scoring != "mlp"
    model = GlocalXMLForMultiLabel.from_encoder(minilm_path(), **fields).eval()
    short = GlocalXMLForMultiLabel.from_encoder(model.encoder, shortlist=options.shortlist, **fields).eval()
    task = "extreme-multi-label-classification"
    own, shortlisted = (pipeline(task, model=each, tokenizer=tokenizer) for each in (model, short))
    standard = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=10)

    @torch.inference_mode()
    def bare(texts):
        return model.encoder(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))

    def run(pipe):
        return lambda texts: pipe(texts[0]) if len(texts) == 1 else pipe(texts, batch_size=len(texts))

    return tokenizer, {
        BARE: bare,
        "pipeline": run(own),
        f"pipeline, shortlist of {options.shortlist}": run(shortlisted),
        "text-classification": run(standard),
    }


def measure(functions, texts, repeats):
    """Median seconds of each contender, and percentiles of its ratio to the bare one in the same round."""
    seconds = {name: [] for name in functions}
    # The first rounds warm up.
    for repeat in range(repeats + 3):
        for name, function in functions.items():
            started = time.perf_counter()
            function(texts)
            if repeat >= 3:
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    rows = {}
    print(f"\n{len(texts)} text(s), median of {repeats} rounds")
    print(f"{'':32}{'ms':>10}{'/ bare':>9}{'10 %':>8}{'50 %':>8}{'90 %':>8}")
    for name, values in seconds.items():
        ratios = sorted(value / other for value, other in zip(values, seconds[BARE], strict=True))
        spread = [ratios[int(share * (len(ratios) - 1))] for share in (0.1, 0.5, 0.9)]
        rows[name] = {"seconds": medians[name], "ratio": medians[name] / medians[BARE], "ratios_10_50_90": spread}
        cells = "".join(f"{ratio:8.2f}" for ratio in spread)
        print(f"{name:32}{1000 * medians[name]:10.1f}{rows[name]['ratio']:9.2f}{cells}")
    return {"texts": len(texts), "repeats": repeats, "contenders": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, default=4000, help="size of the label space")
    parser.add_argument("--tokens", type=int, default=128, help="tokens in a text")
    parser.add_argument("--shortlist", type=int, default=512, help="labels in the shortlist")
    parser.add_argument("--batch_size", type=int, default=32, help="texts in the batch")
    parser.add_argument("--repeats", type=int, default=60, help="rounds with one text; a sixth of them with the batch")
    parser.add_argument(
        "--attention_scoring", choices=("evidence", "mlp"), default="evidence", help="how the local branch scores"
    )
    parser.add_argument("--json", help="file to write the figures to")
    options = parser.parse_args()
    torch.manual_seed(0)
    tokenizer, functions = contenders(options)
    texts = [make_text(tokenizer, options.tokens, seed) for seed in range(options.batch_size)]
    figures = {name: version(name) for name in ("torch", "transformers")}
    figures |= {"machine": platform.machine(), "threads": torch.get_num_threads(), **vars(options)}
    figures["one text"] = measure(functions, texts[:1], options.repeats)
    figures["batch"] = measure(functions, texts, max(1, options.repeats // 6))
    best = figures["batch"]["contenders"]["pipeline"]["ratio"]
    print(f"\nThe pipeline has {1 / best:.2f} of the bare throughput with {options.batch_size} texts at a time.")
    if options.json:
        write_atomically(options.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
