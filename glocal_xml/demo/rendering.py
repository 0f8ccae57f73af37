"""The HTML of the page, by macros of `parts.html.jinja`, in words that need no knowledge of the model."""

from collections import defaultdict
from pathlib import Path
from typing import Any

from glocal_xml.explain import Explanation, LabelExplanation
from glocal_xml.explain.explanation import BLEND, FURTHER_WORDS
from glocal_xml.explain.html_page import html_templates
from glocal_xml.explain.printable import short


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
    """The start of a text, which may be a book, on one line."""
    return short(text[: 2 * longest], longest + 1)


_TEMPLATES = html_templates(Path(__file__).parent)
_TEMPLATES.filters |= {"counted": counted, "percent": percent, "shortened": shortened}
PARTS: Any = _TEMPLATES.get_template("parts.html.jinja").module

_WORDS, _WHOLE, _START = "single words", "meaning of the whole text", "starting point"
# Parts of a blend by name; all others are heads that read the text as a whole.
_PARTS = {
    "memory": "similar texts",
    "dense": "related texts",
    "frequency": "label frequency",
    "tree": "group of similar labels",
}
_SIGNS = "other signs in the text"
_MEANINGS = {
    _WORDS: "the marked words, each counted by itself.",
    _SIGNS: "blanks, and the start and end of the text.",
    _WHOLE: "what a language model reads from all words together.",
    "similar texts": "whether texts with the same words had this label in training.",
    "related texts": "whether texts with a similar meaning had this label in training.",
    "label frequency": "frequent labels are more likely than rare ones.",
    "group of similar labels": "whether the group to which the label belongs suits the text.",
    _START: "where the label starts before any text is read; low, since few labels suit a text.",
}


def reasons(explanation: Explanation) -> str:
    """The strongest words for and against the first label of an explanation, the marked text, and all other parts."""
    label = explanation.labels[0]
    sums = parts_of(label) if explanation.branch == BLEND else {}
    # Without a blend the score is a mean, of which parts that read single words have a share.
    share, shares = label.local_share, {}
    if share is not None and len(label.branch_scores) > 1 and share <= 0.999:
        shares = {_WORDS: share, _WHOLE: 1 - share}
    return PARTS.reasons(explanation, sums, _MEANINGS, shares)


def parts_of(label: LabelExplanation) -> dict[str, float]:
    """What each part of a blend adds to the score of a label, by names that people know; it sums to the logit."""
    parts: dict[str, float] = defaultdict(float, {_WORDS: sum(label.word_contributions or ())})
    for name, value in (label.other_contributions or {}).items():
        parts[_WORDS if name == FURTHER_WORDS else _SIGNS] += value
    for name, value in label.parts.items():
        parts[_PARTS.get(name, _WHOLE)] += value
    parts[_START] += label.bias or 0.0
    return {name: value for name, value in parts.items() if abs(value) >= 0.005}
