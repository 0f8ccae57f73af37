"""What decided the result of a training: settings, data, versions, machine; and the card made of these."""

import platform
import sys
from collections.abc import Sized
from dataclasses import MISSING, fields
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from huggingface_hub import ModelCard
from transformers.configuration_utils import PreTrainedConfig

from glocal_xml.data import LabelSpace
from glocal_xml.hub.model_card import card_name, describe_card, render_model_card
from glocal_xml.hub.papers import EXPERT_PAPERS
from glocal_xml.hub.run_files import RESULTS_FILE, write_card, write_results
from glocal_xml.modeling import XMTCConfig
from glocal_xml.modeling.configuration_base import EXPERTS

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from .rankings import final_name, result_rows

if TYPE_CHECKING:
    from .trainer import XMTCTrainer


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


def write_trainer_card(trainer: "XMTCTrainer", model_name: str | None, tags: list[str], **facts: Any) -> None:
    """Writes the results and, unless a person wrote one, the card of a trainer, with facts for its front matter."""
    results = results_of_trainer(trainer) if trainer.run_results is None else trainer.run_results
    folder = Path(trainer.args.output_dir)
    write_results(folder, results)
    name = trainer.hub_model_id or model_name or card_name(folder / RESULTS_FILE, trainer.model.config.model_type)
    card = render_model_card(results, name=name)
    own = ModelCard(card).data["tags"]
    tags = own + [tag for tag in tags if tag not in own]
    write_card(folder, describe_card(card, tags=tags, **facts))


def results_of_trainer(trainer: "XMTCTrainer") -> dict[str, Any]:
    """Settings, label space, training and the last metrics; the files that texts came from are not known here."""
    model, facts = trainer.model, trainer.training_facts
    if not facts.facts:
        raise ValueError("There is nothing to tell of a model before `train()` has ended.")
    encoder = getattr(model.config.encoder, "_name_or_path", None) or None
    hub_id = None if encoder is None or Path(encoder).exists() else encoder
    model_args = ModelArguments(
        model_type=model.config.model_type, encoder=hub_id, model_config=_chosen_fields(model.config)
    )
    data_args = DataArguments(max_length=trainer.processing_class.model_max_length)
    texts = {"train": trainer.train_dataset, "validation": trainer.eval_dataset}
    final = final_name(model)
    return {
        "settings": run_settings(model_args, data_args, trainer.args),
        "hub_ids": {"base_model": hub_id, "dataset": None},
        "data": data_facts({name: part for name, part in texts.items() if part is not None}, trainer.label_space),
        "environment": environment(trainer.args),
        "training": facts.facts,
        "config": {name: getattr(model.config, name) for name in ("blend", *EXPERT_PAPERS)},
        **{part: result_rows(metrics, prefix, final) for part, (prefix, metrics) in facts.metrics.items()},
    }


def _chosen_fields(config: XMTCConfig) -> dict[str, Any]:
    """The fields of a family that are not as they are by default."""
    shared = {field.name for field in fields(PreTrainedConfig)} | {"encoder", "num_labels", "blend", *EXPERTS}
    chosen = {}
    for field in fields(config):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(config, field.name)
        if field.name not in shared and value != default:
            chosen[field.name] = value
    return chosen
