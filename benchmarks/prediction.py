"""
Prediction of the five best labels with and without a shortlist: how fast, and how good on a trained model.

    python benchmarks/prediction.py --labels 4000 31000
    python benchmarks/prediction.py --model outputs/eurlex57k/glocal_xml_part --test_file dev.jsonl.gz --json FILE

The first form times whole models around the same encoder, interleaved, and compares medians: GlocalXML over all
labels, GlocalXML with local scores only for a shortlist of the global branch, both again in the paper's form (an MLP
instead of evidence, no biases), and the plain Transformers classifier, which has no local branch. The second gives P@k
of a trained model for shortlists of several sizes beside all labels.
"""

import argparse
import json
import platform
import statistics
import time
from importlib.metadata import version

import torch
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModel, AutoModelForSequenceClassification, AutoTokenizer

from glocal_xml import GlocalXMLForMultiLabel, LabelSpace, load_xmtc_dataset, minilm_path, xmtc_metrics
from glocal_xml.atomic_file import write_atomically
from glocal_xml.data import XMTCCollator, tokenize

PAPER = {"attention_scoring": "mlp", "label_bias": False, "mlp_size": 128}


def contenders(num_labels, shortlist):
    """Functions that predict the five best labels of a batch."""
    encoder = minilm_path()
    model, short, paper, short_paper = (
        GlocalXMLForMultiLabel.from_encoder(encoder, num_labels=num_labels, shortlist=size, **fields).eval()
        for fields in ({}, PAPER)
        for size in (None, shortlist)
    )
    plain = AutoModelForSequenceClassification.from_pretrained(encoder, num_labels=num_labels).eval()
    return {
        "GlocalXML": lambda ids: model.predict_top_k(ids, top_k=5),
        f"GlocalXML, shortlist of {shortlist}": lambda ids: short.predict_top_k(ids, top_k=5),
        "GlocalXML, paper's form": lambda ids: paper.predict_top_k(ids, top_k=5),
        f"paper's form, shortlist of {shortlist}": lambda ids: short_paper.predict_top_k(ids, top_k=5),
        "Transformers classifier": lambda ids: plain(ids).logits.topk(5),
        "encoder alone": lambda ids: model.encoder(ids),
    }


@torch.no_grad()
def measure_speed(options, num_labels):
    """Median seconds per batch of each contender."""
    torch.manual_seed(0)
    input_ids = torch.randint(1000, 20000, (options.texts, options.tokens))
    predict = contenders(num_labels, options.shortlist)
    seconds = {name: [] for name in predict}
    # The first round warms up.
    for repeat in range(options.repeats + 1):
        for name, function in predict.items():
            started = time.perf_counter()
            function(input_ids)
            if repeat:
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    print(f"\n{num_labels} labels, {options.texts} texts of {options.tokens} tokens, median of {options.repeats}")
    for name, value in medians.items():
        print(f"{name:34}{1000 * value:10.1f} ms{medians['GlocalXML'] / value:8.2f}x")
    return {"labels": num_labels, "seconds": medians}


def measure_quality(options):
    """P@k of a trained model for shortlists of several sizes; 0 stands for all labels."""
    model = AutoModel.from_pretrained(options.model).eval()
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    parts, label_space = load_xmtc_dataset(
        {"test": options.test_file}, label_space=LabelSpace.load(options.model), streaming=False
    )
    texts = parts["test"].shuffle(seed=0)
    texts = texts.select(range(min(options.max_texts, len(texts))))
    tokens = tokenize(texts, tokenizer, options.tokens).sort("length")
    loader = DataLoader(tokens, 32, collate_fn=XMTCCollator(tokenizer))
    sizes = [0, *options.shortlists]
    best = {size: [] for size in sizes}
    for batch in tqdm(loader):
        batch.pop("labels")
        for size in sizes:
            model.config.shortlist = size or None
            best[size].append(model.predict_top_k(**batch, top_k=5).top_k_ids)
    rows = []
    print(f"\n{options.model}, {len(tokens)} texts, {model.config.num_labels} labels; P@k in percent")
    print(f"{'shortlist':>10}{'P@1':>9}{'P@3':>9}{'P@5':>9}{'P@5 lost':>11}")
    for size in sizes:
        metrics = xmtc_metrics(torch.cat(best[size]).numpy(), tokens["labels"])
        row = {"shortlist": size or None} | {f"P@{k}": 100 * metrics[f"precision@{k}"] for k in (1, 3, 5)}
        row["lost"] = (rows[0] if rows else row)["P@5"] - row["P@5"]
        rows.append(row)
        cells = "".join(f"{row[f'P@{k}']:9.2f}" for k in (1, 3, 5))
        print(f"{size or 'all':>10}{cells}{row['lost']:11.2f}")
    return {"model": options.model, "texts": len(tokens), "labels": model.config.num_labels, "rows": rows}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="*", default=[], help="sizes of the label space to time")
    parser.add_argument("--texts", type=int, default=4, help="texts in a batch to time")
    parser.add_argument("--tokens", type=int, default=256, help="tokens in a text")
    parser.add_argument("--repeats", type=int, default=7, help="timed predictions of each contender")
    parser.add_argument("--shortlist", type=int, default=512, help="labels in the shortlist to time")
    parser.add_argument("--model", help="folder of a trained GlocalXML to judge shortlists on")
    parser.add_argument("--test_file", help="texts with labels for it")
    parser.add_argument("--max_texts", type=int, default=1500, help="how many of them, taken at random")
    parser.add_argument("--shortlists", type=int, nargs="+", default=[32, 64, 128, 256, 512], help="sizes to judge")
    parser.add_argument("--json", help="file to write the figures to")
    options = parser.parse_args()
    if bool(options.model) != bool(options.test_file) or not (options.labels or options.model):
        parser.error("pass --labels to time, --model with --test_file to judge, or all of them")
    figures = {name: version(name) for name in ("torch", "transformers")} | {"machine": platform.machine()}
    figures["speed"] = [measure_speed(options, num_labels) for num_labels in options.labels]
    if options.model:
        figures["quality"] = measure_quality(options)
    if options.json:
        write_atomically(options.json, json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
