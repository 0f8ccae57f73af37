"""Explanations as HTML: no script, nothing from elsewhere, and whatever comes from texts and names escaped."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from .explanation import ATTENTION, Explanation, LabelExplanation
from .printable import printable, short, signed, two_digits

# A value as a share of the largest one: below it, a mark could not be seen.
_FAINTEST = 0.05
# Colours that are seen through suit light and dark pages.
_READ, _FOR, _AGAINST = "245,158,11", "22,163,74", "239,68,68"
# Who cannot tell these colours apart sees a line under what is against a label.
_LINES = {_AGAINST: ";text-decoration:underline dashed"}
_LONGEST_NAME = 100


def html_page(explanations: Sequence[Explanation]) -> str:
    """A whole page of explained texts."""
    return html_templates().get_template("page.html.jinja").render(explanations=explanations)


@cache
def html_templates(folder: Path | None = None) -> Environment:
    """The templates of this folder and of another one, which escape what they are given."""
    loader = FileSystemLoader(Path(__file__).parent if folder is None else [folder, Path(__file__).parent])
    templates = Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    templates.filters |= {
        "legend": html_legend,
        "printable": printable,
        "short": lambda text: short(text, _LONGEST_NAME),
        "signed": lambda value: minus(signed(value)),
        "two_digits": two_digits,
    }
    return templates


def highlighted_text(explanation: Explanation, label_row: int) -> str:
    """
    The text with a mark on every word, the stronger the more it adds to the logit of a label or takes from it; where
    there is attention alone, the stronger the more of it the word has.
    """
    label = explanation.labels[label_row]
    strongest = max(map(abs, label.word_values), default=0.0)
    parts, end = [], 0
    for number, word in enumerate(explanation.words):
        parts += [_between_words(explanation, end, word.start), _mark(word.text, label, number, strongest)]
        end = word.end
    parts.append(_between_words(explanation, end, len(explanation.text)))
    style = "white-space:pre-wrap;overflow-wrap:anywhere"
    return Markup('<p dir="auto" lang="" style="{}">{}</p>').format(style, Markup().join(parts))


def html_legend(explanation: Explanation) -> str:
    """What marks and numbers mean, as a fragment of HTML."""
    if explanation.measure == ATTENTION:
        return Markup("{} {}").format(_styled("read", _READ, 0.6), explanation.meaning())
    signs = _styled("for the label", _FOR, 0.6), _styled("against it", _AGAINST, 0.6)
    return Markup("{} {} {}").format(*signs, explanation.meaning())


def minus(number: str) -> str:
    """The number with a minus as wide as a plus, which screen readers read out, in the place of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def _mark(word: str, label: LabelExplanation, number: int, strongest: float) -> str:
    value = label.word_values[number]
    strength = abs(value) / strongest if strongest > 0 else 0.0
    if strength < _FAINTEST:
        return printable(word)
    if label.word_contributions is None:
        return _styled(word, _READ, 0.6 * strength, f"{value:.3f}")
    title = minus(f"{value:+.3f}")
    if label.word_weights is not None:
        title += f", attention {label.word_weights[number]:.3f}"
    return _styled(word, _FOR if value > 0 else _AGAINST, 0.6 * strength, title)


def _styled(word: str, color: str, strength: float, title: str = "") -> Markup:
    # Letters keep the colour of the page.
    style = f"background:rgba({color},{strength:.2f});color:inherit{_LINES.get(color, '')}"
    title = Markup(' title="{}"').format(title) if title else ""
    return Markup('<mark style="{}"{}>{}</mark>').format(style, title, printable(word))


def _between_words(explanation: Explanation, start: int, end: int) -> Markup:
    """What stands between words that were read; pale where the text was cut off."""
    shown, words = escape(printable(explanation.text[start:end])), explanation.words
    if shown and explanation.truncated and (not words or start >= words[-1].end or end <= words[0].start):
        return Markup('<span style="opacity:.6">{}</span>').format(shown)
    return shown
