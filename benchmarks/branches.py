"""
Do both branches of GlocalXML together beat the global one alone? Several seeds on parts of real data sets.

    python benchmarks/branches.py --data debtags eurlex57k --seeds 0 1 2 --json benchmarks/results/branches.json

Each seed trains one model on a part of its own of the training texts and judges the branches of that model on the same
2,000 texts that it was not trained on. Settings were chosen on other training texts (docs/experiments.md). debtags is in
this repository; EURLEX57K is read from `--eurlex57k`, a folder with train.jsonl.gz and dev.jsonl.gz.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers

ROOT = Path(__file__).resolve().parents[1]
METRICS = ("precision@1", "precision@3", "precision@5", "psp@5")
SETTINGS = {
    "encoder": "minilm",
    "num_train_epochs": "2",
    "per_device_train_batch_size": "16",
    "warmup_steps": "0.07",
    "module_learning_rates": '{"encoder": 2e-4, ".*label_(embeddings|outputs)": 5e-3, "local_head": 1e-3}',
    "train_sampling_strategy": "group_by_length",
    "save_strategy": "no",
    # The heads alone, as the paper has them.
    "experts": "none",
    "blend": "false",
    "validation_size": "0",
}
DATA = {
    "debtags": {"max_train_texts": "2500", "max_test_texts": "2000", "max_length": "48"},
    "eurlex57k": {"max_train_texts": "3000", "max_test_texts": "2000", "max_length": "64"},
}


def files(data, eurlex57k):
    if data == "debtags":
        folder = ROOT / "examples" / "data" / "debtags"
        return {"train_file": folder / "train.jsonl.gz", "test_file": folder / "test.jsonl.gz"}
    return {"train_file": eurlex57k / "train.jsonl.gz", "test_file": eurlex57k / "dev.jsonl.gz"}


def train(data, seed, options):
    """The metrics of each branch of one model."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {**SETTINGS, **DATA[data], **files(data, options.eurlex57k), "seed": seed, "output_dir": folder}
        if options.model_config:
            settings["model_config"] = options.model_config
        flags = [str(part) for name, value in settings.items() for part in (f"--{name}", value)]
        subprocess.run([sys.executable, "-m", "glocal_xml", "train", *flags], check=True, cwd=ROOT)
        results = json.loads(Path(folder, "results.json").read_text(encoding="utf-8"))
    return results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=list(DATA), default=["debtags"], help="default: debtags")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="default: 0 1 2")
    parser.add_argument("--eurlex57k", type=Path, default=ROOT.parent / "shared" / "data" / "eurlex57k")
    parser.add_argument("--model_config", help="fields of the configuration as JSON, such as the paper's local branch")
    parser.add_argument("--json", type=Path, help="file to write the figures to, after every run")
    options = parser.parse_args()
    runs = []
    for data in options.data:
        for seed in options.seeds:
            runs.append({"data": data, "seed": seed, "branches": train(data, seed, options)["test"]})
            if options.json:
                write(options, runs)
        print(f"\n{data}: mean over seeds {options.seeds} (lowest to highest)")
        print(f"{'':8}" + "".join(f"{metric:>26}" for metric in METRICS))
        for branch in runs[-1]["branches"]:
            rows = [run["branches"][branch] for run in runs if run["data"] == data]
            print(f"{branch:8}" + "".join(f"{spread([row[metric] for row in rows]):>26}" for metric in METRICS))


def spread(values):
    values = [100 * value for value in values]
    return f"{statistics.mean(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def write(options, runs):
    environment = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    content = {
        "environment": environment,
        "settings": SETTINGS | {"model_config": options.model_config or "{}"},
        "parts": DATA,
        "runs": runs,
    }
    options.json.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
