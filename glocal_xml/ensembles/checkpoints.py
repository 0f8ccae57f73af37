"""Labels ranked by the mean of the probabilities of several trained models."""

import logging
import os
import time
from collections.abc import Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets

from glocal_xml.data import LabelSpace
from glocal_xml.hub.run_files import write_results
from glocal_xml.runs.prepare import check_arguments, load_texts, settle_ranks, trained_label_space
from glocal_xml.runs.report import results_table
from glocal_xml.runs.run_folder import check_run_folder, clear_run_folder, prediction_lines, write_predictions
from glocal_xml.trained_model import trained_config
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import ranking_metrics
from glocal_xml.training.run_facts import data_facts, environment

from .ranking import ensemble_top_k

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
    Evaluates and predicts with several trained models together; see [`ensemble_top_k`].

    Training counts, and with them propensities and bands, are those of the first member.

    Args:
        members: Folders or Hub ids of trained models with the same labels.
        data_args, args: Files and how to read them; ranks of the metrics, folder of results, batch size and device.
        top_k, candidates: How many labels of each text to write to `predictions.jsonl`, and each member brings in.
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
    _check_candidates(members, candidates, depth)
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


def _check_candidates(members: Sequence[str], candidates: int, depth: int) -> None:
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
