"""Training for a given time: the learning rate falls with the clock, and training ends when the time is over."""

import logging
import time

import torch
from torch.optim.lr_scheduler import LambdaLR
from transformers import TrainerCallback

logger = logging.getLogger(__name__)


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
