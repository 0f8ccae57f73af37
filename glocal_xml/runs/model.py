"""The model of a run: a trained one, a new one around an encoder, or experts alone; and what must fit it."""

import logging
import re
import shutil
from itertools import takewhile
from typing import Any

import torch
import torch.distributed
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LabelSpace, LabelTree
from glocal_xml.loading.start_model import find_pooling, make_config
from glocal_xml.modeling import (
    FAMILIES,
    TextExpertsConfig,
    TextExpertsForMultiLabel,
    XMTCConfig,
    XMTCPreTrainedModel,
)
from glocal_xml.modeling.encoder import position_limit
from glocal_xml.trained_model import check_vocabulary, load_trained_model, plain_model_errors
from glocal_xml.training.arguments import ModelArguments, XMTCTrainingArguments, check_processes
from glocal_xml.training.frozen_encoder import reads_one_embedding

from .prepare import encoder_path, encoder_tokenizer, follow_validation, settle_metrics
from .run_data import RunData
from .split_labels import load_split_model
from .tree import tree_of_run
from .word_encoder import WORD_ENCODER, make_word_encoder

# Rates of a pretrained encoder and of tables of labels (benchmarks/branches.py).
_ENCODER_RATE, _TABLE_RATE = 2e-4, 5e-3
_LABEL_TABLES = ".*label_(embeddings|outputs)"
# With more labels than that, attention of labels over the words of a text takes longer than a small encoder.
_MOST_LOCAL = 10_000

logger = logging.getLogger(__name__)


def model_of_run(
    model_args: ModelArguments, args: XMTCTrainingArguments, data: RunData, *, resume: bool = False
) -> XMTCPreTrainedModel:
    """
    The model that a run trains: whole in every process, or with its labels split over them. A label tree is made of
    the texts and kept in the folder of the run: a run that resumes from a checkpoint has it already.
    """
    label_space, tokenizer = data.label_space, data.tokenizer
    if args.label_shards == 1:
        tree = tree_of_run(model_args, args, data.texts, label_space, resume=resume)
        return build_model(model_args, label_space, tokenizer, tree)
    if model_args.label_tree is not None:
        raise ValueError(
            "`label_tree` makes label tables with sparse gradients, and `label_shards` splits dense ones over "
            "processes: they exclude each other. Leave one of them out; with a tree, a step needs little memory "
            "beyond the table itself."
        )
    # Next to the states to resume from, and deleted with them.
    folder, is_first = f"{args.output_dir}/state.start", torch.distributed.get_rank() == 0
    # Built whole by one process: only then it is the same for any number of parts. The others read theirs.
    if is_first:
        build_model(model_args, label_space, tokenizer).save_pretrained(folder)
    torch.distributed.barrier()
    model = load_split_model(folder, args.label_shards)
    torch.distributed.barrier()
    if is_first:
        shutil.rmtree(folder)
    return model


def build_model(
    model_args: ModelArguments,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    tree: LabelTree | None = None,
) -> XMTCPreTrainedModel:
    """
    A trained model, or a new one around a pretrained encoder or that of the words of the tokenizer; with a label tree
    where there is one. Given a trained model without an encoder and an encoder, the new one takes over its experts.
    """
    trained, encoder = None, model_args.encoder
    if model_args.model is not None:
        if model_args.model_config:
            raise ValueError("`model_config` is for new models; a trained model keeps the configuration it has.")
        trained = load_trained_model(model_args.model, tokenizer, dtype=torch.float32)
        if encoder is None:
            # Its own and those of the texts it is trained further on.
            trained.set_label_counts(label_space.counts)
            return trained
        if not isinstance(trained, TextExpertsForMultiLabel):
            raise ValueError(
                f"{model_args.model} has an encoder already: leave out `--encoder` to train it further, or `--model` "
                "to start anew."
            )
        if encoder_tokenizer(encoder).get_vocab() != tokenizer.get_vocab():
            raise ValueError(
                f"The experts of {model_args.model} count other tokens than {encoder} has: start anew with "
                "`--encoder`, without `--model`."
            )
    elif encoder == NO_ENCODER:
        config = make_config(TextExpertsConfig, model_args.model_config, num_labels=label_space.num_labels)
        model = TextExpertsForMultiLabel(config)
        model.set_label_names(label_space.names)
        return model
    words, fields = encoder == WORD_ENCODER, dict(model_args.model_config)
    if "tree_levels" in fields:
        raise ValueError("`tree_levels` follows from the label tree: pass `--label_tree` instead.")
    if tree is not None:
        fields["tree_levels"] = tree.level_sizes
    if leaves_out_local_branch(model_args, label_space.num_labels):
        fields["branches"] = "global"
    try:
        model = FAMILIES[config_class(model_args.model_type)].from_encoder(
            make_word_encoder(tokenizer, model_args.encoder_options) if words else encoder_path(encoder),
            label_names=label_space.names,
            encoder_options=model_args.encoder_options if words else encoder_options(model_args),
            **fields,
        )
    # What damaged files make of it.
    except (SafetensorError, StrictDataclassError, RuntimeError) as error:
        raise ValueError(f"{encoder} cannot be loaded: {error}") from error
    check_vocabulary(model, tokenizer)
    if tree is not None:
        model.set_label_tree(tree.child_starts, tree.label_order)
    model.set_label_counts(label_space.counts)
    if model.config.label_bias:
        model.start_label_bias(label_space.log_odds())
    for name, expert in {} if trained is None else trained.text_experts().items():
        model.set_expert(name, expert, getattr(trained.config, name))
    return model


def may_freeze(model_args: ModelArguments, args: XMTCTrainingArguments) -> bool:
    """
    Whether a time plan may leave the encoder of a new model as it is: where that is a sentence encoder, whose
    embeddings are of use as they are, and nothing asks for heads that read more than these.
    """
    if args.frozen_encoder is not None:
        return args.frozen_encoder
    asked = {"branches", "document_layers"} & set(model_args.model_config) or model_args.label_tree is not None
    if asked or model_args.model_type != "glocal_xml" or model_args.model or model_args.encoder == WORD_ENCODER:
        return False
    return args.world_size == 1 and find_pooling(encoder_path(model_args.encoder), {}) is not None


def check_frozen_encoder(model: XMTCPreTrainedModel, args: XMTCTrainingArguments) -> None:
    """Refuses to train a head on embeddings where that cannot be done."""
    if not reads_one_embedding(model):
        raise ValueError(
            "`frozen_encoder` is for models of the family glocal_xml with the global branch alone, one document layer "
            f"and no label tree; this one, {model.config.model_type}, has the branches "
            f"{', '.join(model.branch_heads())}: leave it out, or freeze layers by `frozen_layers`."
        )
    if args.world_size > 1:
        raise ValueError(f"`frozen_encoder` trains in one process, got {args.world_size}: start one, or leave it out.")


def recipe_config(model_args: ModelArguments, num_labels: int, **fields: Any) -> XMTCConfig:
    """The configuration of a new model around a pretrained encoder; no weights are read."""
    encoder = encoder_config(model_args)
    return make_config(
        config_class(model_args.model_type),
        model_args.model_config,
        encoder=encoder.to_dict(),
        attn_implementation=encoder._attn_implementation,
        num_labels=num_labels,
        **fields,
    )


def encoder_config(model_args: ModelArguments) -> PreTrainedConfig:
    """The configuration of the encoder that a run takes."""
    options = encoder_options(model_args)
    with plain_model_errors(model_args.encoder):
        return AutoConfig.from_pretrained(encoder_path(model_args.encoder), **options)


def encoder_options(model_args: ModelArguments) -> dict[str, Any]:
    """How a run loads its pretrained encoder: without its dropout, unless that is asked for."""
    options = model_args.encoder_options
    if model_args.encoder_dropout:
        return options
    hub = {name: options[name] for name in ("revision", "token", "trust_remote_code") if name in options}
    with plain_model_errors(model_args.encoder):
        fields = AutoConfig.from_pretrained(encoder_path(model_args.encoder), **hub).to_dict()
    # Whatever it is called.
    off = {name: 0.0 for name, value in fields.items() if "drop" in name and isinstance(value, float)}
    return {**off, **options}


def config_class(model_type: str) -> type[XMTCConfig]:
    """The configuration of a family."""
    return next(config for config in FAMILIES if config.model_type == model_type)


def leaves_out_local_branch(model_args: ModelArguments, num_labels: int) -> bool:
    """Whether a new GlocalXML has its global branch alone, since nothing else is asked for and labels are many."""
    leaves = (
        model_args.model_type == "glocal_xml"
        and num_labels > _MOST_LOCAL
        and "lexical" in model_args.experts
        and model_args.label_tree is None
        and "branches" not in model_args.model_config
    )
    if leaves:
        logger.info(
            "no local branch: with %d labels it would take more time than the encoder, and the lexical expert reads "
            'words too; `--model_config \'{"branches": "both"}\'` for both',
            num_labels,
        )
    return leaves


def default_rates(args: XMTCTrainingArguments, model: XMTCPreTrainedModel) -> None:
    """Learning rates of a pretrained encoder and of label tables, where none are given; the best of those measured."""
    is_pretrained = model.encoder.config.model_type != WORD_ENCODER
    if args.module_learning_rates or not is_pretrained or args.learning_rate != type(args).learning_rate:
        return
    args.module_learning_rates = {"encoder": _ENCODER_RATE}
    # Not every family has tables of these names.
    heads = [name for name, _ in model.named_parameters() if not name.startswith("encoder")]
    if any(re.match(_LABEL_TABLES, name) for name in heads):
        args.module_learning_rates[_LABEL_TABLES] = _TABLE_RATE


def prepare_training(
    args: XMTCTrainingArguments,
    model: XMTCPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    label_space: LabelSpace,
    *,
    has_validation: bool,
) -> None:
    """
    Completes in `args` what is left open (learning rates, ranks of metrics, when to evaluate and what is best),
    freezes layers, and refuses what does not fit the model. With validation texts a run evaluates whenever it saves.
    """
    check_length(model, tokenizer.model_max_length)
    check_processes(model.config, args.world_size)
    if warning := late_loss(model.config, args):
        logger.warning(warning)
    default_rates(args, model)
    freeze_layers(model.encoder, args.frozen_layers)
    follow_validation(args, has_validation)
    settle_metrics(args, model, label_space)


def freeze_layers(encoder: PreTrainedModel, number: int) -> None:
    """Keeps the lowest layers of an encoder, and what comes before them, as they are."""
    depth = encoder.config.num_hidden_layers
    lists = [part for part in encoder.modules() if isinstance(part, nn.ModuleList) and len(part) == depth]
    if number > depth or (number and len(lists) != 1):
        limit = f"0 to {depth}, its number of layers" if len(lists) == 1 else "0, since its layers are not a list"
        raise ValueError(f"`frozen_layers` of this encoder must be {limit}, got {number}.")
    if number:
        trained = {parameter for layer in lists[0][number:] for parameter in layer.parameters()}
        for parameter in takewhile(lambda parameter: parameter not in trained, encoder.parameters()):
            parameter.requires_grad_(False)


def late_loss(config: XMTCConfig, args: XMTCTrainingArguments) -> str | None:
    """What to say of a loss with a term that would never set in; nothing where all do."""
    if args.max_steps > 0 or config.whole_loss_epoch < args.num_train_epochs:
        return None
    return (
        f"The last part of the loss sets in at epoch {config.whole_loss_epoch}, counted from 0, and so never in "
        f"{args.num_train_epochs:g} epochs: lower `diversity_start_epoch` or `level_epochs` in `model_config`, or "
        "train longer."
    )


def check_length(model: XMTCPreTrainedModel, max_length: int) -> None:
    """Refuses texts longer than the encoder, before one comes by hours later."""
    limit = None if model.encoder is None else position_limit(model.encoder)
    if limit is not None and max_length > limit:
        raise ValueError(f"`max_length` is {max_length}, but the encoder has positions for {limit} tokens; pass less.")
