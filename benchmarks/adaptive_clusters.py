"""
Adaptive label clusters against a linear classifier over all labels: parameters, training step and exact prediction.

    python benchmarks/adaptive_clusters.py --labels 30000 500000 --json benchmarks/results/adaptive_clusters.json
    python benchmarks/adaptive_clusters.py --labels 30000 --proportions 0.5 0.5 --proportions 0.1 0.2 0.7

What the APLC-XLNet paper expects (eq. 6-9 and 11-14) stands beside what is measured. Label frequencies follow Zipf's
law. Three output layers run on the same vectors and labels, one after the other in every repeat, and medians count:

    clusters    AdaptiveLabelClusters, in each of the partitions
    classifier  LinearHead, the fused linear classifier of the package: what the clusters are compared with
    plain       nn.Linear with binary_cross_entropy_with_logits on a multi-hot matrix

A step is a forward and a backward pass of the output layer alone, encoder and optimiser left out. Prediction is the
exact best ten labels: with every tail needed by every text (`all`), with tails needed by the texts that hold one of
their labels, as if roots were always right (`own`), and with none needed (`none`). A trained model lies in between.
"""

import argparse
import json
import math
import os
import platform
import statistics
import time
from pathlib import Path

import torch
import transformers
from torch import nn

from glocal_xml.modeling.adaptive_clusters import AdaptiveLabelClusters
from glocal_xml.modeling.linear_head import LinearHead

PARTITIONS = [[0.5, 0.5], [0.25, 0.25, 0.25, 0.25], [0.1, 0.2, 0.7], [0.02, 0.08, 0.9]]
LABELS_PER_TEXT, TOP_K = 5, 10
# Root logits that settle whether a tail is needed, whatever the other weights are.
ROOT = 50.0


def draw_labels(num_labels, texts, generator):
    """Different labels for each text, label i with a frequency of 1 / (i + 1)."""
    mass = (1 / torch.arange(1, num_labels + 1, dtype=torch.float64)).cumsum(0)
    labels = torch.zeros(texts, LABELS_PER_TEXT, dtype=torch.long)
    while (again := labels.sort(dim=1).values.diff(dim=1).eq(0).any(dim=1)).any():
        points = torch.rand(int(again.sum()), LABELS_PER_TEXT, dtype=torch.float64, generator=generator) * mass[-1]
        labels[again] = torch.searchsorted(mass, points)
    return labels


def visits(labels, sizes):
    """Which text holds a label of which tail, of shape (texts, tails); labels are in the order of frequency."""
    cuts = torch.tensor(sizes).cumsum(0)
    clusters = torch.bucketize(labels, cuts, right=True)  # (texts, labels)
    return torch.stack([(clusters == i).any(dim=1) for i in range(1, len(sizes))], dim=1)


def parameter_count(hidden_size, sizes, decay):
    """Eq. 6, with the whole numbers that widths are."""
    tails = sum(math.floor(hidden_size / decay**i) * (hidden_size + size) for i, size in enumerate(sizes[1:], 1))
    return hidden_size * (sizes[0] + len(sizes) - 1) + tails


def approximate_parameters(hidden_size, sizes, decay):
    """Eq. 7, which leaves out what is small; eq. 8, d L, is that of a single cluster."""
    return hidden_size * sum(size / decay**i for i, size in enumerate(sizes))


def expected_cost(hidden_size, sizes, decay, shares, texts):
    """Eq. 12 in multiply-adds, tail i being computed with `shares[i]`; eq. 13 is that of a single cluster."""
    tails = sum(share * size / decay**i for i, (size, share) in enumerate(zip(sizes[1:], shares, strict=True), 1))
    return texts * hidden_size * (sizes[0] + tails)


def size_ratio(sizes, decay):
    """Eq. 9: parameters of the linear layer over those of the clusters."""
    return sum(sizes) / sum(size / decay**i for i, size in enumerate(sizes))


def cost_ratio(sizes, decay, shares):
    """Eq. 14: expected cost of the linear layer over that of the clusters, tail i being computed with `shares[i]`."""
    return expected_cost(1, [sum(sizes)], decay, [], 1) / expected_cost(1, sizes, decay, shares, 1)


def median_times(tasks, repeats):
    """Median seconds of each task, one after the other in every repeat; a first round warms up."""
    times = {name: [] for name in tasks}
    for repeat in range(repeats + 1):
        for name, task in tasks.items():
            started = time.perf_counter()
            task(repeat)
            if repeat:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values) for name, values in times.items()}


def product(classifier, hidden):
    """All labels at once, as a linear layer does it."""
    table = classifier.label_embeddings
    return nn.functional.linear(hidden, table.weight, table.bias)


def training_times(layers, classifier, batches, repeats):
    """Forward and backward pass, each repeat on a batch of its own."""

    def step(module, loss):
        loss.backward()
        module.zero_grad(set_to_none=True)

    def plain(repeat):
        hidden, labels = batches[repeat]
        logits = product(classifier, hidden)
        target = torch.zeros_like(logits).scatter_(1, labels, 1.0)
        step(classifier, nn.functional.binary_cross_entropy_with_logits(logits, target))

    def fused(module):
        return lambda repeat: step(module, module(batches[repeat][0]).loss(batches[repeat][1]))

    tasks = {"plain": plain, "classifier": fused(classifier)}
    tasks |= {name: fused(layer) for name, layer in layers.items()}
    return median_times(tasks, repeats)


@torch.no_grad()
def prediction_times(layers, classifier, hidden, labels, repeats):
    """The best ten labels, for clusters in the three cases of which tails are needed."""

    def clusters(layer, weight):
        def run(_):
            layer.roots.weight.copy_(weight)
            layer(hidden).top_k(TOP_K)

        return run

    tasks = {
        "plain": lambda _: product(classifier, hidden).topk(TOP_K),
        "classifier": lambda _: classifier(hidden).top_k(TOP_K),
    }
    inverse = torch.linalg.pinv(hidden)  # (hidden, texts)
    for name, layer in layers.items():
        own = visits(labels, layer.sizes)
        for case, needed in {"all": torch.ones_like(own), "own": own, "none": torch.zeros_like(own)}.items():
            # Fewer texts than dimensions: there are roots that give each text the logits that are wanted.
            tasks[f"{name} {case}"] = clusters(layer, (inverse @ torch.where(needed, ROOT, -ROOT)).T)
    return median_times(tasks, repeats)


def measure(num_labels, texts, options):
    """All figures for one number of labels and one batch size."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    classifier = LinearHead(options.hidden_size, num_labels)
    layers = {}
    for proportions in options.proportions:
        layer = AdaptiveLabelClusters(options.hidden_size, num_labels, proportions=proportions, decay=options.decay)
        layer.set_label_counts(torch.arange(num_labels, 0, -1))
        layers["/".join(f"{share:g}" for share in proportions)] = layer
    batches = [
        (torch.randn(texts, options.hidden_size, requires_grad=True), draw_labels(num_labels, texts, generator))
        for _ in range(options.repeats + 1)
    ]
    steps = training_times(layers, classifier, batches, options.repeats)
    hidden, labels = batches[0]
    predictions = prediction_times(layers, classifier, hidden.detach(), labels, options.repeats)
    # Many more batches than are timed, since some tails are met rarely.
    drawn = [draw_labels(num_labels, texts, generator) for _ in range(options.batches)]
    rows = {}
    for name, layer in layers.items():
        visited = torch.stack([visits(labels, layer.sizes) for labels in drawn])  # (batches, texts, tails)
        by_batch = visited.any(dim=1).double().mean(dim=0).tolist()
        by_text = visited.double().mean(dim=(0, 1)).tolist()
        norms = sum(p.numel() for tail in layer.tails for p in tail.norm.parameters())
        parameters = sum(p.numel() for p in layer.parameters())
        rows[name] = {
            "sizes": layer.sizes,
            "parameters": parameters,
            "parameters_eq6": parameter_count(options.hidden_size, layer.sizes, options.decay),
            "parameters_eq7": approximate_parameters(options.hidden_size, layer.sizes, options.decay),
            "layer_norm_parameters": norms,
            "cost_eq12": expected_cost(options.hidden_size, layer.sizes, options.decay, by_batch, texts),
            "size_ratio_eq9": size_ratio(layer.sizes, options.decay),
            "size_ratio": sum(p.numel() for p in classifier.parameters()) / parameters,
            "share_of_batches": by_batch,
            "share_of_texts": by_text,
            "speedup_eq14": cost_ratio(layer.sizes, options.decay, by_batch),
            "speedup_eq14_by_text": cost_ratio(layer.sizes, options.decay, by_text),
            "step_seconds": steps[name],
            "step_speedup": steps["classifier"] / steps[name],
            "step_speedup_over_plain": steps["plain"] / steps[name],
        }
        for case in ("all", "own", "none"):
            seconds = predictions[f"{name} {case}"]
            rows[name][f"prediction_{case}_seconds"] = seconds
            rows[name][f"prediction_{case}_speedup"] = predictions["classifier"] / seconds
    linear = {"step_seconds": steps, "prediction_seconds": predictions}
    linear = {name: {key: times[key] for key in ("plain", "classifier")} for name, times in linear.items()}
    linear["parameters_eq8"] = options.hidden_size * num_labels
    linear["cost_eq13"] = texts * linear["parameters_eq8"]
    return {"labels": num_labels, "texts": texts, "linear": linear, "clusters": rows}


MILLIONS = [
    ("eq. 6", "parameters_eq6"),
    ("eq. 7", "parameters_eq7"),
    ("counted", "parameters"),
    ("eq. 12", "cost_eq12"),
]
COLUMNS = [
    ("eq. 9", "size_ratio_eq9"),
    ("smaller", "size_ratio"),
    ("eq. 14", "speedup_eq14"),
    ("by text", "speedup_eq14_by_text"),
    ("step", "step_speedup"),
    ("v. plain", "step_speedup_over_plain"),
    ("top: all", "prediction_all_speedup"),
    ("own", "prediction_own_speedup"),
    ("none", "prediction_none_speedup"),
]
LEGEND = """
eq. 6, 7, counted  millions of parameters of the clusters: exact, approximate, and as they are (layer norms in)
eq. 12             millions of multiply-adds of a pass with p_i the share of batches that need tail i
eq. 9, smaller     parameters of the linear layer over those of the clusters, expected and counted (layer norms in)
eq. 14, by text    expected speed-up of a step with p_i the share of batches, or of texts, that need tail i: the paper
                   computes a tail for the whole batch, the package for the texts that need it
step, v. plain     measured speed-up of a step over the fused classifier, and over nn.Linear
top: all/own/none  measured speed-up of the exact best ten over the fused classifier, by which tails are needed
Below 1.00 the clusters are slower than the linear layer.
"""


def print_table(figures):
    linear = figures["linear"]
    print(f"\n{figures['labels']:,} labels, {figures['texts']} texts; ", end="")
    for title, field in {"step": "step_seconds", "top ten": "prediction_seconds"}.items():
        times = {name: f"{1000 * seconds:.0f} ms" for name, seconds in linear[field].items()}
        print(f"{title}: classifier {times['classifier']}, plain {times['plain']}", end="; ")
    print(
        f"\nlinear layer: {linear['parameters_eq8'] / 1e6:.2f} million parameters (eq. 8), "
        f"{linear['cost_eq13'] / 1e6:.1f} million multiply-adds a pass (eq. 13)"
    )
    print(f"{'proportions':22}" + "".join(f"{title:>9}" for title, _ in MILLIONS + COLUMNS) + "   p_i by batch")
    for name, row in figures["clusters"].items():
        shares = " ".join(f"{share:.2f}" for share in row["share_of_batches"])
        values = [row[field] / 1e6 for _, field in MILLIONS] + [row[field] for _, field in COLUMNS]
        print(f"{name:22}" + "".join(f"{value:9.2f}" for value in values) + f"   {shares}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--labels", type=int, nargs="+", default=[30_000, 500_000], help="numbers of labels")
    parser.add_argument("--texts", type=int, nargs="+", default=[4, 32], help="batch sizes")
    parser.add_argument(
        "--proportions",
        type=float,
        nargs="+",
        action="append",
        help="shares of the labels in the head and each tail; may be given several times",
    )
    parser.add_argument("--hidden_size", type=int, default=256, help="size of the vector of a text")
    parser.add_argument("--decay", type=float, default=2, help="factor by which the width of tails falls")
    parser.add_argument("--repeats", type=int, default=5, help="interleaved repeats, of which the median is taken")
    parser.add_argument("--batches", type=int, default=100, help="batches that p_i is estimated from")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    options.proportions = options.proportions or PARTITIONS
    print(
        f"hidden size {options.hidden_size}, decay {options.decay:g}, {LABELS_PER_TEXT} labels per text (Zipf), fp32, "
        f"{torch.get_num_threads()} threads, medians of {options.repeats}"
    )
    results = []
    for num_labels in options.labels:
        for texts in options.texts:
            results.append(measure(num_labels, texts, options))
            print_table(results[-1])
    print(LEGEND)
    if options.json:
        machine = {"platform": platform.platform(), "machine": platform.machine(), "cores": os.cpu_count()}
        versions = {name.__name__: name.__version__ for name in (torch, transformers)}
        versions["python"] = platform.python_version()
        sizes = {name: getattr(options, name) for name in ("hidden_size", "decay", "repeats", "batches")}
        sizes |= {"labels_per_text": LABELS_PER_TEXT, "threads": torch.get_num_threads()}
        report = {"machine": machine, "versions": versions, "settings": sizes, "results": results}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
