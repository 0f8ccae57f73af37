"""Rankings of a model, and all their metrics; the same everywhere in a run."""

import logging

import numpy as np
import torch

from glocal_xml.data import LabelSpace
from glocal_xml.metrics import xmtc_metrics
from glocal_xml.modeling import XMTCOutput, XMTCPreTrainedModel

from .arguments import XMTCTrainingArguments

logger = logging.getLogger(__name__)
# The final ranking among those of the branches.
FINAL = "final"


def settle_ranks(args: XMTCTrainingArguments, label_space: LabelSpace) -> None:
    """Drops ranks beyond the number of labels."""
    too_deep = [k for k in args.metrics_at if k > label_space.num_labels]
    if too_deep:
        args.metrics_at = [k for k in args.metrics_at if k not in too_deep] or [label_space.num_labels]
        logger.warning("No metrics at %s: there are only %d labels.", too_deep, label_space.num_labels)


def final_name(model: XMTCPreTrainedModel) -> str:
    """
    What results call the final ranking: `blend` where branches are weighed, else `both` of two branches, `all` of
    more, or the only branch there is.
    """
    branches = model.branch_names
    if model.config.blend is not None:
        return "blend"
    return {1: branches[0], 2: "both"}.get(len(branches), "all")


def rankings(model: XMTCPreTrainedModel, output: XMTCOutput) -> dict[str, torch.Tensor]:
    """The best labels of a batch, final and of each branch where there are several, and the final scores."""
    named = {FINAL: output.top_k_ids, "scores": output.top_k_scores}
    if output.branch_top_k_ids is not None:
        named |= dict(zip(model.branch_names, output.branch_top_k_ids.unbind(dim=1), strict=True))
    return named


def ranking_metrics(
    top_k_ids: np.ndarray,
    true_labels: np.ndarray | list[list[int]],
    label_space: LabelSpace,
    args: XMTCTrainingArguments,
) -> dict[str, float]:
    """All metrics of one ranking; the same everywhere in a run."""
    return xmtc_metrics(
        top_k_ids,
        true_labels,
        ks=[k for k in args.metrics_at if k <= top_k_ids.shape[1]],
        inverse_propensities=label_space.inverse_propensities(args.propensity_a, args.propensity_b),
        bands=label_space.bands(),
        num_labels=label_space.num_labels + len(label_space.unseen),
    )


def branch_metrics(
    rankings: dict[str, np.ndarray], true_labels: np.ndarray, label_space: LabelSpace, args: XMTCTrainingArguments
) -> dict[str, float]:
    """All metrics of the final ranking, and those of each branch under its name: `global/precision@1`."""
    metrics = {}
    for branch, top_k_ids in rankings.items():
        if branch != "scores":
            prefix = "" if branch == FINAL else f"{branch}/"
            values = ranking_metrics(top_k_ids, true_labels, label_space, args)
            metrics |= {f"{prefix}{name}": value for name, value in values.items()}
    return metrics


def result_rows(metrics: dict[str, float], prefix: str, final: str) -> dict[str, dict[str, float]]:
    """Metrics by branch: the final ranking under the name `final`, then each branch."""
    rows: dict[str, dict[str, float]] = {final: {}}
    for name, value in metrics.items():
        branch, _, metric = name.removeprefix(f"{prefix}_" if prefix else "").rpartition("/")
        rows.setdefault(branch or final, {})[metric] = value
    return rows
