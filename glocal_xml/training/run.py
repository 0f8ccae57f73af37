"""One run from files to results: train, evaluate, predict. Behind `examples/run_xmtc.py` and `glocal-xml train`."""

import logging
import signal
import sys
import time
from typing import Any

import datasets
import transformers
from transformers import AutoTokenizer, set_seed

from glocal_xml.data import LabelSpace, tokenize

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments, parse_arguments
from .prepare import build_model, check_arguments, encoder_path, follow_validation, load_texts, trained_label_space
from .report import FINAL, environment, frequency_baseline, result_rows, results_table, run_settings
from .run_folder import last_good_checkpoint, prepare_run_folder, write_predictions, write_results
from .trainer import XMTCTrainer

logger = logging.getLogger("glocal_xml")


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Runs what the arguments ask for and returns what `results.json` holds."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S", level=logging.INFO, stream=sys.stdout)
    model_args, data_args, args = parse_arguments(sys.argv[1:] if argv is None else argv)
    if args.disable_tqdm:
        datasets.disable_progress_bars()
        transformers.utils.logging.disable_progress_bar()
    return run(model_args, data_args, args)


def run(model_args: ModelArguments, data_args: DataArguments, args: XMTCTrainingArguments) -> dict[str, Any]:
    """Trains where there are training texts, then evaluates and predicts where there are texts for it."""
    started = time.time()
    training = data_args.train_file is not None or (data_args.dataset_name is not None and model_args.model is None)
    check_arguments(model_args, data_args, training)
    checkpoint = None
    with args.main_process_first(desc="preparing the output folder"):
        if args.process_index == 0 or args.resume_from_checkpoint is not None:
            checkpoint = prepare_run_folder(
                args.output_dir, resume=args.resume_from_checkpoint, overwrite=args.overwrite_output
            )
    set_seed(args.seed)
    logger.info("%d process(es) on %s, seed %d", args.world_size, args.device.type, args.seed)

    known = trained_label_space(model_args.model) if model_args.model is not None else None
    with args.main_process_first(desc="reading the data"):
        texts, label_space = load_texts(data_args, known, args.seed)
    logger.info("labels: %s", label_space.describe())
    tokenizer = AutoTokenizer.from_pretrained(model_args.model or encoder_path(model_args.encoder))
    with args.main_process_first(desc="tokenising"):
        tokens = {name: tokenize(part, tokenizer, data_args.max_length) for name, part in texts.items()}
    model = build_model(model_args, label_space)

    follow_validation(args, "validation" in tokens)
    trainer = XMTCTrainer(
        args=args,
        label_space=label_space,
        model=model,
        processing_class=tokenizer,
        train_dataset=tokens.get("train"),
        eval_dataset=tokens.get("validation"),
    )
    results: dict[str, Any] = {"settings": run_settings(model_args, data_args, args), "environment": environment(args)}
    if training:
        results["training"] = train(trainer, checkpoint)
        trainer.save_model()
    results |= judge(trainer, texts, tokens, label_space)
    results["seconds"] = round(time.time() - started, 1)
    if trainer.is_world_process_zero():
        logger.info("results: %s", write_results(args.output_dir, results))
    trainer.end()
    return results


def train(trainer: XMTCTrainer, checkpoint: str | None) -> dict[str, float]:
    """Trains to the end; an interruption says where the run stands and how to go on."""
    # A polite request to stop gets the same answer as Ctrl-C; SIGINT itself may be ignored in the background.
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        metrics = trainer.train(resume_from_checkpoint=checkpoint).metrics
    except KeyboardInterrupt:
        last = last_good_checkpoint(trainer.args.output_dir)
        logger.warning(
            "Interrupted at step %d. %s",
            trainer.state.global_step,
            f"The last checkpoint is {last}; the same command with `--resume_from_checkpoint last` goes on from it."
            if last
            else "No checkpoint had been written yet; smaller `--save_steps` with `--save_strategy steps` write more.",
        )
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, previous)
    return metrics


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def judge(
    trainer: XMTCTrainer, texts: dict[str, Any], tokens: dict[str, Any], label_space: LabelSpace
) -> dict[str, Any]:
    """Metrics on validation and test texts, beside those of the most frequent labels; predictions as names."""
    results = {}
    for part in ("validation", "test", "predict"):
        if part not in tokens:
            continue
        output = trainer.predict(tokens[part], metric_key_prefix=part)
        if part != "predict":
            rows = result_rows(output.metrics, part)
            rows["label frequency"] = frequency_baseline(output.label_ids, label_space, trainer.args)
            results[part] = rows
            logger.info("%s, %d texts\n%s", part, len(output.label_ids), results_table(rows, trainer.args))
        if part != "validation" and trainer.is_world_process_zero():
            names = label_space.names + label_space.unseen
            path = write_predictions(
                trainer.args.output_dir,
                texts[part]["text"],
                output.predictions[FINAL],
                output.predictions["scores"],
                names,
                [label_space.decode(ids) for ids in texts[part]["labels"]],
            )
            logger.info("predictions: %s", path)
    return results
