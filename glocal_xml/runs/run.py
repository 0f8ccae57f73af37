"""One run from files to results: train, evaluate, predict. Behind `examples/run_xmtc.py` and `glocal-xml train`."""

import logging
import sys
import time
from pickle import UnpicklingError
from typing import Any

import datasets
import transformers
from transformers import set_seed

from glocal_xml.data import LabelSpace
from glocal_xml.hub.model_card import card_of_run
from glocal_xml.hub.run_files import BASELINE, write_card, write_results
from glocal_xml.interruption import terminated_like_ctrl_c
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.processes import check_together
from glocal_xml.training.rankings import FINAL, final_name, result_rows
from glocal_xml.training.run_facts import data_facts, environment, peak_memory_gb, run_settings
from glocal_xml.training.trainer import XMTCTrainer
from glocal_xml.training.whole_checkpoints import last_good_checkpoint

from .experts import RunExperts, blend_of_run, judge_blend
from .model import build_model, check_length, default_rates, freeze_layers, late_loss
from .prepare import (
    check_arguments,
    follow_validation,
    load_texts,
    load_tokenizer,
    settle_metrics,
    trained_label_space,
)
from .repeated_texts import warn_of_repeated_texts
from .report import frequency_baseline, hub_ids, results_table
from .run_folder import check_run_folder, check_same_labels, clear_run_folder, prediction_lines, write_predictions
from .time_plan import has_time, plan_time
from .token_columns import with_whole_texts
from .tree import tree_of_run
from .windows import check_windows, tokens_of_run

logger = logging.getLogger("glocal_xml")


def start_logging() -> None:
    """Lines on standard output; before arguments are read, since reading them may warn."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stdout)


def quieten(args: XMTCTrainingArguments) -> None:
    """One voice among several processes, and progress bars only where they are wanted."""
    if args.process_index > 0:
        logger.setLevel(logging.WARNING)
    if args.disable_tqdm:
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()


def run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    train_rows: datasets.Dataset | None = None,
) -> dict[str, Any]:
    """
    Trains where there are training texts, then evaluates and predicts where there are texts for it.

    Args:
        model_args: Which model to train or to use.
        data_args: Where texts and labels come from.
        args: How to train, and where results go.
        train_rows: Training texts in memory instead of a file, with the columns `text` and `labels` (names).
    """
    started = time.time()
    training = (
        train_rows is not None
        or data_args.train_file is not None
        or (data_args.dataset_name is not None and model_args.model is None)
    )
    check_arguments(model_args, data_args, training)
    check_windows(data_args)
    if args.label_shards != 1:
        raise ValueError(
            f"`label_shards` is {args.label_shards}, but Trainer trains whole label tables only: use "
            "`examples/run_xmtc_no_trainer.py`, which reads the same flags and recipes, or leave it at 1."
        )
    check_together(args.world_size)
    checkpoint = check_run_folder(
        args.output_dir,
        resume=args.resume_from_checkpoint,
        overwrite=args.overwrite_output,
        model=model_args.model,
    )
    set_seed(args.seed)
    logger.info("%d process(es) on %s, seed %d", args.world_size, args.device.type, args.seed)

    known = trained_label_space(model_args.model) if model_args.model is not None else None
    with args.main_process_first(desc="reading"):
        texts, label_space = load_texts(data_args, known, args.seed, train_rows, training and args.blend)
    if training and not data_args.streaming:
        warn_of_repeated_texts(texts)
    if checkpoint is not None:
        check_same_labels(checkpoint, label_space.names)
    if training and data_args.streaming and model_args.experts:
        logger.warning("No experts: they are fitted on all training texts at once, and a stream is read in parts.")
        model_args.experts = []
    tokenizer = load_tokenizer(model_args, data_args.max_length, texts)
    logger.info("labels: %s", label_space.describe())
    tree = tree_of_run(
        model_args,
        texts,
        label_space,
        args.output_dir,
        resume=checkpoint is not None,
        is_main_process=args.process_index == 0,
        main_process_first=args.main_process_first,
        show_progress=not args.disable_tqdm,
    )
    model = build_model(model_args, label_space, tokenizer, tree)
    if model.text_experts() or (training and model_args.model is None and model_args.experts):
        with args.main_process_first(desc="tokenising"):
            texts = {name: with_whole_texts(part, tokenizer) for name, part in texts.items()}
    experts = RunExperts(model_args, data_args, args, texts, label_space, tokenizer)
    if training:
        # Of a trained model it would be that of other weights.
        model.set_blend(None, None)
        if warning := late_loss(model.config, args):
            logger.warning(warning)
        if model_args.model is not None:
            experts.take_over(model)
        elif model_args.experts:
            experts.fit(model)
    # Training has no use for the experts, and its checkpoints and evaluations are those of the heads.
    fitted = {name: (expert, getattr(model.config, name)) for name, expert in model.text_experts().items()}
    trains_heads = training and model.encoder is not None
    if trains_heads:
        for name in fitted:
            model.set_expert(name, None, None)
        default_rates(args, model)
        freeze_layers(model.encoder, args.frozen_layers)
    budget = None
    if trains_heads and args.minutes is not None:
        budget = plan_time(args, data_args, model, texts, tokenizer, started, experts.seconds)
    check_length(model, tokenizer.model_max_length)
    with args.main_process_first(desc="tokenising"):
        tokens = {
            name: tokens_of_run(part, tokenizer, data_args, training=name == "train") for name, part in texts.items()
        }
    if data_args.windows is not None and training:
        logger.info("windows: %d of %d training texts", len(tokens["train"]), len(texts["train"]))
    # Results tell what was used, also where it was left to the defaults or to a trained model.
    model_args.model_type, data_args.max_length = model.config.model_type, tokenizer.model_max_length
    follow_validation(args, "validation" in tokens and budget is None)
    settle_metrics(args, model, label_space)
    trainer = XMTCTrainer(
        args=args,
        label_space=label_space,
        model=model,
        processing_class=tokenizer,
        train_dataset=tokens.get("train"),
        eval_dataset=tokens.get("validation"),
        windows=data_args.windows,
        time_budget=budget,
    )
    results: dict[str, Any] = {
        "settings": run_settings(model_args, data_args, args),
        "hub_ids": hub_ids(model_args, data_args),
        "data": data_facts(texts, label_space),
        "environment": environment(args),
    }
    # Only now, when everything is known to be in order.
    if checkpoint is None and trainer.is_world_process_zero():
        clear_run_folder(args.output_dir)
    if trains_heads:
        results["training"] = train(trainer, checkpoint) | trainer.training_facts.facts
        for name, (expert, sizes) in fitted.items():
            model.set_expert(name, expert, sizes)
    if training:
        # Without texts to tell by, nothing is known.
        results["collapsed"] = None
        if args.blend and (fitted or "validation" in texts):
            results["blend"] = blend_of_run(model, texts, label_space, tokenizer, args.threshold_f)
        # Before validation texts are learned too.
        results |= judge(trainer, texts, tokens, label_space, ["validation"])
        if fitted and args.refit_experts and has_time(args, started, experts.seconds):
            experts.refit(model)
        # Not to the Hub yet, for which `save_model` would be the sign.
        trainer.save_model(_internal_call=True)
        results["training_seconds"] = round(time.time() - started, 1)
        if args.minutes is not None:
            logger.info("saved after %.0f of %.0f s", results["training_seconds"], 60 * args.minutes)
    judged = judge(trainer, texts, tokens, label_space, ["test", "predict"] if training else None)
    # Validation texts tell first.
    results |= {name: value for name, value in judged.items() if name != "collapsed" or results[name] is None}
    if model.config.blend is not None and "test" in texts and not data_args.streaming:
        thresholds = results.get("blend", {}).get("branch_thresholds")
        results["probabilities"] = judge_blend(model, texts["test"], label_space, tokenizer, thresholds)
    results["seconds"] = round(time.time() - started, 1)
    results["peak_memory_gb"] = peak_memory_gb()
    if trainer.is_world_process_zero():
        logger.info("results: %s", write_results(args.output_dir, results))
        if training:
            card = write_card(args.output_dir, card_of_run(args.output_dir)[1])
            logger.info("model card: %s", card or "README.md was there already; `glocal-xml card` prints the card")
    if training and args.push_to_hub:
        trainer.run_results = results
        trainer.push_to_hub()
    trainer.end()
    return results


def train(trainer: XMTCTrainer, checkpoint: str | None) -> dict[str, float]:
    """Trains to the end; an interruption says where the run stands and how to resume it."""
    try:
        with terminated_like_ctrl_c():
            return trainer.train(resume_from_checkpoint=checkpoint).metrics
    except KeyboardInterrupt:
        last = last_good_checkpoint(trainer.args.output_dir)
        logger.warning(
            "Interrupted at step %d. %s",
            trainer.state.global_step,
            f"The last checkpoint is {last}; the same command with `--resume_from_checkpoint last` resumes from it."
            if last
            else "No checkpoint had been written yet; smaller `--save_steps` with `--save_strategy steps` write more.",
        )
        raise SystemExit(130) from None
    except UnpicklingError as error:
        # Checkpoints hold numbers; anything else in their files is refused, not run.
        raise ValueError(f"{checkpoint} cannot be resumed from: {str(error).splitlines()[0]}") from error


def judge(
    trainer: XMTCTrainer,
    texts: dict[str, Any],
    tokens: dict[str, Any],
    label_space: LabelSpace,
    parts: list[str] | None = None,
) -> dict[str, Any]:
    """Metrics on validation and test texts, beside those of the most frequent labels; predictions as names."""
    results, lines = {}, []
    for part in parts or ("validation", "test", "predict"):
        if part not in tokens:
            continue
        output = trainer.predict(tokens[part], metric_key_prefix=part)
        if part != "predict":
            rows = result_rows(output.metrics, part, final_name(trainer.model))
            rows[BASELINE] = frequency_baseline(output.label_ids, label_space, trainer.args)
            results[part] = rows
            if trainer.train_dataset is not None and "collapsed" not in results:
                results["collapsed"] = trainer.collapse_watch.conclude(output.predictions[FINAL], output.label_ids)
            logger.info("%s, %d texts\n%s", part, len(output.label_ids), results_table(rows, trainer.args))
        if part != "validation":
            best, scores = output.predictions[FINAL], output.predictions["scores"]
            true_labels = texts[part]["labels"]
            lines.extend(prediction_lines(part, texts[part]["text"], best, scores, true_labels, label_space))
    if lines and trainer.is_world_process_zero():
        logger.info("predictions: %s", write_predictions(trainer.args.output_dir, lines))
    return results
