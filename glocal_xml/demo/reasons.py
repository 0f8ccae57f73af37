"""What led to a label, as HTML and in words that need no knowledge of the model."""

from html import escape

from glocal_xml.explain import Explanation, LabelExplanation
from glocal_xml.explain.explanation import ATTENTION, BLEND, FURTHER_WORDS
from glocal_xml.explain.html_page import html_similar, minus
from glocal_xml.explain.printable import printable, signed

from .rendering import note, percent, shortened

_WORDS, _WHOLE, _START = "single words", "meaning of the whole text", "starting point"
# Parts of a blend by name; all others are heads that read the text as a whole.
_PARTS = {"memory": "similar texts", "frequency": "label frequency", "tree": "group of similar labels"}
_SIGNS = "other signs in the text"
_MEANINGS = {
    _WORDS: "the marked words, each counted by itself.",
    _SIGNS: "blanks, and the start and end of the text.",
    _WHOLE: "what a language model reads from all words together.",
    "similar texts": "whether texts with the same words had this label in training.",
    "label frequency": "frequent labels are more likely than rare ones.",
    "group of similar labels": "whether the group to which the label belongs suits the text.",
    _START: "where the label starts before any text is read; low, since few labels suit a text.",
}


def reasons(explanation: Explanation) -> str:
    """The strongest words for and against the first label of an explanation, the marked text, and all other parts."""
    label = explanation.labels[0]
    # It scrolls, so keys must reach it.
    region = '<div class="words" tabindex="0" role="region" aria-label="The text with marked words">'
    return (
        f'<h2 aria-live="polite">Why <bdi>{escape(shortened(label.label, 80))}</bdi>?</h2>'
        f"{_strongest_words(explanation, label)}"
        f"{region}{explanation.highlighted_html(0)}</div>{_how_much_was_read(explanation)}"
        f"{_sum_of_parts(label) if explanation.branch == BLEND else _shares(label)}"
        f"{html_similar(explanation, 0)}"
    )


def _strongest_words(explanation: Explanation, label: LabelExplanation) -> str:
    if explanation.measure == ATTENTION:
        legend = 'The model looked most at the <span class="chip read">marked words</span>'
        return f'<p class="legend">{legend}; this does not say whether they speak for the label or against it.</p>'
    legend = 'Words <span class="chip for">for</span> and <span class="chip against">against</span> the label'
    chips = "".join(
        f'<li class="chip {"for" if value > 0 else "against"}"><bdi>{escape(printable(word))}</bdi> '
        f"{minus(signed(value))}</li>"
        for word, value in explanation.addends(0)[0]
    )
    return (
        f'<p class="legend">{legend}; the stronger the colour, the more they count.</p><ul class="chips">{chips}</ul>'
    )


def _how_much_was_read(explanation: Explanation) -> str:
    if explanation.truncated:
        return note("The text is longer than the model reads: what is pale was not read.")
    if explanation.encoder_characters is None:
        return ""
    return note(
        f"The text is long: its meaning as a whole is that of its first {explanation.encoder_characters:,} "
        "characters; single words count from all of it."
    )


def parts_of(label: LabelExplanation) -> dict[str, float]:
    """What each part of a blend adds to the score of a label, by names that people know; it sums to the logit."""
    parts: dict[str, float] = {}
    others = label.other_contributions or {}
    named = [
        (_WORDS, sum(label.word_contributions or ())),
        *((_WORDS if name == FURTHER_WORDS else _SIGNS, value) for name, value in others.items()),
        *((_PARTS.get(name, _WHOLE), value) for name, value in label.parts.items()),
        (_START, label.bias or 0.0),
    ]
    for name, value in named:
        parts[name] = parts.get(name, 0.0) + value
    return {name: value for name, value in parts.items() if abs(value) >= 0.005}


def _sum_of_parts(label: LabelExplanation) -> str:
    parts = parts_of(label)
    # Bars start at the center; what is against the label goes to the left.
    half = {name: 50 * value / max(map(abs, parts.values())) for name, value in parts.items()}
    rows = "".join(
        _part_row(name, "for" if value > 0 else "against", 50 + min(half[name], 0), abs(half[name]), signed(value))
        for name, value in parts.items()
    )
    meanings = "".join(f"<li><b>{name}</b>: {_MEANINGS[name]}</li>" for name in parts)
    total = f"{minus(signed(label.logit))}, which is a score of {escape(percent(label.score))}"
    return (
        f'<ul class="parts">{rows}</ul><p class="legend">Sum: {total}.</p>'
        '<details class="how"><summary>What do these numbers mean?</summary>'
        f"<p>All numbers are added. A sum of 0 is a score of 50%, +2 is 88%, {minus('-2')} is 12%.</p>"
        f"<ul>{meanings}</ul></details>"
    )


def _shares(label: LabelExplanation) -> str:
    """Without a blend the score is a mean, of which parts that read single words have a share."""
    share = label.local_share
    if share is None or len(label.branch_scores) < 2 or share > 0.999:
        return ""
    parts = {_WORDS: share, _WHOLE: 1 - share}
    rows = (_part_row(name, "read", 0, 100 * part, percent(part)) for name, part in parts.items())
    return f'<p class="legend">Share of the score:</p><ul class="parts">{"".join(rows)}</ul>'


def _part_row(name: str, kind: str, start: float, width: float, number: str) -> str:
    """A bar with its start and width in percent."""
    style = f"width:{width:.1f}%;margin-inline-start:{start:.1f}%"
    return (
        f'<li><span>{name}</span><span class="track"><span class="fill {kind}" style="{style}"></span></span>'
        f'<span class="number">{escape(minus(number))}</span></li>'
    )
