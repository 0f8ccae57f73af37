"""Fitting the blend of all branches of a model on texts that none of them was trained on."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import expit

from glocal_xml.calibration import ScoredLabels, best_threshold, check_average
from glocal_xml.data import LabelSpace
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import each_once, evaluation_mode
from glocal_xml.modeling.experts import (
    BIAS,
    FREQUENCY,
    LEXICAL,
    LEXICAL_BEND,
    LEXICAL_KNOT,
    VOTES,
    add_branch,
    vote_share,
)

logger = logging.getLogger(__name__)

# Best labels of each branch that the fit looks at. Fewer rank a little better, more have better probabilities for
# labels of low rank: a compromise on held-out training texts of debtags, EURLEX57K and LLMs4Subjects.
CANDIDATES = 15
# Fewer held-out texts, or true labels among the candidates, say too little.
MIN_TEXTS, MIN_TRUE = 50, 50
# Hardly any regularisation: there are a handful of weights and thousands of pairs.
_C = 100.0
_PRECISION = {"maxiter": 1000, "ftol": 1e-13}
# For models with too few held-out texts: about the median of the fits on debtags, EURLEX57K and LLMs4Subjects.
_FIXED_WEIGHTS = {"lexical": 0.7, "memory": 0.4, "dense": 0.4}


@dataclass
class BlendPairs:
    """
    The best labels of each branch for held-out texts, one pair of text and label after the other: the logits of each
    in all branches, and final ones as the model has them now; and all labels that the texts have.
    """

    texts: np.ndarray  # (pairs,)
    labels: np.ndarray  # (pairs,)
    logits: np.ndarray  # (pairs, branches)
    final_logits: np.ndarray  # (pairs,)
    is_true: np.ndarray  # (pairs,)
    true_labels: list[np.ndarray]

    def scored(self, logits: np.ndarray, num_labels: int) -> ScoredLabels:
        """The pairs with probabilities of these logits."""
        true = np.concatenate([np.zeros(0, dtype=np.int64), *self.true_labels])
        return ScoredLabels(
            texts=self.texts,
            labels=self.labels,
            scores=expit(logits.astype(np.float64)),
            is_true=self.is_true,
            true_per_text=np.array([len(labels) for labels in self.true_labels]),
            true_per_label=np.bincount(true, minlength=num_labels),
        )

    @property
    def suffice(self) -> bool:
        """Whether they are enough to fit weights on, and tell true labels from others."""
        found = self.is_true.sum()
        return len(self.true_labels) >= MIN_TEXTS and found >= MIN_TRUE and not self.is_true.all()

    def blended(self, blend: dict[str, Any], branch_names: Sequence[str], log_frequencies: np.ndarray) -> np.ndarray:
        """The logits of the pairs in a blend, (pairs,)."""
        weights = blend["weights"]
        columns = zip(branch_names, torch.from_numpy(self.logits.T.astype(np.float64)), strict=True)
        total = torch.zeros(len(self.logits), dtype=torch.double)
        for name, logits in columns:
            add_branch(total, name, logits, weights)
        return total.numpy() + weights.get(FREQUENCY, 0.0) * log_frequencies[self.labels] + weights.get(BIAS, 0.0)

    def features(self, branch_names: Sequence[str]) -> dict[str, np.ndarray]:
        """What a fit weighs, none of which should speak against a label: the terms of [`add_branch`]."""
        found = dict(zip(branch_names, self.logits.T.astype(np.float64), strict=True))
        if LEXICAL in found:
            found[LEXICAL_BEND] = np.maximum(found[LEXICAL] - LEXICAL_KNOT, 0)
            found[LEXICAL] = np.minimum(found[LEXICAL], LEXICAL_KNOT)
        for memory, vote in VOTES.items():
            if memory in found:
                found[vote] = vote_share(torch.from_numpy(found[memory])).numpy()
        return found


def log_frequencies(label_space: LabelSpace) -> np.ndarray:
    """Log of the share of training texts that each label of a model has, each counted with a text more."""
    return np.log((np.asarray(label_space.counts) + 1) / (label_space.num_texts + 2)).astype(np.float32)


@torch.no_grad()
def blend_pairs(
    model: XMTCPreTrainedModel, batches: Iterable[dict[str, torch.Tensor]], number: int = CANDIDATES
) -> BlendPairs:
    """The labels that any branch ranks among its best, so many of each, with the logits of all branches."""
    found: list[tuple[np.ndarray, ...]] = []
    true_labels: list[np.ndarray] = []
    with evaluation_mode(model):
        for batch in batches:
            labels = batch["labels"]
            fields = {name: values.to(model.device) for name, values in batch.items() if name != "labels"}
            scores = model(**fields, output_logits=False, output_scores=True).scores
            best = scores.top_k(min(number, scores.most_ranked))
            ids = best.ids if best.branch_ids is None else torch.cat([best.ids, best.branch_ids.flatten(1)], dim=1)
            ids = ids.sort(dim=1).values
            branches = [branch.chosen(ids) for branch in scores.branches.values()]
            logits = torch.stack(branches, dim=-1)  # (texts, candidates, branches)
            final = scores.combined(branches, ids)
            text, column = (each_once(ids) >= 0).nonzero(as_tuple=True)
            chosen = ids[text, column].cpu()
            is_true = (labels[text.cpu()] == chosen[:, None]).any(dim=1)
            of_pairs = (values[text, column].cpu().float() for values in (logits, final))
            values = (text.cpu() + len(true_labels), chosen, *of_pairs, is_true)
            found.append(tuple(value.numpy() for value in values))
            true_labels.extend(row[row >= 0].numpy() for row in labels)
    texts, label_ids, all_logits, finals, truths = (np.concatenate(values) for values in zip(*found, strict=True))
    return BlendPairs(texts, label_ids, all_logits, finals, truths, true_labels)


def fit_blend(
    pairs: BlendPairs,
    branch_names: Sequence[str],
    log_frequencies: np.ndarray,
    *,
    f: str = "micro",
    beta: float = 1.0,
    num_labels: int | None = None,
) -> dict[str, Any]:
    """
    Logistic regression of whether a label is true on its logits in all branches and its log frequency, and the
    threshold with the highest F measure. No branch has a weight below 0: with one, a higher score of a branch would
    lower that of the blend, and what little such a weight fits is mostly chance.

    Args:
        pairs, branch_names: As [`blend_pairs`] gives them, and the names of the branches.
        log_frequencies: Log frequency of each label in training, (labels,).
        f, beta: `"micro"`, `"macro"` or `"samples"`, and how much more recall counts than precision.
        num_labels: Size of the label space, labels met only in evaluation data included.

    Returns:
        What `config.blend` of a model holds. With too few texts the weights are fixed ones, and `texts` is 0.
    """
    check_average(f, beta)
    num_texts = len(pairs.true_labels)
    if not pairs.suffice:
        logger.warning(
            "%d held-out texts with %d true labels found are too few to fit the blend: its weights are fixed ones.",
            num_texts,
            pairs.is_true.sum(),
        )
        return fixed_blend(branch_names, f, beta)
    weights = fitted_weights(pairs.features(branch_names), log_frequencies[pairs.labels], pairs.is_true)
    blended = pairs.blended({"weights": weights}, branch_names, log_frequencies)
    scored = pairs.scored(blended, num_labels or len(log_frequencies))
    threshold = best_threshold(scored, f, beta)
    return {"weights": weights, "threshold": threshold, "f": f, "beta": float(beta), "texts": num_texts}


def fitted_weights(features: dict[str, np.ndarray], frequencies: np.ndarray, is_true: np.ndarray) -> dict[str, float]:
    """The weights of [`fit_blend`] for features of `BlendPairs.features` and the log frequency of labels."""
    columns = np.column_stack([*features.values(), frequencies, np.ones(len(frequencies))])

    def loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        """Cross-entropy with a penalty of all weights but the bias, and its gradient."""
        logits, penalized = columns @ weights, np.append(weights[:-1], 0) / _C
        value = np.logaddexp(0, logits).sum() - logits[is_true].sum() + weights @ penalized / 2
        return value, columns.T @ (expit(logits) - is_true) + penalized

    bounds = [(0, None)] * len(features) + [(None, None)] * 2
    fitted = minimize(loss, np.zeros(columns.shape[1]), jac=True, bounds=bounds, options=_PRECISION)
    weights = dict(zip([*features, FREQUENCY, BIAS], fitted.x.tolist(), strict=True))
    if LEXICAL_BEND in weights:
        # From the slope above the knot to what it is more than the one below.
        weights[LEXICAL_BEND] -= weights[LEXICAL]
    return weights


def fixed_blend(branch_names: Sequence[str], f: str = "micro", beta: float = 1.0) -> dict[str, Any]:
    """Weights for models without enough held-out texts: the heads share 1, the experts have what fits them mostly."""
    heads = [name for name in branch_names if name not in _FIXED_WEIGHTS]
    weights = {name: _FIXED_WEIGHTS.get(name, 1 / max(1, len(heads))) for name in branch_names}
    total = sum(weights.values())
    # As if the branches were one voice: the sum of weights is 1.
    weights = {name: weight / total for name, weight in weights.items()}
    return {"weights": weights, "threshold": 0.5, "f": f, "beta": float(beta), "texts": 0}
