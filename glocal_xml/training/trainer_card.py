"""What a trainer knows of the model that it trained: results as those of a run, and the model card."""

from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import ModelCard
from transformers.configuration_utils import PreTrainedConfig

from glocal_xml.hub.model_card import card_name, describe_card, render_model_card
from glocal_xml.hub.papers import EXPERT_PAPERS
from glocal_xml.hub.run_files import RESULTS_FILE, write_card, write_results
from glocal_xml.modeling import XMTCConfig
from glocal_xml.modeling.configuration_base import EXPERTS

from .arguments import DataArguments, ModelArguments
from .rankings import final_name, result_rows
from .run_facts import data_facts, environment, run_settings

if TYPE_CHECKING:
    from .trainer import XMTCTrainer


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
