"""The parts of the page that are HTML; whatever comes from a text or a model is escaped here."""

from collections.abc import Sequence
from html import escape
from typing import Any

from glocal_xml.explain import Explanation
from glocal_xml.explain.explanation import ATTENTION
from glocal_xml.explain.html_page import html_legend, html_similar, html_sum, minus
from glocal_xml.explain.printable import printable, signed

from .tagger import Predictions

_SHORT_TEXT = 120


def header(name: str, facts: Sequence[str]) -> str:
    """Which model this is."""
    return f"<h1>{escape(name)}</h1><p>{escape(', '.join(facts))}</p>"


def note(message: str) -> str:
    """A sentence in the place of a result."""
    return f'<p class="note">{escape(message)}</p>'


def label_list(predictions: Predictions, chosen: int | None) -> str:
    """
    Labels with a bar for the score and one for each branch; a button each where words can be shown.

    Args:
        predictions: What the pipeline gave for one text.
        chosen: The row whose words are shown; `None` where the model has no words to show.
    """
    rows = "".join(f"<li>{_label_row(entry, row, chosen)}</li>" for row, entry in enumerate(predictions))
    return f'<ol class="labels">{rows}</ol>'


def _label_row(entry: dict[str, Any], row: int, chosen: int | None) -> str:
    scores = entry["branch_scores"].items()
    branches = "".join(_bar(name, score, f"branch-{i % 4}") for i, (name, score) in enumerate(scores))
    # Isolated, since a name that is written from right to left would turn the row around.
    inside = (
        f'<bdi class="name">{escape(entry["label"])}</bdi>{_bar("score", entry["score"], "final")}'
        f'<span class="branches">{branches if len(scores) > 1 else ""}</span>'
    )
    if chosen is None:
        return f'<div class="label">{inside}</div>'
    pressed = "true" if row == chosen else "false"
    return f'<button type="button" class="label" data-row="{row}" aria-pressed="{pressed}">{inside}</button>'


def _bar(name: str, score: float, kind: str) -> str:
    return (
        f'<span class="bar {kind}"><span class="bar-name">{escape(name)}</span>'
        f'<span class="track"><span class="fill" style="width:{100 * score:.1f}%"></span></span>'
        f'<span class="number">{score:.2f}</span></span>'
    )


def words_read(explanation: Explanation, row: int) -> str:
    """
    The text with marks on the words behind a label, the strongest ones and all other parts as a sum, what the marks
    mean, and similar training texts.
    """
    label = explanation.labels[row]
    partly = explanation.partly_read()
    cut = "The text is longer than the model reads: what is grey was not read."
    # It scrolls, so keys must reach it.
    region = '<div class="words" tabindex="0" role="region" aria-label="Words read">'
    return (
        f'<p class="summary" aria-live="polite"><bdi class="name">{escape(label.label)}</bdi> '
        f"{_strongest_words(explanation, row)}</p>"
        f"{region}{explanation.highlighted_html(row)}{html_similar(explanation, row)}"
        f'<p class="legend">{html_legend(explanation)}</p></div>'
        f"{note(cut) if explanation.truncated else ''}"
        f"{note(partly.capitalize() + '.') if partly else ''}"
    )


def _strongest_words(explanation: Explanation, row: int) -> str:
    label, read = explanation.labels[row], ""
    if explanation.measure == ATTENTION:
        words = ", ".join(f"<bdi>{escape(printable(word))}</bdi> {weight:.2f}" for word, weight in label.words)
        read = f"read most: {words}" if words else "found no words to read"
    if label.logit is None:
        return read
    words, rest = explanation.addends(row)
    shown = [
        f'<span class="{"for" if value > 0 else "against"}"><bdi>{escape(printable(word))}</bdi> '
        f"{minus(signed(value))}</span>"
        for word, value in words
    ]
    # In brackets, since a word of the text may be called the same.
    shown += [f"({escape(printable(name))}) {minus(signed(value))}" for name, value in rest]
    return f"{read}{'; added: ' if read else ''}{', '.join(shown)} {html_sum(explanation, row)}"


def file_summary(number: int, first: Sequence[tuple[str, Predictions]]) -> str:
    """How many texts were tagged, and the first of them with their best labels."""
    items = "".join(
        f'<li><bdi class="text">{escape(printable(_shortened(text)))}</bdi>{_chips(predictions)}</li>'
        for text, predictions in first
    )
    return f'<p class="summary" role="status">{number:,} texts tagged. The first:</p><ul class="preview">{items}</ul>'


def _chips(predictions: Predictions) -> str:
    chips = "".join(f'<bdi class="chip">{escape(entry["label"])} {entry["score"]:.2f}</bdi>' for entry in predictions)
    return chips or '<span class="note">no label</span>'


def _shortened(text: str) -> str:
    text = " ".join(text[: 2 * _SHORT_TEXT].split())
    return text if len(text) <= _SHORT_TEXT else text[:_SHORT_TEXT] + "…"
