"""What a run takes, memory, products and time of its steps, and settings with which it fits into the memory."""

import copy
import json
import math
import shlex
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from torch import nn

from glocal_xml.modeling import XMTCConfig, XMTCPreTrainedModel
from glocal_xml.training import ModelArguments, XMTCTrainingArguments

from .miniatures import encoder_seconds, optimizer_seconds, planned_heads
from .planned_model import MOMENTS, Workload, optimizer_of, plan_model, planned_config, trace_encoder

# Names, index and counts of the label space, measured on half a million short names.
_BYTES_OF_A_LABEL = 270
# Token ids and two masks in the Arrow file, whose pages count once they were read.
_BYTES_OF_A_TOKEN = 6
# Of proposals: the shortest texts, the size of label embeddings, and the labels of a cluster.
_SHORTEST, _SMALL_LABELS, _CLUSTER_SIZE = 64, 128, 100


@dataclass(frozen=True)
class Estimate:
    """
    What a run will take, by part: parameters; bytes of a training step when it needs most, with their sum as `peak`;
    floating-point operations of the products of an average batch; seconds of a step, with their sum as `all`.
    """

    parameters: dict[str, int]
    memory_bytes: dict[str, int]
    # Share of the rows of sparse label tables that are updated; None without such tables.
    rows_in_play_in_an_epoch: float | None
    texts_of_a_batch: int
    # That a text of an average batch is padded to.
    tokens_of_a_text: int
    step_flops: dict[str, float]
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
    costs = {"encoder": (trace.flops, encoder_seconds(model, texts, tokens, trace.flops))}
    costs |= {head.name: head.costs(workload, texts, tokens) for head in planned_heads(model)}
    seconds = {name: args.gradient_accumulation_steps * part for name, (_, part) in costs.items()}
    seconds["optimiser"] = sum(p.numel() for p in trace.dense) * optimizer_seconds(model, args, sparse=False)
    if trace.sparse:
        shares = _rows_in_play(config, texts)
        updated = sum(p.numel() * shares[len(p)] for p in trace.sparse)
        seconds["optimiser"] += updated * optimizer_seconds(model, args, sparse=True)
    seconds["all"] = sum(seconds.values())
    # A forward pass has a third of the products of a step: gradients by inputs and by weights are the others.
    evaluation = workload.number_of_evaluated(args) * sum(part for _, part in costs.values()) / texts / 3
    tables = sum(p.numel() for p in _label_tables(model))
    parameters = {"encoder": model.encoder.num_parameters(), "label tables": tables}
    parameters["rest of the heads"] = model.num_parameters() - sum(parameters.values())
    memory = step_memory(model, workload, args, process)
    return Estimate(
        parameters=parameters,
        memory_bytes={**memory, "peak": sum(memory.values())},
        rows_in_play_in_an_epoch=_rows_in_play(config, workload.num_texts)[config.num_labels]
        if trace.sparse
        else None,
        texts_of_a_batch=texts,
        tokens_of_a_text=tokens,
        step_flops={name: flops for name, (flops, _) in costs.items()},
        step_seconds=seconds,
        steps=steps,
        evaluation_seconds=evaluation,
        run_seconds=steps * seconds["all"] + evaluation,
    )


def in_words(seconds: float) -> str:
    """Seconds as a number of days, hours, minutes or seconds: `3.4 hours`."""
    units = {"days": 86400, "hours": 3600, "minutes": 60}
    unit = next((unit for unit, size in units.items() if seconds >= 2 * size), "seconds")
    return f"{seconds / units.get(unit, 1):.1f} {unit}"


def step_memory(
    model: XMTCPreTrainedModel, workload: Workload, args: XMTCTrainingArguments, process: int
) -> dict[str, int]:
    """Bytes of each part of a planned model in a step with the longest texts; the rest as in [`estimate_run`]."""
    texts = min(args.per_device_train_batch_size, workload.num_texts)
    _, activations, dense, sparse = trace_encoder(model, texts, workload.longest, workload.token_types)
    moments = MOMENTS[optimizer_of(args, model)[0]]
    # Besides moments the number of steps, which sparse tables have for every row; rows not yet in play count too.
    state = sum(moments * p.nbytes for p in dense + sparse) + 4 * bool(moments) * (len(dense) + sum(map(len, sparse)))
    # Those of label tables are there already from earlier batches when a loss makes the next ones.
    twice = set(_label_tables(model)) if args.gradient_accumulation_steps > 1 else set()
    tokens = workload.num_texts * workload.lengths.mean()
    return {
        "process": process,
        "data": int(_BYTES_OF_A_TOKEN * tokens + _BYTES_OF_A_LABEL * workload.num_labels),
        "weights": model.get_memory_footprint(),
        "optimizer": state,
        "gradients": sum(p.nbytes * (2 if p in twice else 1) for p in dense),
        "activations": activations,
        "heads": sum(head.bytes(workload, texts) for head in planned_heads(model)),
    }


def _label_tables(model: XMTCPreTrainedModel) -> list[nn.Parameter]:
    """Embeddings, output rows and biases of labels and of the nodes of a tree."""
    return [p for name, p in model.named_parameters() if "label_embeddings" in name or "label_outputs" in name]


def _rows_in_play(config: XMTCConfig, texts: int) -> dict[int, float]:
    """Share of the rows of each sparse table, by its size, that texts update, as if each chose nodes at random."""
    sizes = [*config.tree_levels, config.num_labels]
    return {below: 1 - (1 - min(1.0, config.training_beam / n)) ** texts for n, below in pairwise(sizes)}


@dataclass(frozen=True)
class Plan:
    """The arguments of a run as far as its memory depends on them, and its data."""

    model_args: ModelArguments
    args: XMTCTrainingArguments
    workload: Workload

    def config(self) -> XMTCConfig:
        return planned_config(self.model_args, self.workload.num_labels)

    def peak(self, process: int) -> int:
        """Bytes that the run needs at most."""
        model = plan_model(self.config(), self.args.gradient_checkpointing)
        return sum(step_memory(model, self.workload, self.args, process).values())

    def changed(self, flags: dict[str, Any]) -> "Plan":
        """The plan with other values of the flags of `glocal-xml train`."""
        model_args, args, workload = copy.copy(self.model_args), copy.copy(self.args), self.workload
        for name, value in flags.items():
            if name == "max_length":
                workload = replace(workload, lengths=np.minimum(workload.lengths, value))
            else:
                setattr(model_args if hasattr(model_args, name) else args, name, value)
        return Plan(model_args, args, workload)


@dataclass(frozen=True)
class Proposal:
    """Flags of `glocal-xml train` to add, what they change, and the bytes that the run then needs at most."""

    flags: dict[str, Any]
    effect: str
    peak: int

    def __str__(self) -> str:
        return " ".join(f"--{name} {shlex.quote(json.dumps(value))}" for name, value in self.flags.items())


def proposals(plan: Plan, process: int, limit: int) -> list[Proposal]:
    """Changes with which a run fits, best first; several at once only where none does alone. Empty if none helps."""

    def proposal(chosen: dict[str, dict[str, Any]]) -> Proposal | None:
        flags: dict[str, Any] = {}
        for name, value in (flag for change in chosen.values() for flag in change.items()):
            known = flags.get(name, plan.model_args.model_config)
            flags[name] = known | value if name == "model_config" else value
        peak = plan.changed(flags).peak(process)
        return Proposal(flags, "; ".join(filter(chosen.get, chosen)), peak) if peak <= limit else None

    changes = _changes(plan)
    alone = [next(filter(None, (proposal({e: flags}) for flags in sizes)), None) for e, sizes in changes.items()]
    needed = {effect: sizes[-1] for effect, sizes in changes.items()}
    if any(alone) or not proposal(needed):
        return list(filter(None, alone))
    # What turns out not to be needed is taken back, the graver changes first, or made milder.
    for effect, sizes in reversed(changes.items()):
        milder = (flags for flags in ({}, *sizes[:-1]) if proposal({**needed, effect: flags}))
        needed[effect] = next(milder, sizes[-1])
    return [proposal(needed)]


def _changes(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """What could be changed, by what that does, the mildest first and so are sizes of one change."""
    config, args, is_new = plan.config(), plan.args, plan.model_args.model is None
    batch, accumulated = args.per_device_train_batch_size, args.gradient_accumulation_steps
    halvings = [2**i for i in range(1, 20)]
    # The same texts for each update, in more and smaller batches.
    changes = {
        "same result, a little slower": [
            {"per_device_train_batch_size": batch // parts, "gradient_accumulation_steps": accumulated * parts}
            for parts in halvings
            if batch % parts == 0
        ]
    }
    if not args.gradient_checkpointing and plan_model(config).encoder.supports_gradient_checkpointing:
        changes["same result, the encoder's forward pass is made twice"] = [{"gradient_checkpointing": True}]
    if is_new and getattr(config, "tree_levels", None) == [] and config.num_labels > 4 * _CLUSTER_SIZE:
        changes["candidate labels instead of all"] = [{"label_tree": {"cluster_size": _CLUSTER_SIZE}}]
    lengths = [plan.workload.longest // n for n in halvings]
    changes["texts are cut off earlier"] = [{"max_length": length} for length in lengths if length >= _SHORTEST]
    if is_new and config.model_type == "glocal_xml":
        if (config.label_size or config.hidden_size) > _SMALL_LABELS:
            fields = {"label_size": _SMALL_LABELS, "use_pooler": True}
            changes["smaller label embeddings"] = [{"model_config": fields}]
        if config.branches == "both":
            changes["no label-word attention"] = [{"model_config": {"branches": "global", "shortlist": None}}]
    return {effect: sizes for effect, sizes in changes.items() if sizes}
