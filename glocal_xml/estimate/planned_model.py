"""What a run deals with: texts and batches, its model without weights, of shapes only, and a step of the encoder."""

import math
import weakref
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedTokenizerBase, Trainer
from transformers.initialization import no_init_weights
from transformers.trainer_pt_utils import LengthGroupedSampler
from transformers.trainer_utils import SaveStrategy

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LabelSpace, LabelTree, tree_level_sizes
from glocal_xml.modeling import FAMILIES, XMTCConfig, XMTCPreTrainedModel
from glocal_xml.modeling.encoder import chosen_layers
from glocal_xml.runs.model import leaves_out_local_branch, recipe_config
from glocal_xml.runs.word_encoder import WORD_ENCODER
from glocal_xml.trained_model import trained_config
from glocal_xml.training import ModelArguments, XMTCTrainingArguments
from glocal_xml.training.optimizer import RowwiseAdamW, for_sparse_tables

_SAMPLED_TEXTS = 2000
_SIMULATED_BATCHES = 200
# glibc takes larger blocks from the system and gives them back; smaller ones leave gaps in its heap, which the next
# step fills only in part. In trials with a small BERT and batches of 4 to 32 texts the heap was 1.2 to 1.45 times as
# large as what lived in it.
_OWN_PAGES = 32 * 2**20
_HEAP_GAPS = 1.33
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
        # Training steps are those of the heads.
        config.lexical = config.memory = config.dense = config.blend = None
        return config
    tree, fields = model_args.label_tree, {}
    if isinstance(tree, str):
        fields["tree_levels"] = LabelTree.load(tree).level_sizes
    elif tree is not None:
        options = {name: value for name, value in tree.items() if name != "features"}
        fields["tree_levels"] = tree_level_sizes(num_labels, **options)
    elif leaves_out_local_branch(model_args, num_labels):
        fields["branches"] = "global"
    return recipe_config(model_args, num_labels, **fields)


def plan_model(config: XMTCConfig, gradient_checkpointing: bool = False) -> XMTCPreTrainedModel:
    """The model of a configuration, of shapes only; refuses models whose training steps cannot be estimated."""
    check_encoder(NO_ENCODER if config.encoder is None else config.encoder.model_type)
    if getattr(config, "negatives", None) == "static":
        raise ValueError(
            "What static `negatives` take is not known here: levels with encoders of their own train in turn. "
            "Estimate with dynamic ones, where all levels share one encoder."
        )
    # Tensors of this mode have shapes and a device, but no memory; torch has no public name for it.
    with FakeTensorMode(), no_init_weights():
        model = FAMILIES[type(config)](config).train()
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


class EncoderTrace(NamedTuple):
    """Products of a step, the most bytes besides weights, what gets dense gradients, and tables with sparse ones."""

    flops: int
    peak_bytes: int
    dense: list[nn.Parameter]
    sparse: list[nn.Parameter]


def trace_encoder(model: XMTCPreTrainedModel, texts: int, tokens: int, token_types: bool = False) -> EncoderTrace:
    """A training step of the encoder of a planned model, as far as heads read it, and of layers before the heads."""
    memory, flops = LiveBytes(model), FlopCounterMode(display=False)
    layers = getattr(model, "layers", None) or {model.last_layer}
    # Not `encode_texts`, whose checks read values back.
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if token_types else []))
    with next(model.parameters()).fake_mode:
        inputs = {name: torch.ones(texts, tokens, dtype=torch.long) for name in names}
        with flops, memory:
            states = chosen_layers(model.encoder, inputs, set(layers))
            if getattr(model.config, "detach_local", False):
                states = {layer: states[layer] for layer in model.document_layers}
            # A pooler, or whatever else stands between the encoder and a head.
            between = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
            documents = [layer(torch.zeros(texts, layer.in_features).requires_grad_()) for layer in between]
            outputs = [*states.values(), *documents]
            del states, documents
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    sparse = [module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse]
    others = {p for p in model.encoder.parameters() if p.grad is None}.union(sparse)
    model.zero_grad()
    dense = [p for p in model.parameters() if p not in others]
    return EncoderTrace(flops.get_total_flops(), memory.peak, dense, sparse)


# torch has no public way to see each operation (`torch.utils._python_dispatch`) and the tensors in its results.
class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is on and still live, and how many these were at most."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.live = self.peak = 0
        self._seen = weakref.WeakSet(x.untyped_storage() for x in (*model.parameters(), *model.buffers()))

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        tensors = [x for x in tree_leaves(result) if isinstance(x, torch.Tensor) and not x.is_sparse]
        for storage in (tensor.untyped_storage() for tensor in tensors):
            if storage not in self._seen:
                self._seen.add(storage)
                size = storage.nbytes() if storage.nbytes() > _OWN_PAGES else int(_HEAP_GAPS * storage.nbytes())
                self._count(size)
                weakref.finalize(storage, self._count, -size)
        return result

    def _count(self, size: int) -> None:
        self.live += size
        self.peak = max(self.peak, self.live)


@dataclass(frozen=True)
class Workload:
    """Data and batches of a run: numbers of labels and of training texts, and what follows."""

    num_labels: int
    num_texts: int
    # Of (a sample of) the training texts in tokens, cut at the longest allowed.
    lengths: np.ndarray
    # The mean over training texts.
    labels_per_text: float
    # Training texts of each label in falling order, where they are known.
    label_counts: np.ndarray | None = None
    # Texts of the validation and of the test part.
    num_evaluated: tuple[int, int] = (0, 0)
    # Whether the tokenizer gives token types, which some encoders have parameters for.
    token_types: bool = False

    @property
    def longest(self) -> int:
        """Tokens of the longest text, to which a batch with it is padded."""
        return int(self.lengths.max())

    def padded_length(self, batch_size: int, grouped: bool) -> float:
        """Mean over batches of the length that their texts are padded to."""
        drawn = np.random.default_rng(0).choice(self.lengths, min(self.num_texts, _SIMULATED_BATCHES * batch_size))
        if grouped:
            drawn = drawn[list(LengthGroupedSampler(batch_size, lengths=drawn.tolist()))]
        return float(np.mean([drawn[i : i + batch_size].max() for i in range(0, len(drawn), batch_size)]))

    def drawn_labels(self, texts: int, num_labels: int) -> np.ndarray:
        """Labels of texts, (texts, labels of a text), drawn by frequency: `num_labels` ids, most frequent first."""
        # By default Zipf's law, which labels of large sets roughly follow.
        counts = 1 / np.arange(1, self.num_labels + 1) if self.label_counts is None else self.label_counts
        size = (texts, max(1, round(self.labels_per_text)))
        drawn = np.random.default_rng(0).choice(self.num_labels, size, p=counts / counts.sum())
        return drawn * num_labels // self.num_labels

    def number_of_steps(self, args: XMTCTrainingArguments) -> int:
        """Optimiser steps of the whole run."""
        if args.max_steps > 0:
            return args.max_steps
        batches = math.ceil(self.num_texts / args.per_device_train_batch_size)
        return math.ceil(math.ceil(batches / args.gradient_accumulation_steps) * args.num_train_epochs)

    def number_of_evaluated(self, args: XMTCTrainingArguments) -> int:
        """Validation texts whenever the run saves and once at the end, and test texts."""
        saves: float = 0
        if args.save_strategy == SaveStrategy.EPOCH:
            saves = math.ceil(args.num_train_epochs)
        elif args.save_strategy == SaveStrategy.STEPS:
            saves = (self.number_of_steps(args) if args.save_steps >= 1 else 1) / args.save_steps
        validation, test = self.num_evaluated
        return validation * (int(saves) + 1) + test


def measured_workload(texts: dict[str, Any], label_space: LabelSpace, tokenizer: PreTrainedTokenizerBase) -> Workload:
    """The workload of texts that were read; lengths are those of a sample."""
    train = texts["train"]
    if hasattr(train, "__len__"):
        order = np.random.default_rng(0).permutation(len(train))[:_SAMPLED_TEXTS]
        train = train.select(np.sort(order))
    sample = islice(train, _SAMPLED_TEXTS)
    tokens = tokenizer([row["text"] for row in sample], truncation=True, max_length=tokenizer.model_max_length)
    counts = np.sort(np.asarray(label_space.counts))[::-1]
    return Workload(
        num_labels=label_space.num_labels,
        num_texts=label_space.num_texts,
        lengths=np.array([len(ids) for ids in tokens["input_ids"]]),
        labels_per_text=float(counts.sum() / label_space.num_texts),
        label_counts=counts,
        num_evaluated=tuple(len(texts[part]) if part in texts else 0 for part in ("validation", "test")),
        token_types="token_type_ids" in tokens,
    )


def described_workload(tokenizer: PreTrainedTokenizerBase, **sizes: Any) -> Workload:
    """The workload of texts that are not at hand, all of them as long as the tokenizer allows."""
    lengths, has_types = np.array([tokenizer.model_max_length]), "token_type_ids" in tokenizer.model_input_names
    return Workload(lengths=lengths, token_types=has_types, **sizes)
