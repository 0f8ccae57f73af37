"""The estimate of a run: memory, products and time."""

import math
from dataclasses import dataclass
from typing import Any

from transformers.trainer_utils import SaveStrategy

from glocal_xml.modeling import XMTCConfig
from glocal_xml.training import XMTCTrainingArguments

from .planned_model import plan_model
from .speed import Speeds, measure_speeds
from .step_costs import StepCosts, step_costs
from .workload import Workload, number_of_steps


@dataclass(frozen=True)
class Estimate:
    """
    What a run will take.

    Args:
        costs: Memory and products of a step.
        steps: Optimiser steps of the run.
        step_seconds: Seconds of a step by part.
        evaluation_seconds: Seconds of all evaluations of the run.
    """

    costs: StepCosts
    steps: int
    step_seconds: dict[str, float]
    evaluation_seconds: float

    @property
    def step_flops(self) -> dict[str, float]:
        """Floating-point operations of the products of a batch, by part."""
        return {"encoder": self.costs.average.flops} | {name: cost.flops for name, cost in self.costs.heads.items()}

    @property
    def run_seconds(self) -> float:
        return self.steps * sum(self.step_seconds.values()) + self.evaluation_seconds

    def to_dict(self) -> dict[str, Any]:
        """All figures, for a JSON file."""
        memory = self.costs.memory
        return {
            "parameters": self.costs.parameters,
            "memory_bytes": {**vars(memory), "peak": memory.peak},
            "rows_in_play_in_an_epoch": self.costs.sparse_share,
            "step_flops": self.step_flops,
            "step_seconds": {**self.step_seconds, "all": sum(self.step_seconds.values())},
            "tokens_of_a_text": self.costs.tokens,
            "steps": self.steps,
            "evaluation_seconds": self.evaluation_seconds,
            "run_seconds": self.run_seconds,
        }


def estimate_run(config: XMTCConfig, workload: Workload, args: XMTCTrainingArguments, process: int) -> Estimate:
    """
    Estimates a run, in seconds.

    Args:
        config: The model's configuration.
        workload: Data and batches.
        args: Training arguments.
        process: Bytes of a process that has only imported the packages.
    """
    costs = step_costs(plan_model(config, args.gradient_checkpointing), workload, args, process)
    speeds = measure_speeds(costs, args)
    batches = args.gradient_accumulation_steps
    step_seconds = {"encoder": batches * costs.average.flops / speeds.encoder}
    step_seconds |= {name: batches * cost.flops / speeds.heads[name] for name, cost in costs.heads.items()}
    step_seconds["optimiser"] = costs.dense_parameters * speeds.dense + costs.sparse_numbers * speeds.sparse
    steps = number_of_steps(workload, args)
    return Estimate(costs, steps, step_seconds, _evaluation_seconds(costs, speeds, workload, args, steps))


def _evaluation_seconds(
    costs: StepCosts, speeds: Speeds, workload: Workload, args: XMTCTrainingArguments, steps: int
) -> float:
    """Forward passes over validation texts whenever the run saves and once at the end, and over test texts."""
    text = costs.average.forward_flops / speeds.encoder
    text += sum(cost.forward_flops / speeds.heads[name] for name, cost in costs.heads.items())
    validation, test = workload.num_evaluated
    saves = {
        SaveStrategy.EPOCH: math.ceil(args.num_train_epochs),
        SaveStrategy.STEPS: steps / args.save_steps if args.save_steps >= 1 else 1 / args.save_steps,
    }
    return text / costs.texts * (validation * (int(saves.get(args.save_strategy, 0)) + 1) + test)
