"""Labels ranked by the mean of the probabilities of several trained models, one in memory at a time."""

import logging
import os
import time
from collections.abc import Iterator, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from glocal_xml.data import LabelSpace, XMTCCollator
from glocal_xml.hub.run_files import write_results
from glocal_xml.metrics import top_k_from_scores
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.runs.model import build_model, check_length
from glocal_xml.runs.prepare import check_arguments, load_texts, load_tokenizer, settle_ranks, trained_label_space
from glocal_xml.runs.report import results_table
from glocal_xml.runs.run_folder import check_run_folder, clear_run_folder, prediction_lines, write_predictions
from glocal_xml.runs.token_columns import start_tokens, with_whole_texts
from glocal_xml.trained_model import trained_config
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import FINAL, ranking_metrics
from glocal_xml.training.run_facts import data_facts, environment

logger = logging.getLogger(__name__)

# The row of results that all members made.
ENSEMBLE = "ensemble"


def run_ensemble(
    members: Sequence[str],
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    *,
    top_k: int = 10,
    candidates: int = 50,
) -> dict[str, Any]:
    """
    Evaluates and predicts with several trained models (folders or Hub ids) of the same labels together; see
    [`ensemble_top_k`]. Training counts, and with them propensities and bands, are those of the first one.
    """
    started = time.time()
    check_members(members, top_k)
    check_arguments(ModelArguments(model=members[0]), data_args, training=False)
    given = {name: getattr(data_args, name) for name in ("train_file", "streaming", "windows")}
    given["resume_from_checkpoint"] = args.resume_from_checkpoint
    if unfit := [name for name, value in given.items() if value]:
        raise ValueError(
            f"An ensemble trains nothing and reads the start of its texts several times: leave out {', '.join(unfit)}."
        )
    if args.world_size > 1:
        raise ValueError(f"An ensemble runs in one process, not {args.world_size}: start it by `glocal-xml ensemble`.")
    for member in members:
        check_run_folder(args.output_dir, resume=None, overwrite=args.overwrite_output, model=member)
    label_space = shared_label_space(members)
    settle_ranks(args, label_space)
    top_k, candidates = min(top_k, label_space.num_labels), min(candidates, label_space.num_labels)
    depth = max(top_k, *args.metrics_at)
    if candidates < depth:
        raise ValueError(
            f"`candidates` is {candidates}, but {depth} labels are to be ranked by `top_k` and `metrics_at`: pass "
            f"`--candidates {depth}` or more."
        )
    for member in members:
        shortlist = getattr(trained_config(member), "shortlist", None)
        if shortlist is not None and shortlist < candidates:
            raise ValueError(
                f"`candidates` is {candidates}, but {member} has a shortlist of {shortlist} labels: pass "
                f"`--candidates {shortlist}`, or raise `shortlist` in its config.json."
            )
    texts, label_space = load_texts(data_args, label_space, args.seed)
    logger.info("labels: %s", label_space.describe())
    names = member_names(members)
    # All parts at once, so that each model is loaded twice and no more.
    all_texts = concatenate_datasets([part.select_columns("text") for part in texts.values()])
    numbers = {"top_k": depth, "candidates": candidates, "max_length": data_args.max_length}
    ids, scores, member_ids = ensemble_top_k(members, all_texts, label_space, args, **numbers)
    rankings = {ENSEMBLE: ids} | dict(zip(names, member_ids, strict=True))
    results = ensemble_facts(names, members, data_args, args, top_k=top_k, candidates=candidates, seed=args.seed)
    results["data"] = data_facts(texts, label_space)
    lines, first = [], 0
    for name, part in texts.items():
        rows, labels = slice(first, first + len(part)), list(part["labels"])
        first = rows.stop
        if name != "predict":
            found = {row: ranking_metrics(best[rows], labels, label_space, args) for row, best in rankings.items()}
            results[name] = found
            logger.info("%s, %d texts\n%s", name, len(part), results_table(results[name], args))
        if name != "validation":
            best, values = ids[rows, :top_k], scores[rows, :top_k]
            lines.extend(prediction_lines(name, part["text"], best, values, labels, label_space))
    return write_ensemble(args.output_dir, results, lines, started)


def ensemble_facts(
    names: Sequence[str], members: Sequence[str], data_args: DataArguments, args: XMTCTrainingArguments, **further: Any
) -> dict[str, Any]:
    """What results say of the members of an ensemble, its settings and the machine."""
    settings = {name: getattr(args, name) for name in ("metrics_at", "propensity_a", "propensity_b")}
    facts = {"members": dict(zip(names, members, strict=True)), "data": vars(data_args), **settings, **further}
    return {ENSEMBLE: facts, "environment": environment(args)}


def write_ensemble(
    folder: str, results: dict[str, Any], lines: Sequence[dict[str, Any]], started: float
) -> dict[str, Any]:
    """Writes results, which now have the seconds since the start, and predictions, in place of those of before."""
    results["seconds"] = round(time.time() - started, 1)
    Path(folder).mkdir(parents=True, exist_ok=True)
    clear_run_folder(folder)
    if lines:
        logger.info("predictions: %s", write_predictions(folder, lines))
    logger.info("results: %s", write_results(folder, results))
    return results


def shared_label_space(members: Sequence[str]) -> LabelSpace:
    """The label space of the first model; another one with other labels, or in another order, is an error."""
    label_space = trained_label_space(members[0])
    for member in members[1:]:
        for place, (name, other) in enumerate(zip_longest(label_space.names, trained_label_space(member).names)):
            if name != other:
                found = ["missing" if each is None else repr(each) for each in (name, other)]
                raise ValueError(
                    f"Label {place} is {found[0]} in {members[0]} and {found[1]} in {member}, but members of an "
                    "ensemble must have the same labels in the same order: train them on the same texts, or all with "
                    "the same `--label_names_file`."
                )
    return label_space


def member_names(members: Sequence[str]) -> list[str]:
    """What results call the members: the names of their folders, with a number where that is taken."""
    names: list[str] = []
    for member in members:
        folder = os.path.basename(os.path.abspath(member))
        numbered = (folder if number == 1 else f"{folder}-{number}" for number in count(1))
        names.append(next(name for name in numbered if name not in (ENSEMBLE, *names)))
    return names


def check_members(members: Sequence[str], top_k: int) -> None:
    """Refuses what is no ensemble."""
    if len(members) < 2:
        raise ValueError(f"An ensemble needs two members or more, got {list(members)}: name further ones.")
    if top_k < 1:
        raise ValueError(f"`top_k` must be at least 1, got {top_k}.")


def ensemble_top_k(
    members: Sequence[str],
    texts: Dataset,
    label_space: LabelSpace,
    args: XMTCTrainingArguments,
    *,
    top_k: int,
    candidates: int,
    max_length: int | None = None,
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """
    The best labels of each text by the mean of the final probabilities of several models, in single precision: ids and
    means, (texts, top_k), of equal ones the lower id first; and the ids that each member alone ranks highest.

    Each model brings in its `candidates` best labels of a text, at least `top_k`, and every model then scores all that
    were brought in: their means are exact, but a label that is among the best `candidates` of no model cannot win. A
    model with a label tree looks at as many clusters as `candidates` labels need, which may be more than its `beam`.
    Texts are cut at `max_length` tokens, by default as each model was trained.
    """

    def opened(member: str, what: str) -> tuple[XMTCPreTrainedModel, Iterator[dict[str, torch.Tensor]]]:
        """A member and the texts in batches, as its own tokenizer reads them."""
        model_args = ModelArguments(model=member)
        tokenizer = load_tokenizer(model_args, max_length, {})
        model = build_model(model_args, label_space, tokenizer).to(args.device)
        check_length(model, tokenizer.model_max_length)
        whole = with_whole_texts(texts, tokenizer) if model.text_experts() else texts
        tokens = start_tokens(whole, tokenizer, tokenizer.model_max_length)
        loader = DataLoader(tokens, batch_size=args.per_device_eval_batch_size, collate_fn=XMTCCollator(tokenizer))
        bar = tqdm(loader, desc=f"{os.path.basename(os.path.abspath(member))}: {what}", disable=args.disable_tqdm)
        return model, ({name: values.to(args.device) for name, values in batch.items()} for batch in bar)

    # A model is gone when its function returns: one at a time.
    def best_labels(member: str) -> np.ndarray:
        model, batches = opened(member, "best labels")
        found = [model.predict_top_k(**batch, top_k=candidates).top_k_ids.cpu().numpy() for batch in batches]
        return np.concatenate(found)  # (texts, candidates)

    def scores_of_all(member: str) -> np.ndarray:
        model, batches = opened(member, "scores")
        scores, first = np.zeros(label_ids.shape), 0
        for batch in batches:
            rows = slice(first, first + len(batch["input_ids"]))
            # Other batches may need more.
            width = is_own[rows].sum(axis=1).max()
            chosen = torch.as_tensor(label_ids[rows, :width], device=model.device)  # (texts, chosen)
            scores[rows, :width] = model.score_labels(chosen, **batch)[FINAL].cpu().numpy()
            first = rows.stop
        return np.where(is_own, scores, 0.0)

    best = [best_labels(member) for member in members]
    label_ids, is_own = union_of_labels(best)
    mean = sum(map(scores_of_all, members)) / len(members)
    # Ids ascend along a row, so that of equal scores the lower id comes first.
    columns = top_k_from_scores(np.where(is_own, mean, -1.0), top_k)
    ids, scores = (np.take_along_axis(values, columns, axis=1) for values in (label_ids, mean))
    return ids, scores, [member_ids[:, :top_k] for member_ids in best]


def union_of_labels(rankings: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """
    The labels of each text that are in any ranking, (texts, labels) each, ascending, and whether each counts, both
    (texts, most labels of a text); what does not count repeats an id that does.
    """
    label_ids = np.sort(np.concatenate(rankings, axis=1), axis=1)
    is_repeated = np.zeros(label_ids.shape, dtype=bool)
    is_repeated[:, 1:] = label_ids[:, 1:] == label_ids[:, :-1]
    width = (~is_repeated).sum(axis=1).max()
    # Repeated ids go to the end, the others keep their order.
    columns = np.argsort(is_repeated, axis=1, kind="stable")[:, :width]
    return np.take_along_axis(label_ids, columns, axis=1), np.take_along_axis(~is_repeated, columns, axis=1)
