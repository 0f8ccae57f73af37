"""The blend of a trained model: fitted again on other texts, and kept with the model."""

import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from safetensors import safe_open
from transformers import PreTrainedTokenizerBase

from glocal_xml.atomic_file import write_atomically
from glocal_xml.calibration import ScoredLabels, judge_scores
from glocal_xml.data import LabelSpace
from glocal_xml.experts import MIN_TEXTS, blend_pairs, fit_blend, log_frequencies, texts_in_memory
from glocal_xml.experts.fit_blend import CANDIDATES
from glocal_xml.experts.token_rows import whole_text_ids
from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.modeling import XMTCPreTrainedModel

from .experts import batches

logger = logging.getLogger(__name__)

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_FREQUENCIES = "log_frequencies"
# Of the texts, to tell whether a model knows them.
_LOOKED_UP = 500


class RefittedBlend(NamedTuple):
    """The labels that were looked at with their probabilities before and after, and how good these are."""

    before: ScoredLabels
    after: ScoredLabels
    judged_before: dict[str, Any]
    judged_after: dict[str, Any]


def refit_blend(
    model: XMTCPreTrainedModel,
    texts: Dataset,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    *,
    f: str = "micro",
    beta: float = 1.0,
    candidates: int = CANDIDATES,
    batch_size: int = 64,
) -> RefittedBlend:
    """
    Fits weights of heads and experts, of the frequency of a label and a bias, and a threshold, and gives them to the
    model.

    Args:
        model: A trained model, with a blend or without one.
        texts: Columns `text` and `labels`; none that the model was trained on.
        label_space: The labels of the model.
        tokenizer: The tokenizer of the model.
        f: What the threshold is the best for: `"micro"`, `"macro"` or `"samples"`.
        beta: How much more recall counts than precision.
        candidates: Best labels of each branch to look at; other true labels count as missed.
        batch_size: How many texts go through the model together.
    """
    # What the weights hold is what the model will add; labels may have been edited since it was counted.
    stored = model.log_frequencies
    frequencies = log_frequencies(label_space) if stored is None else stored.float().cpu().numpy()
    num_labels = label_space.num_labels + len(label_space.unseen)
    pairs = blend_pairs(model, batches(texts, tokenizer, bool(model.text_experts()), batch_size), candidates)
    if not pairs.suffice:
        raise ValueError(
            f"{len(pairs.true_labels)} texts with {pairs.is_true.sum()} true labels among the best {candidates} of a "
            f"branch are too few to fit a blend, or tell nothing apart: give at least {MIN_TEXTS} texts and as many "
            "such labels. The model is as it was."
        )
    if model.memory is not None:
        known = texts_in_memory(model, whole_text_ids(texts["text"][:_LOOKED_UP], tokenizer)).mean()
        if known > 0.1:
            logger.warning(
                "%d %% of the texts, as far as it was looked up, are in the memory of the model, which knows their "
                "labels: the blend will trust it too much. Give texts that the model has not seen.",
                round(100 * known),
            )
    old = {"f": f, "beta": beta, "threshold": 0.5 if model.config.blend is None else model.config.blend["threshold"]}
    blend = fit_blend(pairs, model.branch_names, frequencies, f=f, beta=beta, num_labels=num_labels)
    before = pairs.scored(pairs.final_logits, num_labels)
    after = pairs.scored(pairs.blended(blend, model.branch_names, frequencies), num_labels)
    judged_before = {"threshold": old["threshold"], **judge_scores(before, old)}
    model.set_blend(blend, torch.from_numpy(frequencies) if stored is None else stored)
    return RefittedBlend(before, after, judged_before, judge_scores(after, blend))


def keep_blend(folder: str | os.PathLike, model: XMTCPreTrainedModel) -> None:
    """
    Writes the blend of a model into its folder, whole or not at all. Where the weights have the frequencies of the
    labels only the configuration changes; else the model is saved again.
    """
    folder = Path(folder).resolve()
    if _has_frequencies(folder, model.log_frequencies):
        config = read_json_object(folder / _CONFIG)
        config["blend"] = model.config.blend
        write_atomically(folder / _CONFIG, json_text(config, indent=2, sort_keys=True) + "\n")
        return
    temporary = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        model.save_pretrained(temporary)
        names = sorted(path.name for path in temporary.iterdir() if path.name != _CONFIG)
        outdated = {path.name for path in folder.glob("*.safetensors*")} - set(names)
        for name in names:
            os.replace(temporary / name, folder / name)
        for name in outdated:
            (folder / name).unlink()
        # Last: until then the new weights are those of the old model with one tensor that it ignores.
        os.replace(temporary / _CONFIG, folder / _CONFIG)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _has_frequencies(folder: Path, wanted: torch.Tensor) -> bool:
    name = _WEIGHTS
    if not (folder / name).is_file():
        if not (folder / _INDEX).is_file():
            return False
        index = read_json_object(folder / _INDEX)
        name = index["weight_map"].get(_FREQUENCIES)
        if name is None:
            return False
    with safe_open(folder / name, framework="pt") as file:
        if _FREQUENCIES not in file.keys():  # noqa: SIM118 (it is no dictionary)
            return False
        return torch.equal(file.get_tensor(_FREQUENCIES).to(wanted.dtype), wanted.cpu())
