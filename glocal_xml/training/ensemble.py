"""The command `glocal-xml ensemble`: labels ranked by the mean of the probabilities of several trained models."""

import argparse
import logging
import os
import time
from collections.abc import Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

from datasets import concatenate_datasets
from transformers import AutoConfig

from glocal_xml.data import LabelSpace

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments, parse_arguments
from .ensemble_ranking import ensemble_top_k
from .prepare import check_arguments, load_texts, settle_ranks, trained_label_space
from .report import data_facts, environment, ranking_metrics, results_table
from .run import quieten, start_logging
from .run_folder import check_run_folder, clear_run_folder, prediction_lines, write_predictions, write_results

logger = logging.getLogger(__name__)

# The row of results that all members made.
ENSEMBLE = "ensemble"
USAGE = """usage: glocal-xml ensemble MODEL MODEL ... [OPTIONS]

Ranks labels by the mean of the probabilities of several trained models. Families, encoders, tokenizers and label trees
may differ, the labels and their order may not. One model is in memory at a time.

options:
  --test_file FILE     texts with labels: metrics of the ensemble and of each member
  --predict_file FILE  texts to predict labels for; labels optional
  --output_dir FOLDER  where results.json and predictions.jsonl go (default: outputs/ensemble)
  --top_k N            labels of each text in predictions.jsonl (default: 10)
  --candidates N       best labels that each model brings in; a label that none brings in cannot win (default: 50)

The other options for data, metrics and the device are those of `glocal-xml train --help`.

example: glocal-xml ensemble outputs/tree-0 outputs/tree-1 outputs/tree-2 --test_file test.jsonl
"""


def main(argv: list[str]) -> dict[str, Any]:
    """Runs the ensemble that the arguments ask for and returns what `results.json` holds."""
    if any(argument in ("-h", "--help") for argument in argv):
        print(USAGE, end="")
        return {}
    members = list(takewhile(lambda argument: not argument.startswith("-"), argv))
    parser = argparse.ArgumentParser(prog="glocal-xml ensemble", add_help=False, allow_abbrev=False)
    parser.add_argument("--top_k", type=int, default=10)
    parser.add_argument("--candidates", type=int, default=50)
    own, rest = parser.parse_known_args(argv[len(members) :])
    start_logging()
    model_args, data_args, args = parse_arguments(["--output_dir", f"outputs/{ENSEMBLE}", *rest])
    quieten(args)
    given = [name for name, value in vars(ModelArguments()).items() if getattr(model_args, name) != value]
    if given:
        raise ValueError(
            f"An ensemble is made of trained models, named before all options: leave out {', '.join(given)}."
        )
    return run_ensemble(members, data_args, args, top_k=own.top_k, candidates=own.candidates)


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
        data_args: Files and how to read them.
        args: Ranks of the metrics, folder of the results, batch size and device.
        top_k: How many labels of each text to write to `predictions.jsonl`.
        candidates: How many labels each member brings in.
    """
    started = time.time()
    _check(members, data_args, args)
    for member in members:
        check_run_folder(args.output_dir, resume=None, overwrite=args.overwrite_output, model=member)
    label_space = shared_label_space(members)
    settle_ranks(args, label_space)
    top_k, candidates = min(top_k, label_space.num_labels), min(candidates, label_space.num_labels)
    depth = max(top_k, *args.metrics_at)
    _check_candidates(members, top_k, candidates, depth)
    texts, label_space = load_texts(data_args, label_space, args.seed)
    logger.info("labels: %s", label_space.describe())
    names = member_names(members)
    # All parts at once, so that each model is loaded twice and no more.
    ids, scores, member_ids = ensemble_top_k(
        members,
        concatenate_datasets([part.select_columns("text") for part in texts.values()]),
        label_space,
        args,
        top_k=depth,
        candidates=candidates,
        max_length=data_args.max_length,
    )
    rankings = {ENSEMBLE: ids} | dict(zip(names, member_ids, strict=True))
    results: dict[str, Any] = {
        ENSEMBLE: {
            "members": dict(zip(names, members, strict=True)),
            "top_k": top_k,
            "candidates": candidates,
            "data": vars(data_args),
            **{name: getattr(args, name) for name in ("metrics_at", "propensity_a", "propensity_b", "seed")},
        },
        "data": data_facts(texts, label_space),
        "environment": environment(args),
    }
    lines, first = [], 0
    for name, part in texts.items():
        rows, labels = slice(first, first + len(part)), list(part["labels"])
        first = rows.stop
        if name != "predict":
            results[name] = {
                row: ranking_metrics(best[rows], labels, label_space, args) for row, best in rankings.items()
            }
            logger.info("%s, %d texts\n%s", name, len(part), results_table(results[name], args))
        if name != "validation":
            best, values = ids[rows, :top_k], scores[rows, :top_k]
            lines.extend(prediction_lines(name, part["text"], best, values, labels, label_space))
    results["seconds"] = round(time.time() - started, 1)
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    clear_run_folder(args.output_dir)
    if lines:
        logger.info("predictions: %s", write_predictions(args.output_dir, lines))
    logger.info("results: %s", write_results(args.output_dir, results))
    return results


def shared_label_space(members: Sequence[str]) -> LabelSpace:
    """The label space of the first model; another one with other labels, or in another order, is an error."""
    label_space = trained_label_space(members[0])
    for member in members[1:]:
        names, other = label_space.names, trained_label_space(member).names
        place = next((i for i, (name, there) in enumerate(zip(names, other, strict=False)) if name != there), None)
        if place is None and len(names) != len(other):
            place = min(len(names), len(other))
        if place is not None:
            found = [repr(each[place]) if place < len(each) else "missing" for each in (names, other)]
            raise ValueError(
                f"Label {place} is {found[0]} in {members[0]} and {found[1]} in {member}, but members of an ensemble "
                "must have the same labels in the same order: train them on the same texts, or all with the same "
                "`--label_names_file`."
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


def _check(members: Sequence[str], data_args: DataArguments, args: XMTCTrainingArguments) -> None:
    if len(members) < 2:
        raise ValueError(
            f"An ensemble needs two models or more, got {len(members)}: `glocal-xml ensemble MODEL MODEL … [OPTIONS]`."
        )
    check_arguments(ModelArguments(model=members[0]), data_args, training=False)
    given = {"train_file": data_args.train_file, "streaming": data_args.streaming}
    unfit = [
        name for name, value in (given | {"resume_from_checkpoint": args.resume_from_checkpoint}).items() if value
    ]
    if unfit:
        raise ValueError(
            f"An ensemble trains nothing and goes over its texts several times: leave out {', '.join(unfit)}."
        )
    if args.world_size > 1:
        raise ValueError(
            f"An ensemble runs in one process, this is one of {args.world_size}: start it by `glocal-xml ensemble`."
        )


def _check_candidates(members: Sequence[str], top_k: int, candidates: int, depth: int) -> None:
    if top_k < 1:
        raise ValueError(f"`top_k` must be at least 1, got {top_k}.")
    if candidates < depth:
        raise ValueError(
            f"`candidates` is {candidates}, but {depth} labels are to be ranked by `top_k` and `metrics_at`: pass "
            f"`--candidates {depth}` or more."
        )
    for member in members:
        shortlist = getattr(AutoConfig.from_pretrained(member), "shortlist", None)
        if shortlist is not None and shortlist < candidates:
            raise ValueError(
                f"`candidates` is {candidates}, but {member} has a shortlist of {shortlist} labels: pass "
                f"`--candidates {shortlist}`, or raise `shortlist` in its config.json."
            )
