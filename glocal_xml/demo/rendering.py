"""The parts of the page that are HTML; whatever comes from a text or a model is escaped here."""

from collections.abc import Sequence
from html import escape
from typing import Any

from glocal_xml.explain.printable import printable

from .tagger import Predictions

_CLOSEST = 5


def header(name: str, num_labels: int) -> str:
    """Which model this is, and what it does."""
    return f"<h1>{escape(name)}</h1><p>Suggests labels for a text, out of {num_labels:,}.</p>"


def note(message: str) -> str:
    """A sentence in the place of a result."""
    return f'<p class="note">{escape(message)}</p>'


def mistake_note(message: str) -> str:
    """What is wrong with a field, read out by screen readers at once."""
    return f'<p class="mistake" role="alert">{escape(message)}</p>'


def percent(score: float) -> str:
    """A score in percent; what is not certain is not shown as such."""
    rounded = round(100 * score)
    if score and rounded == 0:
        return "<1%"
    return ">99%" if score < 1 and rounded == 100 else f"{rounded}%"


def counted(number: int, name: str) -> str:
    """A number of things."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def shortened(text: str, longest: int) -> str:
    """The start of a text on one line."""
    text = " ".join(printable(text[: 2 * longest]).split())
    return text if len(text) <= longest else text[:longest].rstrip() + "…"


def label_list(predictions: Predictions, likely: int, threshold: float, digest: str | None) -> str:
    """
    Labels with their scores, those that are less likely on request; a button each where reasons can be shown.

    Args:
        predictions: What the pipeline gave for one text, best first.
        likely: How many of them are worth showing at once; the closest ones are shown where none is.
        threshold: The lowest score that counts.
        digest: Tells the text from others; `None` where the model has no reasons to show.
    """
    rows = [f"<li>{_label_row(entry, row == 0, digest)}</li>" for row, entry in enumerate(predictions)]
    none = note(f"No label reaches {percent(threshold)}, the lowest score that counts. The closest are:")
    first, more = rows[: likely or _CLOSEST], rows[likely or _CLOSEST :]
    shown = f'{"" if likely else none}<ol class="labels">{"".join(first)}</ol>'
    if not more:
        return shown
    summary = f"<summary>{counted(len(more), 'less likely label')}</summary>"
    return f'{shown}<details>{summary}<ol class="labels">{"".join(more)}</ol></details>'


def _label_row(entry: dict[str, Any], is_first: bool, digest: str | None) -> str:
    # Isolated, since a name that is written from right to left would turn the row around.
    inside = (
        f'<bdi class="name">{escape(printable(entry["label"]))}</bdi>'
        f'<span class="track"><span class="fill" style="width:{100 * entry["score"]:.1f}%"></span></span>'
        f'<span class="number">{escape(percent(entry["score"]))}</span>'
    )
    if digest is None:
        return f'<div class="label">{inside}</div>'
    data = f'data-label="{escape(entry["label"])}" data-digest="{digest}"'
    pressed = "true" if is_first else "false"
    return f'<button type="button" class="label" {data} aria-pressed="{pressed}">{inside}</button>'


def file_summary(number: int, first: Sequence[tuple[str, Predictions]]) -> str:
    """How many texts were tagged, and the first of them with their best labels."""
    items = "".join(
        f'<li><bdi class="text">{escape(shortened(text, 120))}</bdi>{_chips(predictions)}</li>'
        for text, predictions in first
    )
    of_all = ". The first" if number > len(first) else ""
    return f'<p role="status">{counted(number, "text")} tagged{of_all}:</p><ul class="preview">{items}</ul>'


def _chips(predictions: Predictions) -> str:
    chips = (
        f'<bdi class="chip">{escape(printable(entry["label"]))} {escape(percent(entry["score"]))}</bdi>'
        for entry in predictions
    )
    return "".join(chips) or '<span class="note">no label</span>'
