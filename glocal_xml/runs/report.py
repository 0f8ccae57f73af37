"""What a run says about its result: tables, baselines and what decided it, gathered and written to its folder."""

import logging
import time
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.hub.model_card import card_of_run
from glocal_xml.hub.run_files import BASELINE, write_card, write_results
from glocal_xml.modeling import WordLSTMConfig, XMTCPreTrainedModel
from glocal_xml.pretrained import MINILM_HUB_ID
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.collapse import CollapseWatch
from glocal_xml.training.rankings import FINAL, branch_metrics, final_name, ranking_metrics, result_rows
from glocal_xml.training.run_facts import data_facts, environment, hardware, peak_memory_gb, run_settings

from .blend import judge_blend
from .run_data import RunData
from .run_folder import prediction_lines, write_predictions

logger = logging.getLogger("glocal_xml")


class RunReport:
    """
    What a run found, and what decided it: `results`, which `save` writes as `results.json`, with `predictions.jsonl`
    and the model card. What tells whether a model has collapsed, `collapse_watch`, is there where it was trained;
    `started` is in seconds since the epoch.
    """

    def __init__(
        self,
        model_args: ModelArguments,
        data_args: DataArguments,
        args: XMTCTrainingArguments,
        data: RunData,
        model: XMTCPreTrainedModel,
        *,
        collapse_watch: CollapseWatch | None = None,
        started: float | None = None,
    ):
        self.args, self.data, self.model, self.collapse_watch = args, data, model, collapse_watch
        self.started = time.time() if started is None else started
        # Results tell what was used, also where it was left to the defaults or to a trained model.
        model_args.model_type, data_args.max_length = model.config.model_type, data.tokenizer.model_max_length
        self.results: dict[str, Any] = {
            "settings": run_settings(model_args, data_args, args),
            "hub_ids": hub_ids(model_args, data_args),
            "data": data_facts(data.texts, data.label_space),
            "environment": environment(args),
        }
        if collapse_watch is not None:
            # Without texts to tell by, nothing is known.
            self.results["collapsed"] = None
        self._lines: list[dict[str, Any]] = []

    def add_training(self, facts: dict[str, Any] | None = None) -> None:
        """Adds what training took, with what else is known of it, such as steps and the curve of the loss."""
        machine = {"hardware": hardware(self.args.device), "peak_memory_gb": peak_memory_gb()}
        self.results["training"] = machine | (facts or {})

    def add_part(
        self,
        name: str,
        rankings: dict[str, np.ndarray],
        true_labels: np.ndarray,
        metrics: dict[str, float] | None = None,
    ) -> None:
        """
        Adds metrics of a part beside those of the most frequent labels, which the log shows as a table, and
        predictions as names of labels: `validation`, `test`, or `predict`, of texts whose labels do not count.
        Rankings and true labels are as of `XMTCTrainer.predict` or [`gather_rankings`]; metrics may be known already.
        """
        label_space = self.data.label_space
        if name != "predict":
            if metrics is None:
                metrics = branch_metrics(rankings, true_labels, label_space, self.args)
            rows = result_rows(metrics, name, final_name(self.model))
            # What predicting the most frequent training labels for every text reaches.
            best = np.argsort(-np.asarray(label_space.counts), kind="stable")[: max(self.args.metrics_at)]
            same = np.tile(best, (len(true_labels), 1))
            rows[BASELINE] = ranking_metrics(same, true_labels, label_space, self.args)
            self.results[name] = rows
            # Validation texts tell first.
            if self.collapse_watch is not None and self.results["collapsed"] is None:
                self.results["collapsed"] = self.collapse_watch.conclude(rankings[FINAL], true_labels)
            # How many a stream has is known when it has been read.
            self.results["data"]["texts"].setdefault(name, len(true_labels))
            logger.info("%s, %d texts\n%s", name, len(true_labels), results_table(rows, self.args))
        if name != "validation":
            part, ranked = self.data.texts[name], (rankings[FINAL], rankings["scores"])
            self._lines.extend(prediction_lines(name, part["text"], *ranked, part["labels"], label_space))

    def add_probabilities(self) -> None:
        """Adds how good the probabilities of the blend are on the test texts, where there are both."""
        # A stream would have to be read once more.
        if self.model.config.blend is not None and isinstance(self.data.texts.get("test"), Dataset):
            thresholds = self.results.get("blend", {}).get("branch_thresholds", {})
            self.results["probabilities"] = judge_blend(
                self.model, self.data.texts["test"], self.data.label_space, self.data.tokenizer, thresholds
            )

    def save(self) -> None:
        """Writes results, predictions and, of a run that trained, the model card; the first process does."""
        self.results["seconds"] = round(time.time() - self.started, 1)
        self.results["peak_memory_gb"] = peak_memory_gb()
        if self.args.process_index > 0:
            return
        folder = self.args.output_dir
        if self._lines:
            logger.info("predictions: %s", write_predictions(folder, self._lines))
        logger.info("results: %s", write_results(folder, self.results))
        if self.collapse_watch is not None:
            card = write_card(folder, card_of_run(folder)[1])
            logger.info("model card: %s", card or "README.md was there already; `glocal-xml card` prints the card")


def results_table(rows: dict[str, dict[str, float]], args: XMTCTrainingArguments) -> str:
    """A table in percent: P@k, nDCG@k and PSP@k of every branch."""
    largest = max(args.metrics_at)
    columns = [f"precision@{k}" for k in args.metrics_at] + [f"ndcg@{largest}", f"psp@{largest}", f"recall@{largest}"]
    titles = [f"P@{k}" for k in args.metrics_at] + [f"nDCG@{largest}", f"PSP@{largest}", f"R@{largest}"]
    width = max(17, *map(len, rows))
    lines = [" " * width + "".join(f"{title:>9}" for title in titles)]
    for name, values in rows.items():
        cells = (f"{100 * values[column]:9.2f}" if column in values else f"{'-':>9}" for column in columns)
        lines.append(f"{name:{width}}" + "".join(cells))
    lines.append(f"percent; PSP with A = {args.propensity_a}, B = {args.propensity_b}")
    return "\n".join(lines)


def hub_ids(model_args: ModelArguments, data_args: DataArguments) -> dict[str, str | None]:
    """What the run started from by its id on the Hub; a folder of this machine has none."""
    names = {"base_model": model_args.model or model_args.encoder, "dataset": data_args.dataset_name}
    ids = {what: None if name is None or Path(name).exists() else name for what, name in names.items()}
    # What comes as a package, and what is made in the run.
    short_names = {"minilm": MINILM_HUB_ID, WordLSTMConfig.model_type: None, NO_ENCODER: None}
    if model_args.encoder in short_names:
        ids["base_model"] = short_names[model_args.encoder]
    return ids
