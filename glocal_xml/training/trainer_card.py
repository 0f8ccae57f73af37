"""What a trainer knows of the model that it trained, in the form of the results of a run."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers.configuration_utils import PreTrainedConfig

from glocal_xml.hub.papers import EXPERT_PAPERS
from glocal_xml.modeling import XMTCConfig

from .arguments import DataArguments, ModelArguments
from .rankings import final_name, result_rows
from .run_facts import data_facts, environment, run_settings

if TYPE_CHECKING:
    from .trainer import XMTCTrainer


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
    shared = {field.name for field in fields(PreTrainedConfig)} | {
        "encoder",
        "num_labels",
        "lexical",
        "memory",
        "dense",
        "blend",
    }
    chosen = {}
    for field in fields(config):
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        value = getattr(config, field.name)
        if field.name not in shared and value != default:
            chosen[field.name] = value
    return chosen
