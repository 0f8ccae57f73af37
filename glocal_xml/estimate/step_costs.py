"""Memory and products of a training step: encoder, heads, gradients and optimiser together."""

import math
from dataclasses import dataclass

from torch import nn

from glocal_xml.modeling import AdaptiveLabelClusters, XMTCConfig
from glocal_xml.modeling.label_attention import LabelAttention
from glocal_xml.modeling.label_scorer import LabelScorer
from glocal_xml.training import XMTCTrainingArguments

from .encoder_trace import EncoderTrace, trace_encoder
from .head_costs import HeadCost, LossShape, head_cost
from .planned_model import PlannedModel, optimizer_bytes, optimizer_of
from .workload import Workload

_FLOAT = 4
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
        activations: What encoder and projections keep for the backward pass.
        heads: What the losses over labels need beside these.
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
    shapes = _shapes(planned, workload, texts, workload.mean_length)
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
        sparse_share=_share_in_play(planned.config, workload.num_texts) if sparse else None,
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
        gradients = dense + [p for p in dense if any(p is table for table in _tables(planned))]
    tokens = workload.num_texts * workload.mean_length
    return MemoryEstimate(
        process=process,
        data=int(_BYTES_OF_A_TOKEN * tokens + _BYTES_OF_A_LABEL * workload.num_labels),
        weights=planned.weight_bytes(),
        optimizer=optimizer_bytes(optimizer_class, dense, False) + optimizer_bytes(optimizer_class, sparse, True),
        gradients=sum(p.nbytes for p in gradients),
        activations=largest.peak_bytes,
        heads=int(_heads_together(planned, heads)),
    )


def _trained(planned: PlannedModel, trace: EncoderTrace) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with dense and with sparse gradients."""
    sparse = planned.sparse_parameters()
    others = trace.untrained | {id(p) for p in sparse}
    return [p for p in planned.model.parameters() if id(p) not in others], sparse


def _tables(planned: PlannedModel) -> list[nn.Parameter]:
    return [p for name, p in planned.model.named_parameters() if "label_embeddings" in name]


def _all_costs(planned: PlannedModel, shapes: dict[str, LossShape]) -> dict[str, HeadCost]:
    heads = {**planned.level_heads(), **planned.model.branch_heads()}
    costs = {name: head_cost(heads[name], shape) for name, shape in shapes.items()}
    if getattr(planned.config, "training_loss", None) == "collaborative" and not planned.config.tree_levels:
        # All logits are computed twice, and the derivative by each is kept, in chunks and then as a whole.
        texts = next(iter(shapes.values())).texts
        logits = 2 * _FLOAT * texts * planned.config.num_labels
        costs = {
            name: HeadCost(cost.flops + cost.forward_flops, cost.forward_flops, cost.bytes + logits)
            for name, cost in costs.items()
        }
    return costs


def _heads_together(planned: PlannedModel, costs: dict[str, HeadCost]) -> float:
    """Losses over all labels come one after the other; of candidates everything is kept until the backward pass."""
    if planned.level_heads():
        return sum(cost.bytes for cost in costs.values())
    return max(cost.bytes for cost in costs.values())


def _shapes(
    planned: PlannedModel, workload: Workload, texts: int, tokens: float, worst: bool = False
) -> dict[str, LossShape]:
    """What the loss of each head goes over; at worst, all texts go into all tails of adaptive clusters."""
    shapes = {}
    numbers = candidates_per_text(planned.config)
    for (name, head), number in zip(planned.level_heads().items(), numbers[:-1], strict=True):
        read = tokens if isinstance(head, LabelAttention) else 1
        shapes[name] = LossShape(texts, read, number, first_level=number is None)
    for name, head in planned.model.branch_heads().items():
        reads_tokens = isinstance(head, LabelAttention)
        visited = _visited(head, workload, worst) if isinstance(head, AdaptiveLabelClusters) else ()
        shapes[name] = LossShape(texts, tokens if reads_tokens else 1, numbers[-1], visited)
    return shapes


def candidates_per_text(config: XMTCConfig) -> list[float | None]:
    """Nodes of each level of a label tree, and labels, that a training step scores for a text; None for all."""
    return [None, *(min(config.training_beam, above) * below / above for above, below in _ways_down(config))]


def _ways_down(config: XMTCConfig) -> list[tuple[int, int]]:
    """Nodes of each level of a label tree, with the nodes or labels below them; nothing without a tree."""
    levels = getattr(config, "tree_levels", None) or []
    return list(zip(levels, [*levels[1:], config.num_labels], strict=True)) if levels else []


def _visited(head: LabelScorer, workload: Workload, worst: bool) -> tuple[float, ...]:
    """Share of the texts with a label in each tail, as if labels occurred independently."""
    if worst:
        return (1.0,) * len(head.tails)
    shares = (workload.share_of_labels(run.start, run.stop) for run in head.runs[1:])
    return tuple(1 - math.exp(-workload.labels_per_text * share) for share in shares)


def _numbers_in_play(planned: PlannedModel, texts: int) -> float:
    """Numbers in the rows of sparse tables that one step updates."""
    shares = {
        below: _drawn_share(planned.config.training_beam, above, texts) for above, below in _ways_down(planned.config)
    }
    return sum(parameter.numel() * shares[len(parameter)] for parameter in planned.sparse_parameters())


def _share_in_play(config: XMTCConfig, texts: int) -> float:
    return _drawn_share(config.training_beam, config.tree_levels[-1], texts)


def _drawn_share(beam: int, nodes: int, texts: int) -> float:
    """Share of the nodes that some text goes on from, as if each chose at random."""
    return 1 - (1 - min(1.0, beam / nodes)) ** texts
