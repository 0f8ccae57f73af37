"""The estimate of a run: memory, products and time of its steps, encoder, heads and optimiser together."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from torch import nn

from glocal_xml.modeling import XMTCConfig, XMTCPreTrainedModel
from glocal_xml.training import XMTCTrainingArguments

from .miniatures import encoder_seconds, optimizer_seconds, planned_heads
from .planned_model import MOMENTS, EncoderTrace, optimizer_of, plan_model, trace_encoder
from .workload import Workload

# Names, index and counts of the label space, measured on half a million short names.
_BYTES_OF_A_LABEL = 270
# Token ids and two masks in the Arrow file, whose pages count once they were read.
_BYTES_OF_A_TOKEN = 6


@dataclass(frozen=True)
class Estimate:
    """What a run will take; numbers of parameters, bytes, operations and seconds are given by part."""

    parameters: dict[str, int]
    # When a training step needs most; their sum is `peak`.
    memory_bytes: dict[str, int]
    # Share of the rows of sparse label tables that are updated; None without such tables.
    rows_in_play_in_an_epoch: float | None
    texts_of_a_batch: int
    # That a text of an average batch is padded to.
    tokens_of_a_text: int
    # Floating-point operations of the products of such a batch.
    step_flops: dict[str, float]
    # Their sum is `all`.
    step_seconds: dict[str, float]
    # Of the optimiser, in the whole run.
    steps: int
    evaluation_seconds: float
    # Steps and evaluations.
    run_seconds: float


def estimate_run(config: XMTCConfig, workload: Workload, args: XMTCTrainingArguments, process: int) -> Estimate:
    """Estimates a run, in seconds; `process` is the bytes of a process that has only imported the packages."""
    model, steps = plan_model(config, args.gradient_checkpointing), workload.number_of_steps(args)
    texts = min(args.per_device_train_batch_size, workload.num_texts)
    tokens = math.ceil(workload.padded_length(texts, args.train_sampling_strategy == "group_by_length"))
    trace = trace_encoder(model, texts, tokens, workload.token_types)
    heads = {head.name: head.costs(workload, texts, tokens) for head in planned_heads(model)}
    seconds = {"encoder": encoder_seconds(model, texts, tokens, trace.flops)}
    seconds |= {name: head_seconds for name, (_, head_seconds) in heads.items()}
    # A forward pass has a third of the products of a step: gradients by inputs and by weights are the others.
    evaluation = workload.number_of_evaluated(args) * sum(seconds.values()) / texts / 3
    seconds = {name: args.gradient_accumulation_steps * part for name, part in seconds.items()}
    dense, sparse = _trained(model, trace)
    seconds["optimiser"] = _numbers(dense) * optimizer_seconds(model, args, sparse=False)
    if sparse:
        shares = _rows_in_play(config, texts)
        updated = sum(p.numel() * shares[len(p)] for p in sparse)
        seconds["optimiser"] += updated * optimizer_seconds(model, args, sparse=True)
    seconds["all"] = sum(seconds.values())
    encoder, tables = _numbers(model.encoder.parameters()), _numbers(_label_tables(model))
    rest, memory = _numbers(model.parameters()) - encoder - tables, step_memory(model, workload, args, process)
    return Estimate(
        parameters={"encoder": encoder, "label tables": tables, "rest of the heads": rest},
        memory_bytes={**memory, "peak": sum(memory.values())},
        rows_in_play_in_an_epoch=_rows_in_play(config, workload.num_texts)[config.num_labels] if sparse else None,
        texts_of_a_batch=texts,
        tokens_of_a_text=tokens,
        step_flops={"encoder": trace.flops} | {name: flops for name, (flops, _) in heads.items()},
        step_seconds=seconds,
        steps=steps,
        evaluation_seconds=evaluation,
        run_seconds=steps * seconds["all"] + evaluation,
    )


def in_words(seconds: float) -> str:
    """Seconds as a number of days, hours, minutes or seconds: `3.4 hours`."""
    units = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
    unit, size = next((unit for unit in units if seconds >= 2 * unit[1]), units[-1])
    return f"{seconds / size:.1f} {unit}"


def step_memory(
    model: XMTCPreTrainedModel, workload: Workload, args: XMTCTrainingArguments, process: int
) -> dict[str, int]:
    """Bytes of each part of a planned model in a step with the longest texts; the rest as in [`estimate_run`]."""
    texts = min(args.per_device_train_batch_size, workload.num_texts)
    trace = trace_encoder(model, texts, workload.longest, workload.token_types)
    dense, sparse = _trained(model, trace)
    moments = MOMENTS[optimizer_of(args, model)[0]]
    # Besides moments the number of steps, which sparse tables have for every row; rows not yet in play count too.
    state = sum(moments * p.nbytes for p in dense + sparse) + 4 * bool(moments) * (len(dense) + sum(map(len, sparse)))
    # Those of label tables are there already from earlier batches when a loss makes the next ones.
    twice = set(_label_tables(model)) if args.gradient_accumulation_steps > 1 else set()
    tokens = workload.num_texts * workload.lengths.mean()
    return {
        "process": process,
        "data": int(_BYTES_OF_A_TOKEN * tokens + _BYTES_OF_A_LABEL * workload.num_labels),
        "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "optimizer": state,
        "gradients": sum(p.nbytes * (2 if p in twice else 1) for p in dense),
        "activations": trace.peak_bytes,
        "heads": sum(head.bytes(workload, texts) for head in planned_heads(model)),
    }


def _label_tables(model: XMTCPreTrainedModel) -> list[nn.Parameter]:
    """Embeddings, output rows and biases of labels and of the nodes of a tree."""
    return [p for name, p in model.named_parameters() if "label_embeddings" in name or "label_outputs" in name]


def _numbers(parameters: Iterable[nn.Parameter]) -> int:
    return sum(p.numel() for p in parameters)


def _trained(model: XMTCPreTrainedModel, trace: EncoderTrace) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Parameters with dense gradients, and tables of which a step touches the rows of candidates alone."""
    sparse = [module.weight for module in model.modules() if isinstance(module, nn.Embedding) and module.sparse]
    others = trace.untrained.union(sparse)
    return [p for p in model.parameters() if p not in others], sparse


def _rows_in_play(config: XMTCConfig, texts: int) -> dict[int, float]:
    """Share of the rows of each sparse table, by its size, that texts update, as if each chose nodes at random."""
    sizes = [*config.tree_levels, config.num_labels]
    return {below: 1 - (1 - min(1.0, config.training_beam / n)) ** texts for n, below in pairwise(sizes)}
