"""The model of a run without its weights: every parameter has a shape, and none takes memory."""

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, Trainer
from transformers.initialization import no_init_weights

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LabelTree, tree_level_sizes
from glocal_xml.modeling import FAMILIES, XMTCConfig, XMTCPreTrainedModel
from glocal_xml.modeling.start_model import make_config
from glocal_xml.runs.prepare import encoder_path
from glocal_xml.runs.word_encoder import WORD_ENCODER
from glocal_xml.trained_model import plain_model_errors, trained_config
from glocal_xml.training import ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rowwise_adamw import RowwiseAdamW, for_sparse_tables

# Numbers that each optimiser keeps for a parameter.
MOMENTS = {torch.optim.AdamW: 2, RowwiseAdamW: 2, torch.optim.SGD: 0}
_REFUSED_ENCODERS = {
    NO_ENCODER: "Experts alone train no encoder: they are fitted in seconds to minutes, and there is nothing to "
    "estimate. Give an encoder, such as minilm.",
    # Packed sequences cannot be run on tensors without content.
    WORD_ENCODER: f"What {WORD_ENCODER} takes is not known here: estimate with another encoder, such as minilm.",
}


def check_encoder(model_type: str | None) -> None:
    """Refuses encoders whose training steps cannot be estimated."""
    if model_type in _REFUSED_ENCODERS:
        raise ValueError(_REFUSED_ENCODERS[model_type])


def planned_config(model_args: ModelArguments, num_labels: int) -> XMTCConfig:
    """The configuration that a run gives its model; no weights are read."""
    if model_args.model is not None:
        config = trained_config(model_args.model)
        check_encoder(NO_ENCODER if config.encoder is None else None)
        # Training steps are those of the heads.
        config.lexical = config.memory = config.blend = None
        return config
    with plain_model_errors(model_args.encoder):
        encoder = AutoConfig.from_pretrained(encoder_path(model_args.encoder), **model_args.encoder_options)
    return make_config(
        next(config for config in FAMILIES if config.model_type == model_args.model_type),
        model_args.model_config,
        encoder=encoder.to_dict(),
        attn_implementation=encoder._attn_implementation,
        num_labels=num_labels,
        **_planned_tree(model_args.label_tree, num_labels),
    )


def _planned_tree(label_tree: dict[str, Any] | str | None, num_labels: int) -> dict[str, list[int]]:
    """The levels of the label tree that is asked for, as a field of the configuration."""
    if label_tree is None:
        return {}
    if isinstance(label_tree, str):
        return {"tree_levels": LabelTree.load(label_tree).level_sizes}
    options = {name: value for name, value in label_tree.items() if name != "features"}
    return {"tree_levels": tree_level_sizes(num_labels, **options)}


def new_model(config: XMTCConfig) -> XMTCPreTrainedModel:
    """A model of the family that a configuration is of."""
    return next(family for kind, family in FAMILIES.items() if kind.model_type == config.model_type)(config)


def plan_model(config: XMTCConfig, gradient_checkpointing: bool = False) -> XMTCPreTrainedModel:
    """The model of a configuration, of shapes only; refuses models whose training steps cannot be estimated."""
    check_encoder(config.encoder.model_type)
    if getattr(config, "negatives", None) == "static":
        raise ValueError(
            "What static `negatives` take is not known here: levels with encoders of their own train in turn. "
            "Estimate with dynamic ones, where all levels share one encoder."
        )
    # Tensors of this mode have shapes and a device, but no memory; torch has no public name for it.
    with FakeTensorMode(), no_init_weights():
        model = new_model(config).train()
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return model


def optimizer_of(args: XMTCTrainingArguments, model: nn.Module) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimiser of a run and its options."""
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer_class = for_sparse_tables(optimizer_class, model)
    if optimizer_class not in MOMENTS:
        raise ValueError(
            f"What {optimizer_class.__name__} keeps in memory is not known here: estimate with `--optim adamw_torch` "
            "or `--optim sgd`."
        )
    return optimizer_class, options
