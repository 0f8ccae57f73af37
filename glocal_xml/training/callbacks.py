"""What a run tells about itself while it trains, and training for a given time."""

import logging
import time
from collections.abc import Sized
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR
from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback, TrainerState

from .rankings import result_rows
from .run_facts import hardware, peak_memory_gb

logger = logging.getLogger(__name__)

# Seconds of training that tell its speed.
_SPEED_AFTER = 3


class EpochStarter(TrainerCallback):
    """
    Tells the model which epoch begins, for losses that change in the course of training; also after a resume.

    Trainer takes a stream for one epoch however often it is read: here each pass is one, counted from where a resumed
    run begins.
    """

    def __init__(self):
        self.epoch = 0

    def on_train_begin(self, args, state, control, **kwargs):
        # Resumed within an epoch, the fraction tells how far it had come.
        self.epoch = int((state.epoch or 0.0) + 1e-6)

    def on_epoch_begin(self, args, state, control, model=None, **kwargs):
        model.start_epoch(self.epoch)

    def on_epoch_end(self, args, state, control, **kwargs):
        self.epoch += 1


class TimeBudget(TrainerCallback):
    """
    Ends training so many seconds from now on, whenever it starts, or when all epochs are done; the learning rate rises
    in a share of that time (`warmup`).
    """

    def __init__(self, seconds: float, warmup: float):
        self.seconds, self.warmup = max(1.0, seconds), warmup
        self.end = time.monotonic() + self.seconds
        self.started: float | None = None
        self.max_steps = 1

    def on_train_begin(self, args, state, control, **kwargs):
        self.started, self.max_steps = time.monotonic(), max(1, state.max_steps)
        # Texts are tokenised meanwhile.
        self.seconds = max(1.0, self.end - self.started)

    def on_step_end(self, args, state, control, **kwargs):
        if self.progress(state.global_step) >= 1:
            control.should_training_stop = True

    def progress(self, step: int) -> float:
        """What part of the time or of the steps, whichever is more, is over."""
        if self.started is None:
            return 0.0
        return min(1.0, max((time.monotonic() - self.started) / self.seconds, step / self.max_steps))

    def scheduler(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        """A learning rate that rises and then falls to zero as the time goes by."""

        def factor(step: int) -> float:
            progress = self.progress(step)
            if progress < self.warmup:
                # Not zero at the first step, which would be lost.
                return max(progress, 0.01) / self.warmup
            return (1 - progress) / (1 - self.warmup)

        return LambdaLR(optimizer, factor)


class RunReporter(ProgressCallback):
    """Progress bars, a short line about the loss now and then, and one line per evaluation."""

    def __init__(self, metrics_at: list[int], final: str, time_budget: TimeBudget | None = None):
        super().__init__()
        self.metrics_at = metrics_at
        self.final = final
        self.time_budget = time_budget

    # Transformers makes the bars even where they are switched off.
    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            options = {"dynamic_ncols": True, "disable": args.disable_tqdm}
            if self.time_budget is not None:
                options |= {"total": round(self.time_budget.seconds), "unit": "s"}
            self.training_bar = tqdm(**{"total": state.max_steps, **options})
        self.current_step = 0
        self._first = None

    def on_step_end(self, args, state, control, **kwargs):
        if self.time_budget is None:
            self._tell_speed(state)
            super().on_step_end(args, state, control, **kwargs)
        elif state.is_world_process_zero:
            done = round(self.time_budget.seconds * self.time_budget.progress(state.global_step))
            self.training_bar.update(done - self.training_bar.n)

    def _tell_speed(self, state: TrainerState) -> None:
        """Says once, in the first seconds, how long it will take; the first step takes longer than others."""
        now = time.time()
        if self._first is None:
            self._first = (state.global_step, now)
        elif self._first and now - self._first[1] > _SPEED_AFTER:
            seconds = (now - self._first[1]) / (state.global_step - self._first[0])
            self._first = ()
            if state.is_world_process_zero:
                left = seconds * (state.max_steps - state.global_step) / 60
                message = "step %d of %d: %.2g s a step, about %.1f minutes left, without evaluations"
                logger.info(message, state.global_step, state.max_steps, seconds, left)

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if not args.disable_tqdm:
            super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            # What the loss consists of, where it has several terms.
            terms = [f"{name.removesuffix('_loss')} {logs[name]:.5f}" for name in logs if name.endswith("_loss")]
            left = f" of {state.max_steps}"
            if self.time_budget is not None:
                left = f", {self.time_budget.seconds * (1 - self.time_budget.progress(state.global_step)):.0f} s left"
            logger.info(
                "step %d%s, epoch %.2f: loss %.5f%s, gradient norm %.3g, learning rate %.3g",
                state.global_step,
                left,
                state.epoch or 0.0,
                float(logs["loss"]),
                f" ({', '.join(terms)})" if terms else "",
                float(logs.get("grad_norm", float("nan"))),
                float(logs.get("learning_rate", float("nan"))),
            )

    def on_evaluate(self, args, state, control, metrics: dict[str, float] | None = None, **kwargs):
        super().on_evaluate(args, state, control, **kwargs)
        if state.is_world_process_zero and metrics:
            logger.info("epoch %.2f: %s", state.epoch or 0.0, evaluation_line(metrics, self.metrics_at, self.final))


class TrainingFacts(TrainerCallback):
    """
    Gathers what a model card tells of a training, and the last metrics of the model that came out of it.

    `facts` is filled when training ends; `metrics` holds those of validation and test texts, by the name of the part.
    """

    # Points of the loss curve that are kept.
    POINTS = 10
    # Metrics by the first word of their names, as `evaluate`, `predict` and a run have it.
    PARTS = {"eval": "validation", "validation": "validation", "test": "test"}

    def __init__(self):
        self.facts: dict[str, Any] = {}
        self.metrics: dict[str, tuple[str, dict[str, float]]] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.started = time.perf_counter()
        self.first_step, self.first_epoch = state.global_step, state.epoch or 0.0

    def on_train_end(self, args, state, control, train_dataloader=None, **kwargs):
        seconds = time.perf_counter() - self.started
        texts = (state.global_step - self.first_step) * args.train_batch_size * args.gradient_accumulation_steps
        texts *= args.world_size
        if isinstance(getattr(train_dataloader, "dataset", None), Sized):
            # The last batch of an epoch may be smaller than the others.
            texts = min(texts, round((state.epoch - self.first_epoch) * len(train_dataloader.dataset)))
        self.facts = {
            "steps": state.global_step,
            "epochs": round(state.epoch or 0.0, 2),
            "seconds": round(seconds, 1),
            "texts_per_second": round(texts / seconds, 2),
            "loss_curve": loss_curve(state.log_history, self.POINTS),
            "hardware": hardware(args.device),
            "peak_memory_gb": peak_memory_gb(),
        }
        if args.device.type == "cuda":
            self.facts["peak_gpu_memory_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
        if self.first_step:
            self.facts["resumed_at_step"] = self.first_step
        evaluations = [logs for logs in state.log_history if any(name.startswith("eval_") for name in logs)]
        if args.load_best_model_at_end and state.best_global_step:
            evaluations = [logs for logs in evaluations if logs["step"] == state.best_global_step]
            metric, value = args.metric_for_best_model, float(state.best_metric)
            self.facts["best"] = {"step": state.best_global_step, "metric": metric, "value": value}
        if evaluations:
            metrics = {name: value for name, value in evaluations[-1].items() if name not in ("step", "epoch")}
            self.on_evaluate(args, state, control, metrics)

    def on_evaluate(self, args, state, control, metrics: dict[str, float] | None = None, **kwargs):
        prefix = next((name.split("_")[0] for name in metrics or () if "precision@" in name), None)
        if prefix in self.PARTS:
            self.metrics[self.PARTS[prefix]] = (prefix, metrics)

    on_predict = on_evaluate


def loss_curve(log_history: list[dict[str, Any]], points: int) -> list[tuple[int, float]]:
    """Steps and the loss at them, of all that was logged the first, the last and as many between as there may be."""
    losses = [(logs["step"], float(logs["loss"])) for logs in log_history if "loss" in logs]
    if len(losses) <= points:
        return losses
    return [losses[round(i * (len(losses) - 1) / (points - 1))] for i in range(points)]


def evaluation_line(metrics: dict[str, float], metrics_at: list[int], final: str, prefix: str = "eval_") -> str:
    """P@k of every branch in percent, on one line: `both 85.9 / 62.1 / 47.1 | global …`."""
    branches = {
        branch: " / ".join(f"{100 * row[f'precision@{k}']:.2f}" for k in metrics_at)
        for branch, row in result_rows(metrics, prefix.removesuffix("_"), final).items()
        if f"precision@{metrics_at[0]}" in row
    }
    parts = " | ".join(f"{branch} {values}" for branch, values in branches.items())
    loss = f"loss {metrics[f'{prefix}loss']:.5f} | " if f"{prefix}loss" in metrics else ""
    return f"{loss}P@{'/'.join(map(str, metrics_at))}: {parts}"
