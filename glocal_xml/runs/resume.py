"""Interrupted runs: how a user hears to resume one, and the states that a training loop of one's own resumes from."""

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from accelerate import Accelerator
from torch.optim.lr_scheduler import LRScheduler

from glocal_xml.data import LabelSpace
from glocal_xml.interruption import terminated_like_ctrl_c
from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.training.whole_checkpoints import last_good_checkpoint, why_not_whole, write_manifest

from .split_labels import is_split, load_split_state, save_split_state

logger = logging.getLogger("glocal_xml")

STATE_FOLDER = "state"
_PROGRESS = "progress.json"


@contextmanager
def resumable(output_dir: str | os.PathLike) -> Iterator[None]:
    """
    Training within the block may be interrupted by Ctrl-C or SIGTERM: the log then says how to resume it, and the
    process ends with exit code 130.

    Args:
        output_dir: Folder of the run, with the checkpoints of `XMTCTrainer` or the states of a [`LoopState`].
    """
    try:
        with terminated_like_ctrl_c():
            yield
    except KeyboardInterrupt:
        last = last_good_checkpoint(output_dir) or last_state(output_dir)
        logger.warning(
            "Interrupted. %s",
            f"The last checkpoint is {last}; the same command with `--resume_from_checkpoint last` resumes from it."
            if last
            else "No checkpoint had been written yet; smaller `--save_steps` with `--save_strategy steps` write more.",
        )
        raise SystemExit(130) from None
    except UnpicklingError as error:
        # Checkpoints hold numbers; anything else in their files is refused, not run.
        raise ValueError(
            f"The checkpoint of {output_dir} cannot be resumed from: {str(error).splitlines()[0]}"
        ) from error


def last_state(output_dir: str | os.PathLike) -> str | None:
    """The newest complete state that a [`LoopState`] has written; a warning names a newer one that is damaged."""
    folder = Path(output_dir, STATE_FOLDER)
    for candidate in (folder, folder.with_suffix(".old")):
        if candidate.exists():
            if (reason := why_not_whole(candidate, needed=(_PROGRESS,))) is None:
                return str(candidate)
            logger.warning("%s is skipped: %s.", candidate, reason)
    return None


class LoopState:
    """
    What a training loop with Accelerate resumes from, in the folder `state` of its run: weights, optimiser, schedule,
    random numbers and progress. At every moment a complete state is on the disk, and reading one runs no code that
    it may hold.

    Args:
        accelerator: What has prepared model and optimiser.
        output_dir: Folder of the run.
        model: The model, as prepared.
        optimizer: Its optimiser, as prepared.
        schedule: The learning rates; not prepared.
        label_space: The labels, without which a state must not be resumed.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        output_dir: str | os.PathLike,
        model: torch.nn.Module,
        optimizer: Any,
        schedule: LRScheduler,
        label_space: LabelSpace,
    ):
        self.accelerator, self.schedule, self.label_space = accelerator, schedule, label_space
        self.folder = Path(output_dir, STATE_FOLDER)
        unwrapped = accelerator.unwrap_model(model)
        self._split = (unwrapped, optimizer.optimizer) if is_split(unwrapped) else None

    def save(self, progress: dict[str, Any]) -> None:
        """Replaces the state by that of now; to be called by all processes."""
        new, old = self.folder.with_suffix(".new"), self.folder.with_suffix(".old")
        is_main = self.accelerator.is_main_process
        if is_main:
            shutil.rmtree(new, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self._split:
            save_split_state(str(new), *self._split)
        else:
            self.accelerator.save_state(str(new))
        self.accelerator.wait_for_everyone()
        if is_main:
            # The schedule as JSON: Accelerate would pickle it, and a pickle may run anything when it is read.
            progress = progress | {"schedule": self.schedule.state_dict()}
            Path(new, _PROGRESS).write_text(json_text(progress), encoding="utf-8")
            self.label_space.save(new)
            write_manifest(new)
            if self.folder.exists():
                shutil.rmtree(old, ignore_errors=True)
                self.folder.rename(old)
            new.rename(self.folder)
            shutil.rmtree(old, ignore_errors=True)
        self.accelerator.wait_for_everyone()

    def load(self, checkpoint: str | os.PathLike) -> dict[str, Any]:
        """Puts everything back to how it was, and returns the progress that was saved with it."""
        if self._split:
            load_split_state(str(checkpoint), *self._split)
        else:
            try:
                self.accelerator.load_state(str(checkpoint))
            except (RuntimeError, UnpicklingError) as error:
                # Anything but tensors and numbers is refused, not run.
                raise ValueError(f"{checkpoint} cannot be resumed from: {error}") from error
        progress = read_json_object(Path(checkpoint, _PROGRESS))
        self.schedule.load_state_dict(progress.pop("schedule"))
        return progress
