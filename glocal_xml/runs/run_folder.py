"""The folder of a run: what it holds, when it may be used again, where to resume, and the files of results."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from glocal_xml.atomic_file import remove_leftovers
from glocal_xml.data import LabelSpace, write_rows
from glocal_xml.hub.run_files import CARD_FILE, RESULTS_FILE, holds_card
from glocal_xml.modeling.configuration_base import find_label_names
from glocal_xml.training.whole_checkpoints import last_good_checkpoint, why_not_whole

PREDICTIONS_FILE = "predictions.jsonl"
_RUN_FILES = (RESULTS_FILE, PREDICTIONS_FILE, "config.json", "model.safetensors", "trainer_state.json")


def check_run_folder(
    folder: str,
    *,
    resume: str | None,
    overwrite: bool,
    model: str | None = None,
    find_last: Callable[[Path], str | None] = last_good_checkpoint,
) -> str | None:
    """
    Refuses a folder that must not be written to, such as that of the `model` which the run starts from, and returns
    the checkpoint to resume from, if any: by `resume` the newest whole one (`"last"`), or the one at a path.
    """
    path = Path(folder)
    # Now, and not when everything is trained.
    place = next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())
    if not place.is_dir():
        raise ValueError(f"The output folder {folder} is a file, or in one; choose another name.")
    if not folder.strip() or not os.access(place, os.W_OK | os.X_OK):
        raise ValueError(f"The output folder {folder!r} cannot be written to; choose another `--output_dir`.")
    if model is not None and path.resolve() in (Path(model).resolve(), *Path(model).resolve().parents):
        raise ValueError(f"The output folder {folder} holds the model {model} that is used; choose another one.")
    if resume is not None:
        # As Trainer calls the last one.
        resume = "last" if resume in (True, "true", "True") else resume
        checkpoint = find_last(path) if resume == "last" else resume
        reason = "" if resume == "last" else why_not_whole(checkpoint)
        if checkpoint is None or reason:
            raise ValueError(
                f"No complete checkpoint to resume from in {checkpoint or folder}{f' ({reason})' if reason else ''}: "
                "start the run anew, with `--overwrite_output true` in place of `--resume_from_checkpoint`."
            )
        return checkpoint
    if holds_run(path) and not overwrite:
        can_resume = last_good_checkpoint(path) is not None or (path / "state").exists()
        resumes = "resume it with `--resume_from_checkpoint last`, " if can_resume else ""
        raise ValueError(
            f"The output folder {folder} holds another run: {resumes}delete it with `--overwrite_output true`, or "
            "choose another `--output_dir`."
        )
    return None


def check_same_labels(checkpoint: str, names: list[str]) -> None:
    """Refuses to resume with other labels, or in another order: weights would go on under wrong names."""
    earlier = find_label_names(checkpoint)
    if earlier is None or earlier == names:
        return
    if sorted(earlier) == sorted(names):
        difference = "they come in another order"
    else:
        sets = {"new": set(names).difference(earlier), "missing": set(earlier).difference(names)}
        parts = [f"{len(found)} {kind}, such as {sorted(found)[:3]}" for kind, found in sets.items() if found]
        difference = " and ".join(parts)
    raise ValueError(
        f"The labels of the training texts are not those of {checkpoint}: {difference}. Resume with the files of that "
        "run, or start a new one in another `--output_dir`."
    )


def clear_run_folder(folder: str | os.PathLike) -> None:
    """Deletes what an earlier run left, and nothing else."""
    path = Path(folder)
    for checkpoint in filter(Path.is_dir, (*path.glob("checkpoint-*"), *path.glob("state*"))):
        shutil.rmtree(checkpoint)
    for name in (*_RUN_FILES, CARD_FILE) if holds_card(path) else _RUN_FILES:
        (path / name).unlink(missing_ok=True)
    remove_leftovers(path)


def holds_run(folder: str | os.PathLike) -> bool:
    """Whether a folder holds checkpoints, a model or results."""
    path = Path(folder)
    return any((path / name).exists() for name in (*_RUN_FILES, "state")) or any(path.glob("checkpoint-*"))


def prediction_lines(
    part: str,
    texts: Iterable[str | None],
    top_k_ids: Iterable[Iterable[int]],
    scores: Iterable[Iterable[float]],
    true_labels: Iterable[list[int]],
    label_space: LabelSpace,
) -> Iterator[dict[str, Any]]:
    """
    Per text its part, the text where it is known, the names of the best labels with scores, and the names of the true
    ones where it has any.
    """
    for text, ids, values, true in zip(texts, top_k_ids, scores, true_labels, strict=True):
        names = label_space.decode(ids)
        ranked = [{"label": name, "score": round(float(v), 6)} for name, v in zip(names, values, strict=True)]
        known = {"labels": label_space.decode(true)} if len(true) else {}
        yield {"part": part, **({} if text is None else {"text": text}), "predictions": ranked, **known}


def write_predictions(folder: str | os.PathLike, lines: Iterable[dict[str, Any]]) -> Path:
    """Writes `predictions.jsonl`, whole or not at all."""
    path = Path(folder, PREDICTIONS_FILE)
    write_rows(lines, path)
    return path
