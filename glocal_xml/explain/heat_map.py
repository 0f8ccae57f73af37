"""Explanations as a figure."""

from itertools import product
from typing import TYPE_CHECKING

from .explanation import Explanation, most_read
from .printable import short, two_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_NAME = 40
_LEAST_WRITTEN = 0.05


def heat_map(explanation: Explanation) -> "Figure":
    """Labels in rows, the words that any of them read most in columns, in the order of the text."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError(
            "Figures need matplotlib: install the extra by `pip install 'glocal-xml[analysis]'`."
        ) from None
    labels = explanation.labels
    wanted = {word for label in labels for word, _ in label.words}
    words = [word for word in dict.fromkeys(word.text for word in explanation.words) if word in wanted]
    if not words:
        raise ValueError("There is nothing to draw: the labels read no words.")
    totals = [dict(most_read(explanation.words, label.word_weights, len(explanation.words))) for label in labels]
    weights = [[total[word] for word in words] for total in totals]  # (labels, words)
    canvas = Figure(figsize=(3.5 + 0.45 * len(words), 1.6 + 0.4 * len(labels)), layout="constrained")
    axis = canvas.subplots()
    image = axis.imshow(weights, cmap="YlOrBr", vmin=0.0, aspect="auto")
    strongest = max(map(max, weights))
    for row, column in product(range(len(labels)), range(len(words))):
        weight = weights[row][column]
        if weight >= _LEAST_WRITTEN:
            color = "white" if weight > 0.6 * strongest else "black"
            axis.text(column, row, f"{weight:.2f}", ha="center", va="center", fontsize=8, color=color)
    # Names are no formulas, whatever dollars they have.
    names = [f"{short(label.label, _LONGEST_NAME)}  {two_digits(label.score)}" for label in labels]
    axis.set_yticks(range(len(labels)), names, parse_math=False)
    shown = [short(word, _LONGEST_NAME) for word in words]
    axis.set_xticks(range(len(words)), shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    axis.set_xlabel("words read most, in the order of the text")
    axis.set_ylabel("label and its probability")
    canvas.colorbar(image, label="share of the\nlabel's attention")
    return canvas
