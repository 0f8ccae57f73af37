"""One run from files to results: train, evaluate, predict. Behind `glocal-xml train` and `fit`."""

import logging
import sys
import time
from typing import Any

import datasets
import transformers
from transformers import set_seed
from transformers.trainer_utils import SaveStrategy

from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments, check_together
from glocal_xml.training.callbacks import TimeBudget
from glocal_xml.training.trainer import XMTCTrainer
from glocal_xml.training.whole_checkpoints import last_good_checkpoint

from .blend import blend_of_run
from .experts import RunExperts
from .model import check_frozen_encoder, check_length, default_rates, freeze_layers, late_loss, model_of_run
from .prepare import check_arguments, follow_validation, settle_metrics, trained_label_space
from .report import RunReport
from .resume import last_state, resumable
from .run_data import read_data, warn_of_known_texts
from .run_folder import check_run_folder, clear_run_folder
from .split_labels import check_label_shards
from .time_plan import has_time, plan_time
from .token_columns import check_windows

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


def start_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    *,
    training: bool = True,
    with_trainer: bool = True,
) -> str | None:
    """
    Checks what is asked for and the folder of the run, seeds random numbers, and returns the checkpoint to resume
    from, if any. Experts that the run cannot have are left out, with a warning. A loop of your own, without
    `XMTCTrainer`, may split labels over processes, and resumes from what [`LoopState`] has saved.
    """
    quieten(args)
    check_arguments(model_args, data_args, training)
    check_windows(data_args)
    if not with_trainer:
        check_label_shards(args.label_shards)
        # After every epoch it saves a state, and evaluates.
        args.save_strategy = SaveStrategy.EPOCH
    elif args.label_shards != 1:
        raise ValueError(
            f"`label_shards` is {args.label_shards}, but Trainer trains whole label tables only: use "
            "`examples/run_xmtc_no_trainer.py`, which reads the same flags and recipes, or leave it at 1."
        )
    check_together(args.world_size)
    checkpoint = check_run_folder(
        args.output_dir,
        # A loop keeps one state, whichever is asked for.
        resume=args.resume_from_checkpoint if with_trainer else args.resume_from_checkpoint and "last",
        overwrite=args.overwrite_output,
        model=model_args.model,
        find_last=last_good_checkpoint if with_trainer else last_state,
    )
    set_seed(args.seed)
    logger.info("%d process(es) on %s, seed %d", args.world_size, args.device.type, args.seed)
    if training and data_args.streaming and model_args.experts:
        logger.warning("No experts: they are fitted on all training texts at once, and a stream is read in parts.")
        model_args.experts = []
    if args.label_shards > 1 and (model_args.experts or args.blend):
        logger.warning("No experts and no blend, which are whole in each process: the labels are split.")
        model_args.experts, args.blend = [], False
    return checkpoint


def run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    train_rows: datasets.Dataset | None = None,
) -> dict[str, Any]:
    """
    Trains where there are training texts, then evaluates and predicts where there are texts for it. Training texts may
    be in memory instead of a file (`train_rows`), with the columns `text` and `labels` (names).
    """
    started = time.time()
    training = (
        train_rows is not None
        or data_args.train_file is not None
        or (data_args.dataset_name is not None and model_args.model is None)
    )
    checkpoint = start_run(model_args, data_args, args, training=training)
    known = trained_label_space(model_args.model) if model_args.model is not None else None
    data = read_data(model_args, data_args, args, known, train_rows, training=training, checkpoint=checkpoint)
    model = model_of_run(model_args, args, data, resume=checkpoint is not None)
    if model.text_experts() or (training and model_args.model is None and model_args.experts):
        data.tokenize_whole_texts(args)
    texts, label_space, tokenizer = data.texts, data.label_space, data.tokenizer
    if not training and not data_args.streaming:
        warn_of_known_texts(model, texts)
    experts = RunExperts(model_args, data_args, args, texts, label_space, tokenizer)
    blend = None if model.config.blend is None else (model.config.blend, model.log_frequencies)
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
    plan = budget = None
    if trains_heads and args.minutes is not None:
        plan = plan_time(model_args, data_args, args, model, experts, started)
        budget = TimeBudget(plan.heads, args.warmup_steps if args.warmup_steps < 1 else 0.1)
    is_frozen = trains_heads and bool(args.frozen_encoder if plan is None else plan.frozen)
    if is_frozen and model_args.model is None and model_args.model_type == "glocal_xml":
        # Without the local branch: it reads words, of which no embeddings are kept.
        model_args.model_config = {"branches": "global", **model_args.model_config}
        model = model_of_run(model_args, args, data, resume=True)
    if is_frozen:
        check_frozen_encoder(model, args)
    check_length(model, tokenizer.model_max_length)
    data.tokenize(data_args, args)
    tokens = data.tokens
    if data_args.windows is not None and training:
        logger.info("windows: %d of %d training texts", len(tokens["train"]), len(texts["train"]))
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
    watch = trainer.collapse_watch if training else None
    report = RunReport(model_args, data_args, args, data, model, collapse_watch=watch, started=started)
    # Only now, when everything is known to be in order.
    if checkpoint is None and trainer.is_world_process_zero():
        clear_run_folder(args.output_dir)
    if trains_heads:
        if is_frozen:
            report.add_training(experts.train_heads(model, None if plan is None else plan.heads))
        else:
            with resumable(args.output_dir):
                trained = trainer.train(resume_from_checkpoint=checkpoint)
            report.add_training(trained.metrics | trainer.training_facts.facts)
        for name, (expert, sizes) in fitted.items():
            model.set_expert(name, expert, sizes)
        if is_frozen or plan is None or plan.dense:
            experts.fit_dense(model, None if plan is None else plan.dense)
    if training and args.blend and (model.text_experts() or "validation" in texts):
        # Texts that a memory learns leave the weights of experts as they are.
        earlier = None if trains_heads or experts.are_fitted else blend
        report.results["blend"] = blend_of_run(model, texts, label_space, tokenizer, args.threshold_f, earlier=earlier)
    for part in ("validation", "test", "predict"):
        if part in tokens:
            output = trainer.predict(tokens[part], metric_key_prefix=part)
            report.add_part(part, output.predictions, output.label_ids, output.metrics)
        if part == "validation" and training:
            # Now that validation texts have told how good the model is, experts learn them too.
            if model.text_experts() and args.refit_experts and has_time(args, started, experts.seconds):
                experts.refit(model)
            trainer.save_model()
            report.results["training_seconds"] = round(time.time() - started, 1)
            if args.minutes is not None:
                logger.info("saved after %.0f of %.0f s", report.results["training_seconds"], 60 * args.minutes)
    report.add_probabilities()
    report.save()
    if training and args.push_to_hub:
        trainer.run_results = report.results
        trainer.push_to_hub()
    trainer.end()
    return report.results
