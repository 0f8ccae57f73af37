"""
What `glocal-xml estimate` says of three runs beside what they then take: peak memory and the time of a step.

    python benchmarks/estimate.py --json benchmarks/results/estimate.json

Each run is `glocal-xml train` in a process of its own on synthetic texts of random words, all of the same length, for
some steps. Its peak is that of the whole process; the time of a step is the median from the end of one to the end of
the next, the first ones left out. The estimate, a process too, is made just before and once more after, and the mean
of both is taken, so that a machine that others use meanwhile is the same for both. `--runs` names two more, other
than those that memory was looked at with: small_batch and global_branch.
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
from importlib import import_module
from pathlib import Path

import numpy as np

COMMON = ["--encoder", "minilm", "--save_strategy", "no", "--logging_steps", "1000", "--disable_tqdm", "true"]
# Labels, texts and arguments of each run.
RUNS = {
    "flat": (4_000, 8_000, ["--max_length", "128", "--per_device_train_batch_size", "16"]),
    "clusters": (
        200_000,
        40_000,
        ["--max_length", "64", "--per_device_train_batch_size", "16", "--label_tree", "tree"],
    ),
    "adaptive": (
        30_000,
        20_000,
        ["--model_type", "aplc_xlnet", "--max_length", "128", "--per_device_train_batch_size", "8"],
    ),
    "small_batch": (
        20_000,
        20_000,
        ["--model_type", "me_xml", "--max_length", "96", "--per_device_train_batch_size", "4"],
    ),
    "global_branch": (
        50_000,
        20_000,
        ["--model_config", '{"branches": "global"}', "--max_length", "256", "--per_device_train_batch_size", "8"],
    ),
}
LABELS_PER_TEXT = 5
# More than the tokens of the longest length, since a word makes two tokens or more.
WORDS = 130
WARM_UP = 3


def write_texts(path, num_texts, num_labels, seed=0):
    """Texts of random words, longer than any length, with labels that follow Zipf's law; every label occurs."""
    rng = np.random.default_rng(seed)
    words = np.array([f"word{i}" for i in range(5000)])
    drawn = (num_labels * rng.random((num_texts, LABELS_PER_TEXT)) ** 2).astype(int)
    places = rng.permutation(num_texts * LABELS_PER_TEXT)[:num_labels]
    drawn.reshape(-1)[places] = np.arange(num_labels)[: len(places)]
    with open(path, "w", encoding="utf-8") as file:
        for row in drawn:
            text = " ".join(words[rng.integers(0, len(words), WORDS)])
            file.write(json.dumps({"text": text, "labels": [f"label {i}" for i in sorted(set(row.tolist()))]}) + "\n")


def write_tree(path, num_labels):
    """A tree over labels at random: what is measured does not depend on which labels are neighbours."""
    from glocal_xml.data import LabelTree, tree_level_sizes

    (clusters,) = tree_level_sizes(num_labels)
    starts = np.linspace(0, num_labels, clusters + 1).astype(np.int64)
    order = np.concatenate(
        [np.sort(part) for part in np.split(np.random.default_rng(0).permutation(num_labels), starts[1:-1])]
    )
    LabelTree((starts,), order).save(path)


def train(arguments):
    """A worker: trains, and prints seconds of its steps and the peak of its memory."""
    from transformers import TrainerCallback

    from glocal_xml.training import parse_arguments

    # The package has a function of the same name.
    module = import_module("glocal_xml.runs.run")
    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_, **__):
            ends.append(time.perf_counter())

    class ClockedTrainer(module.XMTCTrainer):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.add_callback(Clock())

    module.XMTCTrainer = ClockedTrainer
    parsed = parse_arguments(arguments)
    module.quieten(parsed[2])
    module.run(*parsed)
    seconds = np.diff(ends)[WARM_UP:]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"step_seconds": statistics.median(seconds.tolist()), "peak_bytes": peak}


def estimate(arguments):
    """A worker: estimates, and prints all figures."""
    import dataclasses

    from glocal_xml.cli.estimate import main

    return dataclasses.asdict(main(arguments))


WORKERS = {"train": train, "estimate": estimate}


def call(worker, arguments):
    command = [sys.executable, __file__, "--worker", worker, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{worker} failed, see above: {' '.join(arguments)}")
    return json.loads(done.stdout.splitlines()[-1])


def measure(name, steps):
    num_labels, num_texts, arguments = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder, "train.jsonl"), num_texts, num_labels)
        write_tree(Path(folder, "tree.npz"), num_labels)
        arguments = [str(Path(folder, "tree.npz")) if word == "tree" else word for word in arguments]
        arguments = [*COMMON, *arguments, "--train_file", str(Path(folder, "train.jsonl"))]
        arguments += ["--max_steps", str(steps), "--output_dir", str(Path(folder, "run"))]
        before = call("estimate", arguments)
        measured = call("train", arguments)
        after = call("estimate", arguments)
    seconds = statistics.mean(figures["step_seconds"]["all"] for figures in (before, after))
    peak = before["memory_bytes"]["peak"]
    row = {
        "run": name,
        "labels": num_labels,
        "arguments": RUNS[name][2],
        "estimated": {"step_seconds": seconds, "peak_bytes": peak},
        "measured": measured,
        "seconds_ratio": seconds / measured["step_seconds"],
        "memory_ratio": peak / measured["peak_bytes"],
        "estimate_before": before,
        "estimate_after": after,
    }
    print(
        f"{name:16}{seconds:10.3f}{measured['step_seconds']:10.3f}{row['seconds_ratio']:8.2f}"
        f"{peak / 1e9:12.2f}{measured['peak_bytes'] / 1e9:10.2f}{row['memory_ratio']:8.2f}",
        flush=True,
    )
    return row


def main():
    if sys.argv[1:2] == ["--worker"]:
        print(json.dumps(WORKERS[sys.argv[2]](sys.argv[3:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--runs", nargs="+", choices=RUNS, default=["flat", "clusters", "adaptive"], help="runs to make"
    )
    parser.add_argument("--steps", type=int, default=14, help="steps of each run")
    parser.add_argument("--json", type=Path, help="file to write the figures to")
    options = parser.parse_args()
    print(f"{'':16}{'step, s':>20}{'':8}{'peak, GB':>22}")
    print(f"{'run':16}{'estimated':>10}{'measured':>10}{'ratio':>8}{'estimated':>12}{'measured':>10}{'ratio':>8}")
    rows = [measure(name, options.steps) for name in options.runs]
    if options.json:
        import torch
        import transformers

        versions = {name.__name__: name.__version__ for name in (np, torch, transformers)}
        machine = {
            "platform": platform.platform(),
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load": os.getloadavg(),
        }
        report = {"machine": machine, "versions": versions, "steps": options.steps, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
