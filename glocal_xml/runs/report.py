"""What a run says about its result: tables, baselines, and what decided it."""

from pathlib import Path

import numpy as np

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LabelSpace
from glocal_xml.modeling import WordLSTMConfig
from glocal_xml.pretrained import MINILM_HUB_ID
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments
from glocal_xml.training.rankings import ranking_metrics


def frequency_baseline(
    true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """What predicting the most frequent training labels for every text reaches."""
    most_frequent = np.argsort(-np.asarray(label_space.counts), kind="stable")[: max(args.metrics_at)]
    return ranking_metrics(np.tile(most_frequent, (len(true_labels), 1)), true_labels, label_space, args)


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

    def hub_id(name: str | None) -> str | None:
        return None if name is None or Path(name).exists() else name

    # What comes as a package, and what is made in the run.
    short_names = {"minilm": MINILM_HUB_ID, WordLSTMConfig.model_type: None, NO_ENCODER: None}
    name = model_args.encoder
    return {
        "base_model": short_names[name] if name in short_names else hub_id(model_args.model or name),
        "dataset": hub_id(data_args.dataset_name),
    }
