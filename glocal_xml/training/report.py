"""What a run says about its result: tables, baselines, and what decided it."""

import platform
import resource
import sys
from collections.abc import Sized
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from glocal_xml.data import LabelSpace
from glocal_xml.metrics import xmtc_metrics
from glocal_xml.modeling import WordLSTMConfig, XMTCOutput, XMTCPreTrainedModel
from glocal_xml.pretrained import MINILM_HUB_ID

from .arguments import NO_ENCODER, DataArguments, ModelArguments, XMTCTrainingArguments

# The final ranking among those of the branches.
FINAL = "final"
# The row of results that no model made.
BASELINE = "label frequency"


def final_name(model: XMTCPreTrainedModel) -> str:
    """
    What results call the final ranking: `blend` where branches are weighed, else `both` of two branches, `all` of
    more, or the only branch there is.
    """
    branches = model.branch_names
    if model.config.blend is not None:
        return "blend"
    return {1: branches[0], 2: "both"}.get(len(branches), "all")


def rankings(model: XMTCPreTrainedModel, output: XMTCOutput) -> dict[str, torch.Tensor]:
    """The best labels of a batch, final and of each branch where there are several, and the final scores."""
    named = {FINAL: output.top_k_ids, "scores": output.top_k_scores}
    if output.branch_top_k_ids is not None:
        named |= dict(zip(model.branch_names, output.branch_top_k_ids.unbind(dim=1), strict=True))
    return named


def peak_memory_gb() -> float:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # In kilobytes, on a Mac in bytes.
    return round(peak / (2**30 if sys.platform == "darwin" else 2**20), 2)


def hardware(device: torch.device) -> str:
    """What the machine computes with."""
    if device.type == "cuda":
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(device)}"
    try:
        # Elsewhere than on Linux the platform tells.
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    memory = psutil.virtual_memory().total / 2**30
    return f"{model}, {psutil.cpu_count()} cores, {torch.get_num_threads()} threads used, {memory:.0f} GB of memory"


def ranking_metrics(
    top_k_ids: np.ndarray, true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """All metrics of one ranking; the same everywhere in a run."""
    return xmtc_metrics(
        top_k_ids,
        true_labels,
        ks=[k for k in args.metrics_at if k <= top_k_ids.shape[1]],
        inverse_propensities=label_space.inverse_propensities(args.propensity_a, args.propensity_b),
        bands=label_space.bands(),
        num_labels=label_space.num_labels + len(label_space.unseen),
    )


def branch_metrics(
    rankings: dict[str, np.ndarray], true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """All metrics of the final ranking, and those of each branch under its name: `global/precision@1`."""
    metrics = {}
    for branch, top_k_ids in rankings.items():
        if branch != "scores":
            prefix = "" if branch == FINAL else f"{branch}/"
            values = ranking_metrics(top_k_ids, true_labels, label_space, args)
            metrics |= {f"{prefix}{name}": value for name, value in values.items()}
    return metrics


def result_rows(metrics: dict[str, float], prefix: str, final: str) -> dict[str, dict[str, float]]:
    """Metrics by branch: the final ranking under the name `final`, then each branch."""
    rows: dict[str, dict[str, float]] = {final: {}}
    for name, value in metrics.items():
        branch, _, metric = name.removeprefix(f"{prefix}_" if prefix else "").rpartition("/")
        rows.setdefault(branch or final, {})[metric] = value
    return rows


def frequency_baseline(
    true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """What predicting the most frequent training labels for every text reaches."""
    most_frequent = np.argsort(-np.asarray(label_space.counts), kind="stable")[: max(args.metrics_at)]
    return ranking_metrics(np.tile(most_frequent, (len(true_labels), 1)), true_labels, label_space, args)


def results_table(rows: dict[str, dict[str, float]], args: XMTCTrainingArguments) -> str:
    """A table in percent: P@k, nDCG@k and PSP@k of every branch."""
    largest = max(args.metrics_at)
    columns = [f"precision@{k}" for k in args.metrics_at] + [f"ndcg@{largest}", f"psp@{largest}", f"recall@{largest}"]
    titles = [f"P@{k}" for k in args.metrics_at] + [f"nDCG@{largest}", f"PSP@{largest}", f"R@{largest}"]
    width = max(17, *map(len, rows))
    lines = [" " * width + "".join(f"{title:>9}" for title in titles)]
    for name, values in rows.items():
        cells = (f"{100 * values[column]:9.2f}" if column in values else f"{'-':>9}" for column in columns)
        lines.append(f"{name:{width}}" + "".join(cells))
    lines.append(f"percent; PSP with A = {args.propensity_a}, B = {args.propensity_b}")
    return "\n".join(lines)


def run_settings(model_args: ModelArguments, data_args: DataArguments, args: XMTCTrainingArguments) -> dict[str, Any]:
    """What decides the result of a run."""
    names = (
        "num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps learning_rate "
        "module_learning_rates lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
        "max_grad_norm train_sampling_strategy save_strategy save_steps metric_for_best_model early_stopping_patience "
        "seed fp16 bf16 metrics_at propensity_a propensity_b minutes frozen_layers blend threshold_f "
        "refit_experts"
    )
    # A token would be read by whoever reads the results.
    options = {name: value for name, value in model_args.encoder_options.items() if name not in ("cache_dir", "token")}
    return {
        "model": {**vars(model_args), "encoder_options": options},
        "data": vars(data_args),
        "training": {name: getattr(args, name) for name in names.split()},
    }


def hub_ids(model_args: ModelArguments, data_args: DataArguments) -> dict[str, str | None]:
    """What the run started from by its id on the Hub; a folder of this machine has none."""

    def hub_id(name: str | None) -> str | None:
        return None if name is None or Path(name).exists() else name

    # What comes as a package, and what is made in the run.
    short_names = {"minilm": MINILM_HUB_ID, WordLSTMConfig.model_type: None, NO_ENCODER: None}
    name = model_args.encoder
    return {
        "base_model": short_names[name] if name in short_names else hub_id(model_args.model or name),
        "dataset": hub_id(data_args.dataset_name),
    }


def data_facts(texts: dict[str, Any], label_space: LabelSpace) -> dict[str, Any]:
    """Sizes of the parts, as far as they are known before a stream is read, and of the label space."""
    sizes = {name: len(part) for name, part in texts.items() if isinstance(part, Sized)}
    return {
        # A stream of training texts was read once, to count the labels.
        "texts": {**({"train": label_space.num_texts} if "train" in texts else {}), **sizes},
        "labels": label_space.num_labels,
        "bands": {name: len(ids) for name, ids in label_space.bands().items()},
        "evaluation_only": len(label_space.unseen),
    }


def environment(args: XMTCTrainingArguments) -> dict[str, Any]:
    """Versions and the machine."""
    packages = ("glocal-xml", "torch", "transformers", "accelerate", "datasets", "numpy")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {args.device.type}",
        "processes": args.world_size,
    }
