"""Interrupted runs and how to resume one; steps of a training loop of one's own, and states that it resumes from."""

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import AutoModel, PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.interruption import terminated_like_ctrl_c
from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.plain_errors import mendable, one_line
from glocal_xml.training.rankings import rankings
from glocal_xml.training.whole_checkpoints import last_good_checkpoint, why_not_whole, write_manifest

from .split_labels import is_split, load_split_model, load_split_state, save_split_state

logger = logging.getLogger("glocal_xml")

STATE_FOLDER = "state"
_PROGRESS = "progress.json"


@contextmanager
def resumable(output_dir: str | os.PathLike) -> Iterator[None]:
    """
    Training within the block may be interrupted by Ctrl-C or SIGTERM: the log then says how to resume it from the
    checkpoints of `XMTCTrainer`, or the states of a [`LoopState`], and the process ends with exit code 130.
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


@contextmanager
def one_line_errors() -> Iterator[None]:
    """
    Ends a script within the block with one line and exit code 2 after a mistake, or where the system refuses
    something, such as space on a disk; with exit code 130 after Ctrl-C or SIGTERM. A bug keeps its traceback.
    """
    try:
        with terminated_like_ctrl_c():
            yield
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    except Exception as error:
        if (reason := mendable(error)) is None:
            raise
        print(f"error: {one_line(reason)}", file=sys.stderr)
        raise SystemExit(2) from None


def last_state(output_dir: str | os.PathLike) -> str | None:
    """The newest complete state that a [`LoopState`] has written; a warning names a newer one that is damaged."""
    folder = os.path.join(output_dir, STATE_FOLDER)
    for candidate in filter(os.path.exists, (folder, f"{folder}.old")):
        if (reason := why_not_whole(candidate, needed=(_PROGRESS,))) is None:
            return candidate
        logger.warning("%s is skipped: %s.", candidate, reason)
    return None


class LoopState:
    """
    What a training loop with Accelerate resumes from, in the folder `state` of its run: weights, optimiser, schedule,
    random numbers and progress; and beside it, in `state.best`, the best model so far. At every moment complete ones
    are on the disk, and reading them runs no code that they may hold. All processes call the methods together. Model
    and optimiser are as the accelerator has prepared them, the schedule is not prepared.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        output_dir: str | os.PathLike,
        model: torch.nn.Module,
        optimizer: Any,
        schedule: LRScheduler,
        tokenizer: PreTrainedTokenizerBase,
        label_space: LabelSpace,
    ):
        self.accelerator, self.output_dir, self.model = accelerator, output_dir, model
        self.schedule, self.tokenizer, self.label_space = schedule, tokenizer, label_space
        self.folder = os.path.join(output_dir, STATE_FOLDER)
        self.best_folder = f"{self.folder}.best"
        unwrapped = accelerator.unwrap_model(model)
        self._split = (unwrapped, optimizer.optimizer) if is_split(unwrapped) else None

    def save(self, progress: dict[str, Any]) -> None:
        """Replaces the state by that of now, with `progress`, which must fit into JSON."""
        new = f"{self.folder}.new"
        if self.accelerator.is_main_process:
            shutil.rmtree(new, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        if self._split:
            save_split_state(new, *self._split)
        else:
            self.accelerator.save_state(new)
        self.accelerator.wait_for_everyone()
        if self.accelerator.is_main_process:
            # The schedule as JSON: Accelerate would pickle it, and a pickle may run anything when it is read.
            progress = progress | {"schedule": self.schedule.state_dict()}
            Path(new, _PROGRESS).write_text(json_text(progress), encoding="utf-8")
            self.label_space.save(new)
            write_manifest(new)
            _put_in_place(self.folder)
        self.accelerator.wait_for_everyone()

    def load(self, checkpoint: str) -> dict[str, Any]:
        """Puts everything back to how it was, and returns the progress that was saved with it."""
        if self._split:
            load_split_state(checkpoint, *self._split)
        else:
            try:
                self.accelerator.load_state(checkpoint)
            except (RuntimeError, UnpicklingError) as error:
                # Anything but tensors and numbers is refused, not run.
                raise ValueError(f"{checkpoint} cannot be resumed from: {error}") from error
        progress = read_json_object(Path(checkpoint, _PROGRESS))
        self.schedule.load_state_dict(progress.pop("schedule"))
        return progress

    def save_best(self) -> None:
        """
        Keeps the model of now as the best. Not in the folder of the run, where experts will join it: training could
        not resume from there.
        """
        new, is_main = f"{self.best_folder}.new", self.accelerator.is_main_process
        # Where FSDP has split the weights, all processes bring theirs together; split labels do it as they are saved.
        weights = None if self._split else self.accelerator.get_state_dict(self.model)
        self.accelerator.unwrap_model(self.model).save_pretrained(new, is_main_process=is_main, state_dict=weights)
        self.accelerator.wait_for_everyone()
        if is_main:
            self.tokenizer.save_pretrained(new)
            self.label_space.save(new)
            _put_in_place(self.best_folder)

    def load_best(self) -> XMTCPreTrainedModel:
        """The best model, on the device of this process; with its part of the labels where these are split."""
        self.accelerator.wait_for_everyone()
        if self._split:
            return load_split_model(self.best_folder, self.accelerator.num_processes)
        return AutoModel.from_pretrained(self.best_folder).to(self.accelerator.device)

    def finish(self, best: XMTCPreTrainedModel) -> None:
        """
        Saves what [`load_best`] gave, since then with experts and a blend unless labels are split, to the folder of
        the run, and deletes what interrupted processes may have left.
        """
        if self.accelerator.is_main_process:
            shutil.copytree(self.best_folder, self.output_dir, dirs_exist_ok=True)
            if not self._split:
                best.save_pretrained(self.output_dir)
            for name in (".new", ".old", ".best.new", ".best.old", ".start"):
                shutil.rmtree(f"{self.folder}{name}", ignore_errors=True)


def _put_in_place(folder: str) -> None:
    """Makes the folder of `folder.new`; the one before is deleted when that is done."""
    if os.path.exists(folder):
        shutil.rmtree(f"{folder}.old", ignore_errors=True)
        os.rename(folder, f"{folder}.old")
    os.rename(f"{folder}.new", folder)
    shutil.rmtree(f"{folder}.old", ignore_errors=True)


def prepare_loop(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loaders: dict[str, DataLoader],
) -> tuple[torch.nn.Module, Any, dict[str, DataLoader]]:
    """
    Prepares model, optimiser and batches, by part of the data, for the processes of `accelerator`. Every process reads
    its share of the texts; where the labels of the model are split over them, all read the same texts.
    """
    if is_split(model):
        # The model passes gradients between processes itself.
        model, optimizer = accelerator.prepare_model(model, evaluation_mode=True), accelerator.prepare(optimizer)
        alone = {"num_processes": 1, "process_index": 0, "put_on_device": True, "use_seedable_sampler": True}
        prepared = {name: prepare_data_loader(loader, accelerator.device, **alone) for name, loader in loaders.items()}
        return model, optimizer, prepared
    # FSDP wants the optimiser beside the model.
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, {name: accelerator.prepare(loader) for name, loader in loaders.items()}


@torch.no_grad()
def gather_rankings(
    accelerator: Accelerator,
    model: torch.nn.Module,
    loader: DataLoader,
    top_k: int,
    *,
    show_progress: bool = False,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """
    The best labels of all texts of a part, whose batches [`prepare_loop`] has prepared, the same in every process:
    `final`, each branch of several, and the `scores` of the final one, (texts, labels). Then the labels that the texts
    have, padded with -100.
    """
    model.eval()
    unwrapped, gathered = accelerator.unwrap_model(model), []
    for batch in tqdm(loader, desc="evaluating", disable=not show_progress, leave=False):
        labels = batch.pop("labels")
        output = model(**batch, top_k=top_k, output_logits=False)
        ranked = rankings(unwrapped, output)
        # Where labels are split, every process has read all texts.
        if not is_split(unwrapped):
            labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
            ranked, labels = accelerator.gather_for_metrics((ranked, labels))
        gathered.append((ranked, labels))
    width = max(labels.shape[1] for _, labels in gathered)
    padded = [torch.nn.functional.pad(labels, (0, width - labels.shape[1]), value=-100) for _, labels in gathered]
    ranked = {name: torch.cat([batch[name] for batch, _ in gathered]).cpu().numpy() for name in gathered[0][0]}
    return ranked, torch.cat(padded).cpu().numpy()
