"""What decided the result of a training: settings, data, versions, machine."""

import platform
import sys
from collections.abc import Sized
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import torch

from glocal_xml.data import LabelSpace

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments


def peak_memory_gb() -> float:
    """The most memory that this process has held."""
    # Of Windows, which does not have what follows.
    peak = getattr(psutil.Process().memory_info(), "peak_wset", None)
    if peak is not None:
        return round(peak / 2**30, 2)
    import resource

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


def run_settings(model_args: ModelArguments, data_args: DataArguments, args: XMTCTrainingArguments) -> dict[str, Any]:
    """What decides the result of a run."""
    names = (
        "num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps learning_rate "
        "module_learning_rates lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
        "max_grad_norm train_sampling_strategy save_strategy save_steps metric_for_best_model early_stopping_patience "
        "seed fp16 bf16 metrics_at propensity_a propensity_b minutes frozen_layers frozen_encoder blend threshold_f "
        "refit_experts"
    )
    # A token would be read by whoever reads the results.
    options = {name: value for name, value in model_args.encoder_options.items() if name not in ("cache_dir", "token")}
    return {
        "model": {**vars(model_args), "encoder_options": options},
        "data": vars(data_args),
        "training": {name: getattr(args, name) for name in names.split()},
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
