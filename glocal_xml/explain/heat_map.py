"""Explanations as a figure."""

from itertools import product
from typing import TYPE_CHECKING, Any

from glocal_xml.matplotlib_extra import check_matplotlib

from .explanation import ATTENTION, Explanation, strongest_words
from .printable import short, signed, two_digits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LONGEST_NAME = 40
_LEAST_WRITTEN = 0.05
# As on the page: red against, green for.
_SIGNED_COLORS = ("#dc2626", "#ffffff", "#16a34a")


def heat_map(explanation: Explanation) -> "Figure":
    """
    Labels in rows, the words that matter most to any of them in columns, in the order of the text. Contributions have
    further columns for all the rest, and for the logit that they sum to.
    """
    check_matplotlib()
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    labels = explanation.labels
    wanted = {word for label in labels for word, _ in label.words}
    words = [word for word in dict.fromkeys(word.text for word in explanation.words) if word in wanted]
    if not words:
        raise ValueError("There is nothing to draw: the labels read no words.")
    totals = [dict(strongest_words(explanation.words, label.word_values, len(explanation.words))) for label in labels]
    values = [[total[word] for word in words] for total in totals]  # (labels, words)
    strongest = max(abs(value) for row in values for value in row)
    # What beside these words adds to each logit, and the logit itself; nothing for attention alone.
    rest: dict[str, list[float]] = {}
    if all(label.logit is not None for label in labels):
        rows = [dict(explanation.rest(row, words)) for row in range(len(labels))]
        names = dict.fromkeys(name for row in rows for name in row)
        rest = {f"({name})": [row.get(name, 0.0) for row in rows] for name in names}
        rest[f"= logit, {explanation.branch}"] = [label.logit for label in labels]
    columns, is_attention = len(words) + len(rest), explanation.measure == ATTENTION
    canvas = Figure(figsize=(3.5 + 0.5 * columns, 1.9 + 0.4 * len(labels)), layout="constrained")
    axis = canvas.subplots()
    if is_attention:
        image = axis.imshow(values, cmap="YlOrBr", vmin=0.0, aspect="auto")
    else:
        colors = LinearSegmentedColormap.from_list("against and for", _SIGNED_COLORS)
        # Never a scale without length.
        image = axis.imshow(values, cmap=colors, vmin=-strongest or -1.0, vmax=strongest or 1.0, aspect="auto")

    def write(column: int, row: int, text: str, **style: Any) -> None:
        axis.text(column, row, text, ha="center", va="center", fontsize=8, **style)

    for row, column in product(range(len(labels)), range(len(words))):
        value = values[row][column]
        if not is_attention:
            write(column, row, signed(value))
        elif value >= _LEAST_WRITTEN:
            write(column, row, f"{value:.2f}", color="white" if value > 0.6 * strongest else "black")
    # Numbers beside the map: in its colours, a large bias would leave those of words pale.
    for column, (name, numbers) in enumerate(rest.items(), start=len(words)):
        for row, value in enumerate(numbers):
            write(column, row, signed(value), weight="bold" if name.startswith("=") else "normal")
    if rest:
        axis.set_xlim(-0.5, columns - 0.5)
        axis.axvline(len(words) - 0.5, color="black", linewidth=1)
        axis.axvline(columns - 1.5, color="black", linewidth=1)
    # Names are no formulas, whatever dollars they have.
    shown_labels = [f"{short(label.label, _LONGEST_NAME)}  {two_digits(label.score)}" for label in labels]
    axis.set_yticks(range(len(labels)), shown_labels, parse_math=False)
    shown = [short(word, _LONGEST_NAME) for word in words] + list(rest)
    axis.set_xticks(range(columns), shown, rotation=45, ha="right", rotation_mode="anchor", parse_math=False)
    read = "read most" if is_attention else "that matter most"
    axis.set_xlabel(f"words {read}, in the order of the text" + (", and all the rest" if rest else ""))
    axis.set_ylabel("label and its probability")
    meaning = "share of the\nlabel's attention" if is_attention else "adds to the logit:\n+ for, - against"
    canvas.colorbar(image, label=meaning)
    return canvas
