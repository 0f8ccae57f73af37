"""
Models with a label tree at half a million labels and more: what a step costs, what fits, and what a beam finds.

    python benchmarks/label_clusters.py --json benchmarks/results/label_clusters.json

Four parts, each in a process of its own so that its peak memory is its own:

    step        a whole training step (encoder, loss, clipping, row-wise AdamW) of GlocalXML with both branches at
                50,000 and at 500,000 labels, with the same number of candidates per text; medians
    million     one million labels, label embeddings of 128: build, train 50 steps, save, load, predict
    prediction  half a million labels, trained on synthetic texts: beams against scoring every label, in time, in how
                often the best five labels are the same ones, and in P@5
    flat        the same step without a tree, for comparison (50,000 labels only)

The encoder is a small random BERT (2 layers, 128 wide), so that the label side is most of what is measured. Trees are
even partitions into clusters of 100 labels. Synthetic texts hold words of their labels and of the labels' clusters;
label frequencies follow Zipf's law. With `--attention_scoring mlp` the local branch is that of the paper.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, BertConfig

from glocal_xml.modeling import GlocalXMLConfig, GlocalXMLForMultiLabel
from glocal_xml.training.optimizer import clip_gradients, for_sparse_tables

WORDS, CLUSTER_SIZE, TOKENS, LABELS_PER_TEXT = 30_000, 100, 32, 3
BEAMS = [1, 2, 4, 8, 16, 32, 64]


def make_model(num_labels, options, tree=True, **fields):
    torch.manual_seed(0)
    encoder = BertConfig(
        vocab_size=WORDS, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512
    )
    clusters = num_labels // CLUSTER_SIZE
    fields = {"attention_scoring": options.attention_scoring, "label_bias": True, "mlp_size": 128, **fields}
    if tree:
        fields |= {"tree_levels": [clusters], "training_beam": 16, "beam": 16}
    model = GlocalXMLForMultiLabel(GlocalXMLConfig(encoder=encoder.to_dict(), num_labels=num_labels, **fields))
    if tree:
        starts = torch.arange(clusters + 1) * CLUSTER_SIZE
        model.set_label_tree([starts], torch.arange(num_labels))
    return model


class SyntheticTexts:
    """Texts that hold two words of each of their labels and one of its cluster, among others."""

    def __init__(self, num_labels, seed):
        self.generator = torch.Generator().manual_seed(seed)
        self.mass = (1 / torch.arange(1, num_labels + 1, dtype=torch.float64)).cumsum(0)
        # The same words whatever the seed of the texts; frequent labels are spread over the clusters.
        fixed = torch.Generator().manual_seed(0)
        self.labels = torch.randperm(num_labels, generator=fixed)
        self.label_words = torch.randint(10, WORDS, (num_labels, 2), generator=fixed)
        self.cluster_words = torch.randint(10, WORDS, (num_labels // CLUSTER_SIZE, 1), generator=fixed)

    def log_odds(self):
        """Of each label, from how often it is drawn."""
        shares = LABELS_PER_TEXT / torch.arange(1, len(self.labels) + 1) / self.mass[-1]
        return torch.logit(torch.empty_like(shares).scatter_(0, self.labels, shares).clamp(max=0.5))

    def batch(self, texts):
        points = torch.rand(texts, LABELS_PER_TEXT, dtype=torch.float64, generator=self.generator) * self.mass[-1]
        labels = self.labels[torch.searchsorted(self.mass, points)]  # (texts, labels of a text)
        words = torch.cat([self.label_words[labels], self.cluster_words[labels // CLUSTER_SIZE]], dim=2).flatten(1)
        noise = torch.randint(10, WORDS, (texts, TOKENS - 1 - words.shape[1]), generator=self.generator)
        first = torch.full((texts, 1), 2)
        return torch.cat([first, words, noise], dim=1), labels


def trainer(model, rate=1e-3):
    optimizer = for_sparse_tables(torch.optim.AdamW, model)(model.parameters(), lr=rate, eps=1e-12, fused=True)

    def step(input_ids, labels):
        optimizer.zero_grad()
        loss = model(input_ids, labels=labels).loss
        loss.backward()
        clip_gradients(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def peak_gigabytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def parameter_gigabytes(model):
    return sum(p.numel() * p.element_size() for p in model.parameters()) / 2**30


def measure_step(num_labels, options, tree=True):
    model = make_model(num_labels, options, tree).train()
    texts, step = SyntheticTexts(num_labels, 1), trainer(model)
    times = []
    for _ in range(options.repeats + 3):
        batch = texts.batch(options.batch_size)
        started = time.perf_counter()
        step(*batch)
        times.append(time.perf_counter() - started)
    parameters = parameter_gigabytes(model)
    return {
        "labels": num_labels,
        "tree": tree,
        "candidates_per_text": 16 * CLUSTER_SIZE if tree else num_labels,
        "seconds": statistics.median(times[3:]),
        "parameters_gb": parameters,
        "peak_gb": peak_gigabytes(),
        "limit_gb": 4 * parameters + 1,
    }


def measure_million(options):
    times = {}

    def timed(name, task):
        started = time.perf_counter()
        result = task()
        times[name] = time.perf_counter() - started
        return result

    fields = {"label_size": 128, "use_pooler": True}
    kept = {"model": timed("build", lambda: make_model(1_000_000, options, **fields).train())}
    texts, kept["step"] = SyntheticTexts(1_000_000, 1), trainer(kept["model"])
    losses = timed("train 50 steps", lambda: [kept["step"](*texts.batch(options.batch_size)) for _ in range(50)])
    with tempfile.TemporaryDirectory() as folder:
        timed("save", lambda: kept["model"].save_pretrained(folder))
        parameters = parameter_gigabytes(kept["model"])
        # Only the loaded model counts from here on.
        kept.clear()
        loaded = timed("load", lambda: AutoModel.from_pretrained(folder))
    input_ids, _ = texts.batch(64)
    best = timed("predict 64 texts", lambda: loaded.predict_top_k(input_ids, top_k=5))
    return {
        "seconds": times,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "predicted": list(best.top_k_ids.shape),
        "parameters_gb": parameters,
        "peak_gb": peak_gigabytes(),
        "limit_gb": 16,
    }


@torch.no_grad()
def every_label(model, input_ids, attention_mask=None):
    """The best five labels of all, in label chunks; the scores of clusters are computed once."""
    scores = model(input_ids, attention_mask, output_scores=True).scores
    # `top_k` alone would be the beam.
    ranking, _ = scores.top_k_and_all(5)
    return ranking.ids


def measure_prediction(options):
    num_labels = options.prediction_labels
    model, texts = make_model(num_labels, options).train(), SyntheticTexts(num_labels, 1)
    model.start_label_bias(texts.log_odds())
    step = trainer(model, rate=3e-3)
    losses = [step(*texts.batch(options.batch_size)) for _ in range(options.steps)]
    model.eval()
    unseen = SyntheticTexts(num_labels, 2)
    batches = [unseen.batch(options.texts) for _ in range(options.repeats)]

    def run(predict):
        times, found = [], []
        for input_ids, _ in batches:
            started = time.perf_counter()
            found.append(predict(input_ids))
            times.append(time.perf_counter() - started)
        return statistics.median(times[1:]), torch.cat(found)

    truth = torch.cat([labels for _, labels in batches])

    def precision(ids):
        # A label drawn twice for a text counts once.
        hits = [len(set(row) & set(true)) for row, true in zip(ids.tolist(), truth.tolist(), strict=True)]
        return sum(hits) / (5 * len(hits))

    seconds, exact = run(lambda ids: every_label(model, ids))
    rows = [
        {"beam": "every label", "seconds": seconds, "speedup": 1.0, "same_top_5": 1.0, "precision@5": precision(exact)}
    ]
    for beam in BEAMS:
        model.config.beam = beam
        seconds, ids = run(lambda ids: model.predict_top_k(ids, top_k=5).top_k_ids)
        same = (ids == exact).all(dim=1).double().mean().item()
        speedup = rows[0]["seconds"] / seconds
        rows.append(
            {"beam": beam, "seconds": seconds, "speedup": speedup, "same_top_5": same, "precision@5": precision(ids)}
        )
    best = sum(len(set(row)) for row in truth.tolist()) / (5 * len(truth))
    return {
        "labels": num_labels,
        "texts_per_batch": options.texts,
        "texts": len(truth),
        "training_steps": options.steps,
        "first_loss": losses[0],
        "last_loss": statistics.mean(losses[-20:]),
        "best_possible_precision@5": best,
        "rows": rows,
    }


def in_a_process(part, options):
    """Runs one part as a process of its own, so that its peak memory is its own."""
    command = [sys.executable, __file__, "--part", json.dumps(part)]
    for name in ("repeats", "batch_size", "steps", "texts", "prediction_labels", "attention_scoring"):
        command += [f"--{name}", str(getattr(options, name))]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


def run_part(part, options):
    if part[0] == "step":
        return measure_step(part[1], options, tree=part[2])
    return measure_million(options) if part[0] == "million" else measure_prediction(options)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="measurements of which the median counts")
    parser.add_argument("--batch_size", type=int, default=16, help="texts of a training step")
    parser.add_argument("--steps", type=int, default=1500, help="training steps before predictions are measured")
    parser.add_argument("--texts", type=int, default=64, help="texts of a prediction")
    parser.add_argument("--prediction_labels", type=int, default=500_000, help="labels of the prediction part")
    parser.add_argument(
        "--attention_scoring", choices=("evidence", "mlp"), default="evidence", help="how the local branch scores"
    )
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        print(json.dumps(run_part(json.loads(options.part), options)))
        return
    transformers.utils.logging.disable_progress_bar()
    steps = [in_a_process(("step", *size), options) for size in ((50_000, True), (500_000, True), (50_000, False))]
    print(
        f"{'labels':>9} {'tree':>5} {'step ms':>9} {'parameters GB':>14} {'peak GB':>8} {'4 x parameters + 1 GB':>22}"
    )
    for row in steps:
        print(
            f"{row['labels']:>9,} {'yes' if row['tree'] else 'no':>5} {1000 * row['seconds']:>9.1f} "
            f"{row['parameters_gb']:>14.2f} {row['peak_gb']:>8.2f} {row['limit_gb']:>22.2f}"
        )
    ratio = steps[1]["seconds"] / steps[0]["seconds"]
    print(f"step at 500,000 labels / step at 50,000: {ratio:.2f} (wanted: at most 1.5)\n")
    million = in_a_process(("million",), options)
    seconds = ", ".join(f"{name} {value:.1f} s" for name, value in million["seconds"].items())
    print(f"one million labels: {seconds}; peak {million['peak_gb']:.2f} GB (wanted: at most 16)\n")
    prediction = in_a_process(("prediction",), options)
    best = 100 * prediction["best_possible_precision@5"]
    print(f"{prediction['labels']:,} labels, {prediction['texts']} texts, best possible P@5 {best:.2f}")
    print(f"{'beam':>12} {'ms a text':>10} {'speedup':>8} {'same top 5':>11} {'P@5':>6}")
    for row in prediction["rows"]:
        milliseconds = 1000 * row["seconds"] / prediction["texts_per_batch"]
        print(
            f"{row['beam']:>12} {milliseconds:>10.2f} {row['speedup']:>7.1f}x {100 * row['same_top_5']:>10.1f}% "
            f"{100 * row['precision@5']:>6.2f}"
        )
    if options.json:
        environment = {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "processor": platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        }
        settings = {name: value for name, value in vars(options).items() if name not in ("json", "part")}
        figures = {
            "environment": environment,
            "settings": settings,
            "step": steps,
            "step_ratio": ratio,
            "million": million,
            "prediction": prediction,
        }
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
