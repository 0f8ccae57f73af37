"""Settings with which a run fits into the available memory, those first that change the result least."""

import copy
import json
import shlex
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glocal_xml.modeling import XMTCConfig
from glocal_xml.training import ModelArguments, XMTCTrainingArguments

from .estimate import step_memory
from .planned_model import plan_model, planned_config
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
