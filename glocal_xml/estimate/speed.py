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
from transformers import AutoModel
from transformers.initialization import no_init_weights

from glocal_xml.modeling import FAMILIES, XMTCConfig
from glocal_xml.modeling.label_candidates import Candidates
from glocal_xml.modeling.label_scorer import LabelScorer
from glocal_xml.training import XMTCTrainingArguments
from glocal_xml.training.gradient_clipping import clip_gradients

from .head_costs import LossShape, head_cost
from .planned_model import optimizer_of
from .step_costs import StepCosts

# Products of one run of a miniature: enough to be measured, little enough not to be waited for.
_FLOPS_OF_A_RUN = 4e9
# More for the encoder: in a trial one or two texts of 128 tokens ran a fifth slower than batches of four to sixteen.
_FLOPS_OF_AN_ENCODER_RUN = 24e9
_RUNS = 5
# Larger than caches, and than the blocks that the allocator keeps: fresh gradients are fresh pages.
_OPTIMIZED_NUMBERS = 10_000_000
_ROW_SIZE = 256
_POSITIVES = 5
# Clusters of labels need some.
_LEAST_LABELS = 64


@dataclass(frozen=True)
class Speeds:
    """
    What was measured.

    Args:
        encoder: Floating-point operations a second of the layers of the encoder.
        below_layers: Seconds for a token in what stands below and above the layers.
        heads: Floating-point operations a second of each head.
        dense: Seconds to make a gradient, clip and update for a number of a dense parameter.
        sparse: The same for a number in a row of a label table that is in play.
    """

    encoder: float
    below_layers: float
    heads: dict[str, float]
    dense: float
    sparse: float


def measure_speeds(costs: StepCosts, args: XMTCTrainingArguments) -> Speeds:
    """Runs miniatures of encoder, heads and optimiser of a step."""
    config = costs.planned.config
    encoder, below_layers = _encoder_speed(config, costs.texts, costs.tokens, args.gradient_checkpointing)
    return Speeds(
        encoder=encoder,
        below_layers=below_layers,
        heads={name: _head_speed(name, costs) for name in costs.heads},
        dense=_dense_seconds(costs, args),
        sparse=_sparse_seconds(costs, args) if costs.planned.sparse_parameters() else 0.0,
    )


def _encoder_speed(config: XMTCConfig, texts: int, tokens: int, checkpointing: bool) -> tuple[float, float]:
    """Speed of the layers, from encoders of one and of three of them, and what a token costs besides."""
    shallow, deep = 1, min(3, config.num_hidden_layers)
    models = {depth: _small_encoder(config, depth, checkpointing) for depth in (shallow, deep)}
    counter = FlopCounterMode(display=False)
    with counter:
        _encoder_run(models[deep], 1, tokens)()
    texts = max(1, min(texts, int(_FLOPS_OF_AN_ENCODER_RUN / counter.get_total_flops())))
    flops, runs = {}, {}
    for depth, model in models.items():
        runs[depth] = _encoder_run(model, texts, tokens)
        with FlopCounterMode(display=False) as counter:
            runs[depth]()
        flops[depth] = counter.get_total_flops()
    seconds = dict(zip(runs, interleaved_seconds(list(runs.values())), strict=True))
    # Noise may hide the difference where texts are few and short.
    if seconds[deep] <= 1.2 * seconds[shallow]:
        return flops[deep] / seconds[deep], 0.0
    speed = (flops[deep] - flops[shallow]) / (seconds[deep] - seconds[shallow])
    return speed, max(0.0, seconds[shallow] - flops[shallow] / speed) / (texts * tokens)


def _small_encoder(config: XMTCConfig, layers: int, checkpointing: bool) -> nn.Module:
    small = copy.deepcopy(config.encoder)
    small.num_hidden_layers = layers
    # The gradient of word vectors is counted with all others.
    small.vocab_size = max(1000, (small.pad_token_id or 0) + 1)
    model = AutoModel.from_config(small, attn_implementation=config.encoder._attn_implementation).train()
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
    shape = costs.shapes[name]
    # Random labels lead every text into every tail.
    shape = replace(shape, tokens=math.ceil(shape.tokens), visited=(1.0,) * len(shape.visited))
    head = _small_head(name, costs)
    texts = int(_FLOPS_OF_A_RUN / head_cost(head, replace(shape, texts=1)).flops)
    shape = replace(shape, texts=max(1, min(shape.texts, texts)))
    (seconds,) = interleaved_seconds([_head_run(head, _small_features(costs.average.features[name], shape), shape)])
    return head_cost(head, shape).flops / seconds


def _small_head(name: str, costs: StepCosts) -> LabelScorer:
    """A head as in the model, with weights, over few labels."""
    config, shape = copy.deepcopy(costs.planned.config), costs.shapes[name]
    if shape.candidates is None:
        features = tuple(torch.empty(size, device="meta") for size in costs.average.features[name])
        head = {**costs.planned.level_heads(), **costs.planned.model.branch_heads()}[name]
        labels = 2 * max(1, config.label_chunk_bytes // head.bytes_per_label(features))
    else:
        labels = 8 * math.ceil(shape.candidates)
    config.num_labels = max(min(config.num_labels, labels), _LEAST_LABELS)
    if getattr(config, "tree_levels", None):
        config.tree_levels = [min(size, config.num_labels) for size in config.tree_levels]
    family = next(model for kind, model in FAMILIES.items() if kind.model_type == config.model_type)
    with torch.device("meta"), no_init_weights():
        model = family(config)
    levels = model.level_heads() if getattr(config, "tree_levels", None) else {}
    head = {**levels, **model.branch_heads()}[name].to_empty(device="cpu")
    for parameter in head.parameters():
        nn.init.normal_(parameter, std=0.02)
    for buffer in head.buffers():
        buffer.zero_()
    if hasattr(head, "set_label_counts"):
        head.set_label_counts(torch.arange(config.num_labels, 0, -1))
    return head


def _small_features(sizes: tuple[torch.Size, ...], shape: LossShape) -> tuple[torch.Tensor, ...]:
    """Random features for the texts of a miniature: one vector each, or keys, values and the mask of the tokens."""
    if len(sizes) == 1:
        return (torch.randn(shape.texts, sizes[0][1]).requires_grad_(),)
    keys, values = (torch.randn(shape.texts, shape.tokens, size[2]).requires_grad_() for size in sizes[:2])
    return keys, values, torch.ones(shape.texts, shape.tokens, dtype=torch.bool)


def _head_run(head: LabelScorer, features: tuple[torch.Tensor, ...], shape: LossShape) -> Callable[[], None]:
    if shape.candidates is None:
        labels = torch.randint(head.num_labels, (shape.texts, _POSITIVES))

        def run() -> None:
            head.zero_grad()
            head.loss(features, labels).backward()
            if shape.first_level:
                with torch.no_grad():
                    head.logits(features, slice(0, head.num_labels)).topk(1)

        return run
    chosen = min(head.num_labels, math.ceil(shape.candidates))
    ids = torch.cat([torch.randperm(head.num_labels)[:chosen] for _ in range(shape.texts)])
    candidates = Candidates(ids, torch.full((shape.texts,), chosen))

    def run() -> None:
        head.zero_grad()
        nn.functional.softplus(head.candidate_logits(features, candidates)).sum().backward()

    return run


def _dense_seconds(costs: StepCosts, args: XMTCTrainingArguments) -> float:
    parameter = nn.Parameter(torch.zeros(_OPTIMIZED_NUMBERS))
    optimizer_class, options = optimizer_of(args, costs.planned.model)
    optimizer = optimizer_class([parameter], **options)

    def run() -> None:
        parameter.grad = torch.full_like(parameter, 1e-3)
        clip_gradients([parameter], args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return interleaved_seconds([run])[0] / parameter.numel()


def _sparse_seconds(costs: StepCosts, args: XMTCTrainingArguments) -> float:
    rows = _OPTIMIZED_NUMBERS // _ROW_SIZE // 4
    table = nn.Embedding(2 * rows, _ROW_SIZE, sparse=True)
    optimizer_class, options = optimizer_of(args, costs.planned.model)
    optimizer = optimizer_class(table.parameters(), **options)
    ids, values = torch.randperm(2 * rows)[:rows], torch.full((rows, _ROW_SIZE), 1e-3)

    def run() -> None:
        table.weight.grad = torch.sparse_coo_tensor(
            ids.unsqueeze(0), values, table.weight.shape, check_invariants=False
        )
        clip_gradients(table.parameters(), args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return interleaved_seconds([run])[0] / values.numel()


def interleaved_seconds(runs: list[Callable[[], None]]) -> list[float]:
    """Median seconds of each, run in turns after a first run that is not counted."""
    seconds: list[list[float]] = [[] for _ in runs]
    for run in runs:
        run()
    for _ in range(_RUNS):
        for run, measured in zip(runs, seconds, strict=True):
            started = time.perf_counter()
            run()
            measured.append(time.perf_counter() - started)
    return [statistics.median(measured) for measured in seconds]
