"""
What `glocal-xml train` would take with the same recipe and options: parameters, memory by part and at its peak,
products of a step, and a guess of the time on this machine. Where the memory does not suffice, it proposes settings
that fit. Nothing large is allocated: the model has shapes only, and parts of it are run in miniature for some seconds
to see how fast the machine is. For training in single precision on CPUs, in one process.

All other options are those of `glocal-xml train --help`. With a training file, texts and labels are counted as in
training. What a label tree takes to be built is not part of it. word_lstm and static negatives are refused: what they
take is not known. With level_epochs, all epochs are taken for those of the last level.

examples:
  glocal-xml estimate examples/recipes/debtags/glocal_xml.yaml --per_device_train_batch_size 64
  glocal-xml estimate --encoder minilm --num_labels 500000 --max_length 128 --label_tree '{}' --memory_gb 16
"""

import argparse
import dataclasses
import json
from typing import Any

from glocal_xml.arguments import DataArguments, ModelArguments
from glocal_xml.atomic_file import write_atomically

from .command_parser import command_parser

_GB = 1e9


def main(argv: list[str]) -> Any:
    """Prints the estimate that the arguments ask for, and returns it."""
    parser = command_parser("estimate", __doc__, usage="%(prog)s [RECIPE.yaml] [OPTIONS]")
    parser.add_argument(
        "--memory_gb",
        type=float,
        metavar="N",
        help="gigabytes (10^9 bytes) that must suffice; default: what is free",
    )
    parser.add_argument("--num_labels", type=int, metavar="N", help="instead of a training file: the number of labels")
    parser.add_argument(
        "--num_texts",
        type=int,
        default=100_000,
        metavar="N",
        help="and of training texts, all of which have --max_length tokens (default: %(default)s)",
    )
    parser.add_argument(
        "--labels_per_text", type=float, default=5.0, metavar="N", help="and labels of a text (default: 5)"
    )
    parser.add_argument("--output", metavar="FILE", help="write all figures as JSON")
    own, train_argv = parser.parse_known_args(argv)
    if not argv:
        parser.print_help()
        return None
    import psutil

    from glocal_xml.estimate import estimate_run
    from glocal_xml.estimate.estimate import Plan, proposals
    from glocal_xml.runs.run import quieten
    from glocal_xml.training import parse_arguments

    # Before anything is read or run: what the packages alone take.
    process = psutil.Process().memory_info().rss
    limit = psutil.virtual_memory().available + process
    model_args, data_args, args = parse_arguments(train_argv, prog=parser.prog)
    quieten(args)
    limit = limit if own.memory_gb is None else int(own.memory_gb * _GB)
    plan = Plan(model_args, args, read_workload(own, model_args, data_args, args.seed))
    estimate = estimate_run(plan.config(), plan.workload, args, process)
    found = proposals(plan, process, limit) if estimate.memory_bytes["peak"] > limit else []
    print("\n".join(rendered(estimate, plan, limit, found)))
    if own.output is not None:
        figures = {**dataclasses.asdict(estimate), "limit_bytes": limit, "proposals": [vars(one) for one in found]}
        write_atomically(own.output, json.dumps(figures, indent=2) + "\n")
    return estimate


def read_workload(own: argparse.Namespace, model_args: ModelArguments, data_args: DataArguments, seed: int) -> Any:
    """The `Workload` of the training file, or the one that numbers describe."""
    from glocal_xml.estimate.planned_model import check_encoder, described_workload, measured_workload
    from glocal_xml.runs.prepare import check_arguments, load_texts, load_tokenizer, trained_label_space

    has_data = data_args.train_file is not None or data_args.dataset_name is not None
    if has_data == (own.num_labels is not None):
        raise ValueError("Pass either training texts (`--train_file`, a recipe) or `--num_labels`.")
    check_arguments(model_args, data_args, training=True)
    # Before texts are read, which may take minutes.
    check_encoder(model_args.encoder)
    if has_data:
        known = None if model_args.model is None else trained_label_space(model_args.model)
        texts, label_space = load_texts(data_args, known, seed)
        return measured_workload(texts, label_space, load_tokenizer(model_args, data_args.max_length, texts))
    tokenizer = load_tokenizer(model_args, data_args.max_length, {})
    return described_workload(
        tokenizer, num_labels=own.num_labels, num_texts=own.num_texts, labels_per_text=own.labels_per_text
    )


def rendered(estimate: Any, plan: Any, limit: int, found: list[Any]) -> list[str]:
    """The estimate, for a plan, and proposals as lines of text."""
    from glocal_xml.estimate import in_words

    workload, peak, flops = plan.workload, estimate.memory_bytes["peak"], estimate.step_flops
    parameters = {**estimate.parameters, "all": sum(estimate.parameters.values())}
    tables = {
        "parameters": {name: f"{number:,}" for name, number in parameters.items()},
        "memory, GB": {name: f"{size / _GB:.2f}" for name, size in estimate.memory_bytes.items()},
        "products of a batch, GFLOP": {k: f"{v / 1e9:.1f}" for k, v in {**flops, "all": sum(flops.values())}.items()},
        "seconds of a step": {name: f"{number:.3f}" for name, number in estimate.step_seconds.items()},
    }
    lines = [
        f"{plan.config().model_type}: {workload.num_labels:,} labels, {workload.num_texts:,} texts",
        f"a batch has {estimate.texts_of_a_batch} texts of {estimate.tokens_of_a_text} tokens on average, "
        f"{workload.longest} at most",
    ]
    for title, rows in tables.items():
        lines += [title, *(f"  {name:24}{value:>16}" for name, value in rows.items())]
    if estimate.rows_in_play_in_an_epoch is not None:
        lines.append(
            f"An epoch updates about {estimate.rows_in_play_in_an_epoch:.0%} of the rows of the label tables."
        )
    lines.append(
        f"{estimate.steps:,} steps and the evaluations: about {in_words(estimate.run_seconds)} on this machine"
    )
    if peak <= limit:
        return [*lines, f"It fits: {peak / _GB:.1f} of {limit / _GB:.1f} GB."]
    lines.append(f"It does not fit: {peak / _GB:.1f} GB are needed, there are {limit / _GB:.1f}.")
    lines.append("What fits:" if found else "Nothing that is known here makes it fit: take a smaller encoder.")
    return lines + [f"  {proposal}   ({proposal.peak / _GB:.1f} GB; {proposal.effect})" for proposal in found]
