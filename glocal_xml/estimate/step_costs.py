"""Memory and products of a training step: encoder, heads, gradients and optimiser together."""

import itertools
import math
from dataclasses import dataclass

from torch import nn

from glocal_xml.modeling import AdaptiveLabelClusters, XMTCConfig
from glocal_xml.training import XMTCTrainingArguments

from .encoder_trace import EncoderTrace, trace_encoder
from .head_costs import HeadCost, LossShape, head_cost
from .planned_model import PlannedModel, all_heads, optimizer_bytes, optimizer_of
from .workload import Workload

# Names, index and counts of the label space, measured on half a million short names.
_BYTES_OF_A_LABEL = 270
# Token ids and two masks in the Arrow file, whose pages count once they were read.
_BYTES_OF_A_TOKEN = 6


@dataclass(frozen=True)
class MemoryEstimate:
    """
    Bytes of each part when a training step needs most.

    Args:
        process: Python with its packages.
        data: Tokens and labels of the texts, and the names of the labels.
        weights: Parameters and buffers.
        optimizer: What the optimiser keeps, for every row of a label table.
        gradients: Dense gradients, of which label tables have those of a whole table.
        activations: What the encoder keeps for the backward pass.
        heads: What the heads need beside these.
    """

    process: int
    data: int
    weights: int
    optimizer: int
    gradients: int
    activations: int
    heads: int

    @property
    def peak(self) -> int:
        return sum(vars(self).values())


@dataclass(frozen=True)
class StepCosts:
    """
    A training step of a configuration.

    Args:
        planned: The model.
        texts: Texts of a batch.
        tokens: Tokens that a text of an average batch is padded to.
        parameters: Number of parameters by part.
        memory: Bytes by part.
        average: The trace of a batch of average length.
        heads: Cost of each head for such a batch.
        shapes: What each of them goes over.
        dense_parameters: Parameters that every step updates.
        sparse_numbers: Numbers in the rows of label tables that a step updates.
        sparse_share: Share of the rows of these tables that an epoch brings into play.
    """

    planned: PlannedModel
    texts: int
    tokens: int
    parameters: dict[str, int]
    memory: MemoryEstimate
    average: EncoderTrace
    heads: dict[str, HeadCost]
    shapes: dict[str, LossShape]
    dense_parameters: int
    sparse_numbers: float
    sparse_share: float | None


def step_costs(planned: PlannedModel, workload: Workload, args: XMTCTrainingArguments, process: int) -> StepCosts:
    """
    Memory of the largest batch, and products of an average one.

    Args:
        planned: The model.
        workload: Data and batches.
        args: Training arguments.
        process: Bytes of a process that has only imported the packages.
    """
    texts = min(args.per_device_train_batch_size, workload.num_texts)
    padded = math.ceil(workload.padded_length(texts, args.train_sampling_strategy == "group_by_length"))
    average = trace_encoder(planned, texts, padded, workload.token_types)
    shapes = _shapes(planned, workload, texts, padded)
    dense, sparse = _trained(planned, average)
    return StepCosts(
        planned=planned,
        texts=texts,
        tokens=padded,
        parameters=planned.parameters(),
        memory=step_memory(planned, workload, args, process),
        average=average,
        heads=_all_costs(planned, shapes),
        shapes=shapes,
        dense_parameters=sum(p.numel() for p in dense),
        sparse_numbers=_numbers_in_play(planned, texts),
        sparse_share=_drawn_share(planned.config, -1, workload.num_texts) if sparse else None,
    )


def step_memory(
    planned: PlannedModel, workload: Workload, args: XMTCTrainingArguments, process: int
) -> MemoryEstimate:
    """Memory of the largest batch, by part; arguments as those of [`step_costs`]."""
    texts = min(args.per_device_train_batch_size, workload.num_texts)
    largest = trace_encoder(planned, texts, workload.longest, workload.token_types)
    dense, sparse = _trained(planned, largest)
    optimizer_class, _ = optimizer_of(args, planned.model)
    heads = _all_costs(planned, _shapes(planned, workload, texts, workload.longest, worst=True))
    gradients = dense
    if args.gradient_accumulation_steps > 1:
        # Those of earlier batches are there already when a loss makes the next ones.
        tables = {id(p) for p in planned.label_tables().values()}
        gradients = dense + [p for p in dense if id(p) in tables]
    tokens = workload.num_texts * workload.mean_length
    return MemoryEstimate(
        process=process,
        data=int(_BYTES_OF_A_TOKEN * tokens + _BYTES_OF_A_LABEL * workload.num_labels),
        weights=planned.weight_bytes(),
        optimizer=optimizer_bytes(optimizer_class, dense, False) + optimizer_bytes(optimizer_class, sparse, True),
        gradients=sum(p.nbytes for p in gradients),
        activations=largest.peak_bytes,
        heads=int(sum(cost.bytes for cost in heads.values())),
    )


def _trained(planned: PlannedModel, trace: EncoderTrace) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with dense and with sparse gradients."""
    sparse = planned.sparse_parameters()
    others = trace.untrained | {id(p) for p in sparse}
    return [p for p in planned.model.parameters() if id(p) not in others], sparse


def _all_costs(planned: PlannedModel, shapes: dict[str, LossShape]) -> dict[str, HeadCost]:
    return {name: head_cost(head, shapes[name]) for name, head in all_heads(planned.model).items()}


def _shapes(
    planned: PlannedModel, workload: Workload, texts: int, tokens: int, worst: bool = False
) -> dict[str, LossShape]:
    """What the loss of each head goes over; at worst, no text is padded, and all go into all tails of clusters."""
    config, real_tokens = planned.config, tokens if worst else workload.mean_length
    *levels, labels = candidates_per_text(config)
    # Heads of the levels come first.
    numbers = dict(itertools.zip_longest(all_heads(planned.model), levels, fillvalue=labels))
    # All nodes are ranked besides their loss; a collaborative loss scores all labels before it.
    twice = bool(levels) or getattr(config, "training_loss", None) == "collaborative"
    shapes = {}
    for name, head in all_heads(planned.model).items():
        visited = _visited(head, workload, worst) if isinstance(head, AdaptiveLabelClusters) else ()
        everything = numbers[name] is None
        shapes[name] = LossShape(texts, tokens, real_tokens, numbers[name], visited, twice=twice and everything)
    return shapes


def candidates_per_text(config: XMTCConfig) -> list[float | None]:
    """Nodes of each level of a label tree, and labels, that a training step scores for a text; None for all."""
    return [None, *(min(config.training_beam, above) * below / above for above, below in _ways_down(config))]


def _ways_down(config: XMTCConfig) -> list[tuple[int, int]]:
    """Nodes of each level of a label tree, with the nodes or labels below them; nothing without a tree."""
    levels = getattr(config, "tree_levels", None) or []
    return list(zip(levels, [*levels[1:], config.num_labels], strict=True)) if levels else []


def _visited(head: AdaptiveLabelClusters, workload: Workload, worst: bool) -> tuple[float, ...]:
    """Share of the texts with a label in each tail, as if labels occurred independently."""
    if worst:
        return (1.0,) * len(head.tails)
    shares = (workload.share_of_labels(run.start, run.stop) for run in head.runs[1:])
    return tuple(1 - math.exp(-workload.labels_per_text * share) for share in shares)


def _numbers_in_play(planned: PlannedModel, texts: int) -> float:
    """Numbers in the rows of sparse tables that one step updates."""
    below = [number for _, number in _ways_down(planned.config)]
    tables = planned.sparse_parameters()
    return sum(p.numel() * _drawn_share(planned.config, below.index(len(p)), texts) for p in tables)


def _drawn_share(config: XMTCConfig, level: int, texts: int) -> float:
    """Share of the nodes of a level that some text goes on from, as if each chose at random."""
    return 1 - (1 - min(1.0, config.training_beam / config.tree_levels[level])) ** texts
