"""What calibration is fitted on: the best labels of each text, their scores, and whether they are true."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from glocal_xml.metrics import RankedLabels


@dataclass(frozen=True)
class ScoredLabels:
    """
    The best labels of each text, one pair of text and label after the other; nothing grows with texts times labels.

    Args:
        texts: The text of each pair, (pairs,).
        labels: The label of each pair, (pairs,).
        scores: Its probability, (pairs,), in double precision.
        is_true: Whether the text has the label, (pairs,).
        true_per_text: How many labels each text has, also beyond its pairs, (texts,).
        true_per_label: How many texts each label has, also beyond its pairs, (labels,).
    """

    texts: np.ndarray
    labels: np.ndarray
    scores: np.ndarray
    is_true: np.ndarray
    true_per_text: np.ndarray
    true_per_label: np.ndarray

    @classmethod
    def from_rankings(
        cls,
        top_k_ids: ArrayLike,
        top_k_scores: ArrayLike,
        true_labels: ArrayLike | Iterable[Sequence[int]],
        num_labels: int,
    ) -> "ScoredLabels":
        """
        Pairs from the best labels of each text and their probabilities, both (texts, candidates), and true labels, as
        [`RankedLabels`] takes them; `num_labels` counts labels too that are met only in evaluation data.
        """
        ranked, scores = RankedLabels(top_k_ids, true_labels, num_labels), np.asarray(top_k_scores, dtype=np.float64)
        if scores.shape != ranked.ids.shape:
            raise ValueError(f"There are scores of shape {scores.shape} for labels of shape {ranked.ids.shape}.")
        if not ((scores >= 0) & (scores <= 1)).all():
            raise ValueError(
                f"Scores must be probabilities, got values from {scores.min()} to {scores.max()}: a model whose "
                "scores are no numbers has diverged in training."
            )
        texts, columns = np.nonzero(ranked.ids >= 0)
        return cls(
            texts=texts,
            labels=ranked.ids[texts, columns],
            scores=scores[texts, columns],
            is_true=ranked.hits[texts, columns],
            true_per_text=ranked.true_counts,
            true_per_label=np.bincount(ranked.true_ids, minlength=num_labels),
        )

    def __len__(self) -> int:
        return len(self.scores)
