"""What a run tells about itself while it trains."""

import logging
from typing import Any

from tqdm.auto import tqdm
from transformers import ProgressCallback, TrainerCallback

logger = logging.getLogger(__name__)


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


class RunReporter(ProgressCallback):
    """Progress bars, a short line about the loss now and then, and one line per evaluation."""

    def __init__(self, metrics_at: list[int], final: str):
        super().__init__()
        self.metrics_at = metrics_at
        self.final = final

    # Transformers makes the bars even where they are switched off.
    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            self.training_bar = tqdm(total=state.max_steps, dynamic_ncols=True, disable=args.disable_tqdm)
        self.current_step = 0

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        if not args.disable_tqdm:
            super().on_prediction_step(args, state, control, eval_dataloader=eval_dataloader, **kwargs)

    def on_log(self, args, state, control, logs: dict[str, Any] | None = None, **kwargs):
        if state.is_world_process_zero and logs and "loss" in logs:
            logger.info(
                "step %d of %d, epoch %.2f: loss %.5f%s, gradient norm %.3g, learning rate %.3g",
                state.global_step,
                state.max_steps,
                state.epoch or 0.0,
                float(logs["loss"]),
                loss_terms(logs),
                float(logs.get("grad_norm", float("nan"))),
                float(logs.get("learning_rate", float("nan"))),
            )

    def on_evaluate(self, args, state, control, metrics: dict[str, float] | None = None, **kwargs):
        super().on_evaluate(args, state, control, **kwargs)
        if state.is_world_process_zero and metrics:
            logger.info("epoch %.2f: %s", state.epoch or 0.0, evaluation_line(metrics, self.metrics_at, self.final))


def loss_terms(logs: dict[str, Any]) -> str:
    """What the loss consists of: ` (individual 0.01234, diversity -0.00012)`; nothing for a single term."""
    terms = {name.removesuffix("_loss"): value for name, value in logs.items() if name.endswith("_loss")}
    return f" ({', '.join(f'{name} {value:.5f}' for name, value in terms.items())})" if terms else ""


def evaluation_line(metrics: dict[str, float], metrics_at: list[int], final: str, prefix: str = "eval_") -> str:
    """P@k of every branch in percent, on one line: `both 85.9 / 62.1 / 47.1 | global …`."""
    suffix = f"precision@{metrics_at[0]}"
    # The final ranking has bare names, a branch `name/metric`.
    branches = [
        name.removesuffix(suffix).removeprefix(prefix)
        for name in metrics
        if name == prefix + suffix or name.endswith(f"/{suffix}")
    ]
    parts = []
    for branch in branches:
        values = [metrics[f"{prefix}{branch}precision@{k}"] for k in metrics_at]
        parts.append(f"{branch.rstrip('/') or final} {' / '.join(f'{100 * value:.2f}' for value in values)}")
    loss = f"loss {metrics[f'{prefix}loss']:.5f} | " if f"{prefix}loss" in metrics else ""
    return f"{loss}P@{'/'.join(map(str, metrics_at))}: {' | '.join(parts)}"
