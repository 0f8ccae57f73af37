"""How fast this machine is: parts of the very model, in miniature, are run for a moment."""

import copy
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers.initialization import no_init_weights

from glocal_xml.modeling import XMTCConfig
from glocal_xml.modeling.encoder import new_encoder
from glocal_xml.training import XMTCTrainingArguments
from glocal_xml.training.gradient_clipping import clip_gradients

from .head_costs import LossShape, head_cost, head_inputs
from .planned_model import all_heads, family_of, optimizer_of
from .step_costs import StepCosts

# Products of one run of a miniature: enough to be measured, little enough not to be waited for.
_FLOPS_OF_A_RUN = 4e9
# More for the encoder: in a trial one or two texts of 128 tokens ran a fifth slower than batches of four to sixteen.
_FLOPS_OF_AN_ENCODER_RUN = 24e9
_RUNS = 5
_LAYERS = 3
# Labels of the miniature of a head that scores all: several chunks for a linear head, and one for attention.
_LABELS = 4096
_POSITIVES = 5
# Larger than caches, and than the blocks that the allocator keeps: fresh gradients are fresh pages.
_OPTIMIZED_NUMBERS = 10_000_000
_ROW_SIZE = 256


@dataclass(frozen=True)
class Speeds:
    """
    What was measured.

    Args:
        encoder: Floating-point operations a second of the encoder.
        heads: Floating-point operations a second of each head.
        dense: Seconds to make a gradient, clip and update for a number of a dense parameter.
        sparse: The same for a number in a row of a label table that is in play.
    """

    encoder: float
    heads: dict[str, float]
    dense: float
    sparse: float


def measure_speeds(costs: StepCosts, args: XMTCTrainingArguments) -> Speeds:
    """Runs miniatures of encoder, heads and optimiser of a step."""
    return Speeds(
        encoder=_encoder_speed(costs, args.gradient_checkpointing),
        heads={name: _head_speed(name, costs) for name in costs.heads},
        dense=_optimizer_seconds(costs, args, sparse=False),
        sparse=_optimizer_seconds(costs, args, sparse=True) if costs.planned.sparse_parameters() else 0.0,
    )


def _encoder_speed(costs: StepCosts, checkpointing: bool) -> float:
    """Speed of an encoder of few layers, for as many texts as do not take long."""
    model = _small_encoder(costs.planned.config, checkpointing)
    with FlopCounterMode(display=False) as counter:
        _encoder_run(model, 1, costs.tokens)()
    flops = counter.get_total_flops()
    texts = max(1, min(costs.texts, int(_FLOPS_OF_AN_ENCODER_RUN / flops)))
    return texts * flops / median_seconds(_encoder_run(model, texts, costs.tokens))


def _small_encoder(config: XMTCConfig, checkpointing: bool) -> nn.Module:
    small = copy.deepcopy(config.encoder)
    small.num_hidden_layers = min(_LAYERS, config.num_hidden_layers)
    # The gradient of word vectors is counted with all others.
    small.vocab_size = max(1000, (small.pad_token_id or 0) + 1)
    model = new_encoder(small, attn_implementation=config.encoder._attn_implementation).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model


def _encoder_run(model: nn.Module, texts: int, tokens: int) -> Callable[[], None]:
    inputs = {"input_ids": torch.randint(1000, (texts, tokens)), "attention_mask": torch.ones(texts, tokens).long()}
    if model.config.model_type == "xlnet":
        inputs["use_mems"] = False

    def run() -> None:
        model.zero_grad()
        model(**inputs).last_hidden_state.sum().backward()

    return run


def _head_speed(name: str, costs: StepCosts) -> float:
    """Speed of the loss of one head over few labels, for as many texts as do not take long."""
    head, shape = _small_head(name, costs), costs.shapes[name]
    # Nothing is padded, and random labels lead every text into every tail.
    shape = replace(shape, real_tokens=shape.tokens, visited=(1.0,) * len(shape.visited))
    texts = int(_FLOPS_OF_A_RUN / head_cost(head, replace(shape, texts=1)).flops)
    shape = replace(shape, texts=max(1, min(shape.texts, texts)))
    return head_cost(head, shape).flops / median_seconds(_head_run(head, shape))


def _small_head(name: str, costs: StepCosts) -> nn.Module:
    """A head as in the model, with weights, over few labels."""
    config, candidates = copy.deepcopy(costs.planned.config), costs.shapes[name].candidates
    config.num_labels = min(config.num_labels, _LABELS if candidates is None else 8 * math.ceil(candidates))
    if getattr(config, "tree_levels", None):
        config.tree_levels = [min(size, config.num_labels) for size in config.tree_levels]
    with torch.device("meta"), no_init_weights():
        head = all_heads(family_of(config)(config))[name]
    head.to_empty(device="cpu")
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.02)
    for buffer in head.buffers():
        buffer.zero_()
    if hasattr(head, "set_label_counts"):
        head.set_label_counts(torch.arange(config.num_labels, 0, -1))
    return head


def _head_run(head: nn.Module, shape: LossShape) -> Callable[[], None]:
    inputs = head_inputs(head, shape.texts, shape.tokens)
    number = head(*inputs).num_labels
    chosen = min(number, _POSITIVES if shape.candidates is None else math.ceil(shape.candidates))
    labels = torch.stack([torch.randperm(number)[:chosen] for _ in range(shape.texts)])

    def run() -> None:
        head.zero_grad()
        scores = head(*inputs)
        loss = scores.loss if shape.candidates is None else scores.chosen
        loss(labels).sum().backward()
        if shape.twice:
            with torch.no_grad():
                scores.all()

    return run


def _optimizer_seconds(costs: StepCosts, args: XMTCTrainingArguments, sparse: bool) -> float:
    """Seconds for a number of a gradient, which holds every other row of a table where it is sparse."""
    rows = _OPTIMIZED_NUMBERS // _ROW_SIZE // (4 if sparse else 1)
    parameter = nn.Parameter(torch.zeros(2 * rows if sparse else rows, _ROW_SIZE))
    optimizer_class, options = optimizer_of(args, costs.planned.model)
    optimizer = optimizer_class([parameter], **options)
    ids = torch.randperm(len(parameter))[:rows].unsqueeze(0)

    def run() -> None:
        gradient = torch.full((rows, _ROW_SIZE), 1e-3)
        if sparse:
            gradient = torch.sparse_coo_tensor(ids, gradient, parameter.shape, check_invariants=False)
        parameter.grad = gradient
        clip_gradients([parameter], args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return median_seconds(run) / (rows * _ROW_SIZE)


def median_seconds(run: Callable[[], None]) -> float:
    """Median of several runs, after a first one that is not counted."""
    seconds = []
    for _ in range(_RUNS + 1):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds[1:])
