"""The model of a run without its weights: every parameter has a shape, and none takes memory."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AutoConfig, Trainer
from transformers.initialization import no_init_weights

from glocal_xml.data import LabelTree, tree_level_sizes
from glocal_xml.loading.start_model import make_config
from glocal_xml.modeling import FAMILIES, XMTCConfig, XMTCPreTrainedModel
from glocal_xml.trained_model import plain_model_errors, trained_config
from glocal_xml.training import ModelArguments, XMTCTrainingArguments
from glocal_xml.training.prepare import NO_ENCODER, encoder_path
from glocal_xml.training.rowwise_adamw import RowwiseAdamW, for_sparse_tables
from glocal_xml.training.word_encoder import WORD_ENCODER

# Numbers that each optimiser keeps for a parameter.
_MOMENTS = {torch.optim.AdamW: 2, RowwiseAdamW: 2, torch.optim.SGD: 0}


@dataclass
class PlannedModel:
    """A model whose tensors have shapes only: what is computed with it within `mode` takes no memory."""

    model: XMTCPreTrainedModel
    mode: FakeTensorMode

    @property
    def config(self) -> XMTCConfig:
        return self.model.config

    def label_tables(self) -> dict[str, nn.Parameter]:
        """Embeddings, output rows and biases of labels and of the nodes of a tree."""
        tables = ("label_embeddings", "label_outputs")
        return {name: p for name, p in self.model.named_parameters() if any(table in name for table in tables)}

    def parameters(self) -> dict[str, int]:
        """Number of parameters of the encoder, of the label tables and of all the rest."""
        counts, tables = {"encoder": 0, "label tables": 0, "rest of the heads": 0}, self.label_tables()
        for name, parameter in self.model.named_parameters():
            rest = "encoder" if name.startswith(("encoder.", "level_encoders.")) else "rest of the heads"
            counts["label tables" if name in tables else rest] += parameter.numel()
        return counts

    def weight_bytes(self) -> int:
        """Parameters and buffers."""
        return sum(tensor.nbytes for tensor in (*self.model.parameters(), *self.model.buffers()))

    def sparse_parameters(self) -> list[nn.Parameter]:
        """Tables of which a step touches the rows of candidates alone."""
        modules = self.model.modules()
        return [module.weight for module in modules if isinstance(module, nn.Embedding) and module.sparse]


def all_heads(model: XMTCPreTrainedModel) -> dict[str, nn.Module]:
    """The heads over the nodes of a label tree from the top, where there is one, and those of the branches."""
    levels = model.level_heads() if getattr(model.config, "tree_levels", None) else {}
    return {**levels, **model.branch_heads()}


def check_known(config: XMTCConfig) -> None:
    """Refuses what a step of is not known."""
    check_encoder(config.encoder.model_type)
    if getattr(config, "negatives", None) == "static":
        raise ValueError(
            "What static `negatives` take is not known here: levels with encoders of their own train in turn. "
            "Estimate with dynamic ones, of which all levels share one encoder."
        )


def check_encoder(model_type: str | None) -> None:
    """Refuses the word encoder, whose packed sequences cannot be gone through on tensors without content, and none."""
    if model_type == NO_ENCODER:
        raise ValueError(
            "Experts alone train no encoder: they are fitted in seconds to minutes, and there is nothing to estimate. "
            "Give an encoder, such as minilm."
        )
    if model_type == WORD_ENCODER:
        raise ValueError(
            f"What {WORD_ENCODER} takes is not known here: estimate with another encoder, such as minilm."
        )


def planned_config(model_args: ModelArguments, num_labels: int) -> XMTCConfig:
    """The configuration that a run gives its model; no weights are read."""
    if model_args.model is not None:
        config = trained_config(model_args.model)
        if config.encoder is None:
            check_encoder(NO_ENCODER)
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
        **planned_tree(model_args.label_tree, num_labels),
    )


def planned_tree(label_tree: dict[str, Any] | str | None, num_labels: int) -> dict[str, list[int]]:
    """The levels of the label tree that is asked for, as a field of the configuration."""
    if label_tree is None:
        return {}
    if isinstance(label_tree, str):
        return {"tree_levels": LabelTree.load(label_tree).level_sizes}
    options = {name: value for name, value in label_tree.items() if name != "features"}
    return {"tree_levels": tree_level_sizes(num_labels, **options)}


def family_of(config: XMTCConfig) -> type[XMTCPreTrainedModel]:
    """The family that a configuration is of."""
    return next(model for kind, model in FAMILIES.items() if kind.model_type == config.model_type)


def plan_model(config: XMTCConfig, gradient_checkpointing: bool = False) -> PlannedModel:
    """The model of a configuration, without weights."""
    # Tensors of this mode have shapes and a device, but no memory; torch has no public name for it.
    mode = FakeTensorMode()
    with mode, no_init_weights():
        model = family_of(config)(config).train()
    if gradient_checkpointing:
        model.gradient_checkpointing_enable()
    return PlannedModel(model, mode)


def optimizer_of(args: XMTCTrainingArguments, model: nn.Module) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """The optimiser of a run and its options."""
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(args)
    optimizer_class = for_sparse_tables(optimizer_class, model)
    if optimizer_class not in _MOMENTS:
        raise ValueError(
            f"What {optimizer_class.__name__} keeps in memory is not known here: estimate with `--optim adamw_torch` "
            "or `--optim sgd`."
        )
    return optimizer_class, options


def optimizer_bytes(optimizer_class: type[torch.optim.Optimizer], parameters: list[nn.Parameter], sparse: bool) -> int:
    """
    What the optimiser keeps for parameters that have gradients: its moments and the number of steps, which sparse
    tables have for every row. Rows that were never in play count too: their zeros take memory as others do.
    """
    moments = _MOMENTS[optimizer_class]
    if moments == 0:
        return 0
    return sum(moments * p.nbytes + 4 * (len(p) if sparse else 1) for p in parameters)
