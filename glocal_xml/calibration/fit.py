"""How good the probabilities of a model are, and what its threshold reaches."""

from typing import Any

from .candidates import ScoredLabels
from .quality import brier_score, cross_entropy, expected_calibration_error
from .threshold import measures_at


def judge_scores(pairs: ScoredLabels, blend: dict[str, Any]) -> dict[str, Any]:
    """
    What probabilities reach on texts: their quality, and F, precision and recall of the labels from the threshold on.
    Honest on texts that the blend was not fitted on.

    Args:
        pairs: The best labels of the texts, with probabilities.
        blend: What `config.blend` holds; its threshold is used.
    """
    return {
        "texts": len(pairs.true_per_text),
        "true_labels_scored": float(pairs.is_true.sum() / max(1, pairs.true_per_text.sum())),
        "calibration_error": expected_calibration_error(pairs.scores, pairs.is_true),
        "brier": brier_score(pairs.scores, pairs.is_true),
        "cross_entropy": cross_entropy(pairs.scores, pairs.is_true),
        **measures_at(pairs, blend["threshold"], blend["f"], blend["beta"]),
    }


def report_lines(blend: dict[str, Any], judged: dict[str, Any]) -> list[str]:
    """A blend and what it reaches, to read."""
    beta = blend["beta"]
    measure = f"{blend['f']} F{'1' if beta == 1 else f' (beta {beta:g})'}"
    weights = ", ".join(f"{name} {weight:.2f}" for name, weight in blend["weights"].items())
    return [
        f"weights: {weights}; threshold {blend['threshold']:.4f}",
        f"expected calibration error {judged['calibration_error']:.5f}, Brier {judged['brier']:.5f}, "
        f"cross-entropy {judged['cross_entropy']:.5f}",
        f"{measure} {100 * judged['f']:.2f}, precision {100 * judged['precision']:.2f}, "
        f"recall {100 * judged['recall']:.2f} (percent)",
        f"{judged['labels_per_text']:.2f} labels per text, {100 * judged['texts_without_labels']:.1f} % of "
        f"{judged['texts']} texts without any; {100 * judged['true_labels_scored']:.1f} % of the true labels are "
        "among those scored",
    ]
