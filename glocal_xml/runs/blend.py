"""The blend of a model: fitted and judged in a run, or fitted again on other texts and kept with the model."""

import logging
import os
import shutil
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset
from safetensors import safe_open
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerBase

from glocal_xml.atomic_file import write_atomically
from glocal_xml.calibration import ScoredLabels, best_threshold, judge_scores, measures_at, report_lines
from glocal_xml.data import LabelSpace, XMTCCollator
from glocal_xml.experts import MIN_TEXTS, blend_pairs, fit_blend, fixed_blend, log_frequencies, texts_in_memory
from glocal_xml.experts.fit_blend import CANDIDATES, BlendPairs
from glocal_xml.experts.token_rows import whole_text_ids
from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.modeling import XMTCPreTrainedModel

from .token_columns import start_tokens, with_whole_texts

logger = logging.getLogger(__name__)

_BATCH = 64
# Most texts that probabilities are judged on, and those that are looked up to tell whether a model knows them.
_JUDGED, _LOOKED_UP = 2000, 500
_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_FREQUENCIES = "log_frequencies"


def batches(
    texts: Dataset, tokenizer: PreTrainedTokenizerBase, has_experts: bool, batch_size: int = _BATCH
) -> DataLoader:
    """Batches of the start of each text, and of all of its tokens where experts count these."""
    texts = with_whole_texts(texts, tokenizer) if has_experts else texts
    tokens = start_tokens(texts, tokenizer, tokenizer.model_max_length)
    return DataLoader(tokens, batch_size=batch_size, collate_fn=XMTCCollator(tokenizer))


def _pairs(
    model: XMTCPreTrainedModel,
    texts: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    candidates: int = CANDIDATES,
    batch_size: int = _BATCH,
) -> BlendPairs:
    return blend_pairs(model, batches(texts, tokenizer, bool(model.text_experts()), batch_size), candidates)


def _size(label_space: LabelSpace) -> int:
    """How many labels there are, with those met only in evaluation data."""
    return label_space.num_labels + len(label_space.unseen)


def blend_of_run(
    model: XMTCPreTrainedModel,
    texts: dict[str, Any],
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    f: str,
    beta: float = 1.0,
    earlier: tuple[dict[str, Any], torch.Tensor] | None = None,
) -> dict[str, Any]:
    """
    Fits the blend of a model on its validation texts and gives it to the model; without such texts it is the earlier
    one with its log frequencies, where that still fits, or else has fixed weights.

    Returns:
        What `results.json` tells of it, with the threshold that would be best for each branch alone.
    """
    frequencies, num_labels = log_frequencies(label_space), _size(label_space)
    if "validation" not in texts:
        what = "its weights are fixed ones" if earlier is None else "it stays as it was"
        logger.warning("No texts are held out to fit the blend on: %s.", what)
        blend, frequencies = earlier or (fixed_blend(model.branch_names, f, beta), frequencies)
        model.set_blend(blend, frequencies)
        return blend
    model.set_blend(None, None)
    pairs = _pairs(model, texts["validation"], tokenizer)
    blend = fit_blend(pairs, model.branch_names, frequencies, f=f, beta=beta, num_labels=num_labels)
    model.set_blend(blend, frequencies)
    judged = judge_scores(pairs.scored(pairs.blended(blend, model.branch_names, frequencies), num_labels), blend)
    logger.info("blend, on the texts that it was fitted on\n%s", "\n".join(report_lines(blend, judged)))
    alone = {
        name: best_threshold(pairs.scored(logits, num_labels), f, beta)
        for name, logits in zip(model.branch_names, pairs.logits.T, strict=True)
        if pairs.is_true.any()
    }
    return {**blend, "validation": judged, "branch_thresholds": alone}


def judge_blend(
    model: XMTCPreTrainedModel,
    texts: Dataset,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    branch_thresholds: dict[str, float],
) -> dict[str, Any]:
    """
    How good the probabilities of a blend are on texts, or a random part, and what its threshold reaches, beside the F
    of each branch alone at a threshold of its own from the same held-out texts.
    """
    if len(texts) > _JUDGED:
        texts = texts.shuffle(seed=0).select(range(_JUDGED))
    pairs, blend, num_labels = _pairs(model, texts, tokenizer), model.config.blend, _size(label_space)
    judged = judge_scores(pairs.scored(pairs.final_logits, num_labels), blend)
    for name, logits in zip(model.branch_names, pairs.logits.T, strict=True):
        if name in branch_thresholds:
            scored = pairs.scored(logits, num_labels)
            found = measures_at(scored, branch_thresholds[name], blend["f"], blend["beta"])["f"]
            judged.setdefault("branch_f", {})[name] = found
    return judged


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
    batch_size: int = _BATCH,
) -> RefittedBlend:
    """
    Fits the blend of a trained model anew, on texts with `labels` that it was not trained on, and gives it to the
    model. Of each branch so many `candidates` are looked at: other true labels count as missed.
    """
    # What the weights hold is what the model will add; labels may have been edited since it was counted.
    stored = model.log_frequencies
    frequencies = log_frequencies(label_space) if stored is None else stored.float().cpu().numpy()
    num_labels, pairs = _size(label_space), _pairs(model, texts, tokenizer, candidates, batch_size)
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
    if not (folder / name).is_file() and (folder / _INDEX).is_file():
        name = read_json_object(folder / _INDEX)["weight_map"].get(_FREQUENCIES, name)
    if not (folder / name).is_file():
        return False
    with safe_open(folder / name, framework="pt") as file:
        found = _FREQUENCIES in file.keys()  # noqa: SIM118 (it is no dictionary)
        return found and torch.equal(file.get_tensor(_FREQUENCIES).to(wanted.dtype), wanted.cpu())
