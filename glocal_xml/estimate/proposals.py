"""Settings with which a run fits into the memory there is, those first that change the result least."""

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glocal_xml.modeling import XMTCConfig
from glocal_xml.training import ModelArguments, XMTCTrainingArguments

from .planned_model import plan_model, planned_config
from .step_costs import step_memory
from .workload import Workload

_SHORTEST = 64
_SMALL_LABELS = 128
_CLUSTER_SIZE = 100


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
        planned = plan_model(self.config(), self.args.gradient_checkpointing)
        return step_memory(planned, self.workload, self.args, process).peak

    def changed(self, flags: dict[str, Any]) -> "Plan":
        """The plan with other values of the flags of `glocal-xml train`."""
        model_args, args, workload = copy.copy(self.model_args), copy.copy(self.args), self.workload
        for name, value in flags.items():
            if name == "max_length":
                workload = replace(workload, lengths=np.minimum(workload.lengths, value))
            elif name == "model_config":
                model_args.model_config = {**model_args.model_config, **value}
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
        return " ".join(f"--{name} {_shown(value)}" for name, value in self.flags.items())


def proposals(plan: Plan, process: int, limit: int) -> list[Proposal]:
    """
    Changes with which a run fits, best first; several at once only where none does alone. Empty if nothing helps.

    Args:
        plan: The run that does not fit.
        process: Bytes of a process that has only imported the packages.
        limit: Bytes that there are.
    """

    def proposal(chosen: dict[str, dict[str, Any]]) -> Proposal | None:
        flags = _merged(plan, chosen)
        peak = plan.changed(flags).peak(process)
        return Proposal(flags, "; ".join(chosen), peak) if peak <= limit else None

    changes = _changes(plan)
    alone = (_first(proposal({effect: flags}) for flags in sizes) for effect, sizes in changes.items())
    if fitting := [found for found in alone if found is not None]:
        return fitting
    chosen, best = {}, None
    for effect, sizes in changes.items():
        chosen[effect] = sizes[-1]
        if best := proposal(chosen):
            break
    if best is None:
        return []
    # What turns out not to be needed is taken back, the graver changes first, or made milder.
    for effect in reversed(list(chosen)):
        less = {name: flags for name, flags in chosen.items() if name != effect}
        milder = [less, *({**chosen, effect: flags} for flags in changes[effect][:-1])]
        for candidate in milder:
            if found := proposal(candidate):
                chosen, best = candidate, found
                break
    return [best]


def _first(found: Iterator[Proposal | None]) -> Proposal | None:
    return next((proposal for proposal in found if proposal is not None), None)


def _merged(plan: Plan, chosen: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Flags of several changes; one of them holds all fields of the model's configuration."""
    fields = dict(plan.model_args.model_config)
    flags: dict[str, Any] = {}
    for change in chosen.values():
        fields |= change.get("model_config", {})
        flags |= change
    return {**flags, "model_config": fields} if "model_config" in flags else flags


def _changes(plan: Plan) -> dict[str, list[dict[str, Any]]]:
    """What could be changed, by what that does, the mildest first and so are sizes of one change."""
    config, args = plan.config(), plan.args
    changes = {"same result, a little slower": _smaller_batches(args)}
    if not args.gradient_checkpointing and plan_model(config).model.encoder.supports_gradient_checkpointing:
        changes["same result, the encoder's forward pass is made twice"] = [{"gradient_checkpointing": True}]
    is_new, lengths = plan.model_args.model is None, [plan.workload.longest]
    if is_new and getattr(config, "tree_levels", None) == [] and config.num_labels > 4 * _CLUSTER_SIZE:
        changes["candidate labels instead of all"] = [{"label_tree": {"cluster_size": _CLUSTER_SIZE}}]
    while lengths[-1] // 2 >= _SHORTEST:
        lengths.append(lengths[-1] // 2)
    changes["texts are cut off earlier"] = [{"max_length": length} for length in lengths[1:]]
    if is_new and config.model_type == "glocal_xml":
        if (config.label_size or config.hidden_size) > _SMALL_LABELS:
            fields = {"label_size": _SMALL_LABELS, "use_pooler": True}
            changes["smaller label embeddings"] = [{"model_config": fields}]
        if config.branches == "both":
            changes["no label-word attention"] = [{"model_config": {"branches": "global", "shortlist": None}}]
    return {effect: sizes for effect, sizes in changes.items() if sizes}


def _smaller_batches(args: XMTCTrainingArguments) -> list[dict[str, int]]:
    """The same texts for each update, in more and smaller batches."""
    batch, parts, sizes = args.per_device_train_batch_size, 2, []
    while batch % parts == 0:
        accumulated = args.gradient_accumulation_steps * parts
        sizes.append({"per_device_train_batch_size": batch // parts, "gradient_accumulation_steps": accumulated})
        parts *= 2
    return sizes


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"'{json.dumps(value)}'"
    return json.dumps(value) if isinstance(value, bool) else str(value)
