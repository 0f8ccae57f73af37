"""One run from files to results: train, evaluate, predict. Behind `examples/run_xmtc.py` and `glocal-xml train`."""

import logging
import platform
import signal
import sys
import time
from importlib.metadata import version
from typing import Any

import datasets
import numpy as np
import torch
import transformers
from transformers import AutoModel, AutoTokenizer, set_seed

from glocal_xml.data import LabelSpace, load_hub_dataset, load_xmtc_dataset, split_validation, tokenize
from glocal_xml.metrics import xmtc_metrics
from glocal_xml.modeling import FAMILIES, XMTCPreTrainedModel
from glocal_xml.pretrained import minilm_path

from .arguments import DataArguments, ModelArguments, XMTCTrainingArguments, parse_arguments
from .run_folder import last_good_checkpoint, prepare_run_folder, write_predictions, write_results
from .trainer import FINAL, XMTCTrainer

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

    known = LabelSpace.load(model_args.model) if model_args.model is not None else None
    with args.main_process_first(desc="reading the data"):
        texts, label_space = load_texts(data_args, known, args.seed)
    logger.info("labels: %s", label_space.describe())
    tokenizer = AutoTokenizer.from_pretrained(model_args.model or encoder_path(model_args.encoder))
    with args.main_process_first(desc="tokenising"):
        tokens = {name: tokenize(part, tokenizer, data_args.max_length) for name, part in texts.items()}
    model = build_model(model_args, label_space)

    if "validation" not in tokens:
        args.eval_strategy, args.load_best_model_at_end, args.metric_for_best_model = "no", False, None
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


def check_arguments(model_args: ModelArguments, data_args: DataArguments, training: bool) -> None:
    """Refuses runs that could only fail later."""
    if not (training or data_args.test_file or data_args.predict_file or data_args.dataset_name):
        raise ValueError("Nothing to do: pass `--train_file`, `--test_file`, `--predict_file` or `--dataset_name`.")
    if model_args.model is None and model_args.encoder is None:
        raise ValueError("Pass `--encoder` (folder, Hub id or minilm) to train, or `--model` to use a trained model.")
    if not training and model_args.model is None:
        raise ValueError("Without `--train_file` a trained model is needed: pass `--model`.")
    if data_args.validation_file is not None and data_args.validation_file == data_args.test_file:
        raise ValueError("The validation file is the test file: the best checkpoint would be chosen on test data.")


def encoder_path(name: str | None) -> str | None:
    """Resolves the short name of the encoder that comes as a package."""
    return minilm_path() if name == "minilm" else name


def load_texts(
    data_args: DataArguments, label_space: LabelSpace | None, seed: int
) -> tuple[dict[str, Any], LabelSpace]:
    """Train, validation, test and predict parts with `text` and `labels`, and their label space."""
    columns = {"text_column": data_args.text_column, "labels_column": data_args.labels_column}
    reader = {
        **columns,
        "file_format": data_args.file_format,
        "label_delimiter": data_args.label_delimiter,
        "label_map": data_args.label_map,
    }
    if data_args.dataset_name is not None:
        files = load_hub_dataset(
            data_args.dataset_name, config=data_args.dataset_config, streaming=data_args.streaming, **columns
        )
        if label_space is not None:
            files.pop("train", None)
    else:
        names = ("train", "validation", "test")
        files = {name: getattr(data_args, f"{name}_file") for name in names}
        files = {name: path for name, path in files.items() if path is not None}
    taxonomy = None
    if data_args.label_names_file is not None:
        with open(data_args.label_names_file, encoding="utf-8-sig") as file:
            taxonomy = [line.strip() for line in file if line.strip()]
    texts: Any = {}
    if files:
        texts, label_space = load_xmtc_dataset(
            files,
            label_space=label_space,
            label_names=taxonomy,
            streaming=data_args.streaming,
            bad_rows=data_args.bad_rows,
            **reader,
        )
    texts = dict(texts)
    if data_args.predict_file is not None:
        texts["predict"] = load_xmtc_dataset(
            {"test": data_args.predict_file},
            label_space=label_space,
            bad_rows=data_args.bad_rows,
            allow_no_labels=True,
            **reader,
        )[0]["test"]
    return take_parts(texts, data_args, seed), label_space


def take_parts(texts: dict[str, Any], data_args: DataArguments, seed: int) -> dict[str, Any]:
    """Random parts where fewer texts are asked for, then the validation part of the training texts."""
    limits = {"train": data_args.max_train_texts, "test": data_args.max_test_texts}
    for name, limit in limits.items():
        if name in texts and limit is not None and isinstance(texts[name], datasets.Dataset):
            texts[name] = texts[name].shuffle(seed=seed).select(range(min(limit, len(texts[name]))))
    if "train" in texts and "validation" not in texts and data_args.validation_size:
        size = data_args.validation_size
        texts["train"], texts["validation"] = split_validation(
            texts["train"], fraction_or_size=size if size < 1 else int(size), seed=seed
        )
    return texts


def build_model(model_args: ModelArguments, label_space: LabelSpace) -> XMTCPreTrainedModel:
    """A trained model, or a new one around a pretrained encoder."""
    if model_args.model is not None:
        return AutoModel.from_pretrained(model_args.model, dtype=torch.float32, **model_args.model_config)
    family = next(model for config, model in FAMILIES.items() if config.model_type == model_args.model_type)
    model = family.from_encoder(
        encoder_path(model_args.encoder), label_names=label_space.names, **model_args.model_config
    )
    if getattr(model.config, "label_bias", False):
        model.start_label_bias(label_space.log_odds())
    return model


def train(trainer: XMTCTrainer, checkpoint: str | None) -> dict[str, float]:
    """Trains to the end; an interruption says where the run stands and how to go on."""
    # A polite request to stop gets the same answer as Ctrl-C.
    previous = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
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


def judge(
    trainer: XMTCTrainer, texts: dict[str, Any], tokens: dict[str, Any], label_space: LabelSpace
) -> dict[str, Any]:
    """Metrics on validation and test texts, beside always predicting the most frequent labels; predictions as names."""
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


def result_rows(metrics: dict[str, float], prefix: str) -> dict[str, dict[str, float]]:
    """Metrics by branch: the final ranking as `both`, then each branch."""
    rows: dict[str, dict[str, float]] = {FINAL: {}}
    for name, value in metrics.items():
        branch, _, metric = name.removeprefix(f"{prefix}_").rpartition("/")
        rows.setdefault(branch or FINAL, {})[metric] = value
    return rows


def frequency_baseline(
    true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """What predicting the most frequent training labels for every text reaches."""
    most_frequent = np.argsort(-np.asarray(label_space.counts), kind="stable")[: max(args.metrics_at)]
    return xmtc_metrics(
        np.tile(most_frequent, (len(true_labels), 1)),
        true_labels,
        ks=[k for k in args.metrics_at if k <= len(most_frequent)],
        inverse_propensities=label_space.inverse_propensities(args.propensity_a, args.propensity_b),
        bands=label_space.bands(),
        num_labels=label_space.num_labels + len(label_space.unseen),
    )


def results_table(rows: dict[str, dict[str, float]], args: XMTCTrainingArguments) -> str:
    """A table in percent: P@k, nDCG@k and PSP@k of every branch."""
    largest = max(args.metrics_at)
    columns = [f"precision@{k}" for k in args.metrics_at] + [f"ndcg@{largest}", f"psp@{largest}", f"recall@{largest}"]
    titles = [f"P@{k}" for k in args.metrics_at] + [f"nDCG@{largest}", f"PSP@{largest}", f"R@{largest}"]
    lines = [f"{'':17}" + "".join(f"{title:>9}" for title in titles)]
    for name, values in rows.items():
        cells = (f"{100 * values[column]:9.2f}" if column in values else f"{'-':>9}" for column in columns)
        lines.append(f"{name:17}" + "".join(cells))
    lines.append(f"percent; PSP with A = {args.propensity_a}, B = {args.propensity_b}")
    return "\n".join(lines)


def run_settings(
    model_args: ModelArguments, data_args: DataArguments, args: XMTCTrainingArguments
) -> dict[str, Any]:
    """What decides the result of a run."""
    names = (
        "num_train_epochs max_steps per_device_train_batch_size gradient_accumulation_steps learning_rate "
        "module_learning_rates lr_scheduler_type warmup_steps weight_decay adam_beta1 adam_beta2 adam_epsilon "
        "max_grad_norm train_sampling_strategy metric_for_best_model early_stopping_patience seed fp16 bf16 "
        "propensity_a propensity_b"
    )
    return {
        "model": vars(model_args),
        "data": vars(data_args),
        "training": {name: getattr(args, name) for name in names.split()},
    }


def environment(args: XMTCTrainingArguments) -> dict[str, Any]:
    """Versions and the machine."""
    packages = ("glocal-xml", "torch", "transformers", "accelerate", "datasets", "numpy")
    return {
        **{name: version(name) for name in packages},
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {torch.get_num_threads()} threads, {args.device.type}",
        "processes": args.world_size,
    }
