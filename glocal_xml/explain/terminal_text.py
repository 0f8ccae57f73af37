"""Explanations as lines for a terminal."""

import textwrap
from collections.abc import Callable

from .explanation import Explanation, LabelExplanation
from .printable import printable, short, two_digits

_LONGEST_TEXT = 300
_LONGEST_NAME = 40
_BOLD, _FAINT, _STRONG, _WEAK = "1", "2", "1;33", "33"


def terminal_text(explanation: Explanation, color: bool) -> str:
    """The start of the text, and a line for each label with the words that it read most."""

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color else text

    lines = [textwrap.shorten(printable(explanation.text), _LONGEST_TEXT, placeholder=" …") or "(empty text)"]
    if explanation.truncated and explanation.words:
        read = explanation.words[-1].end - explanation.words[0].start
        lines.append(paint(f"  too long: {read:,} of {len(explanation.text):,} characters were read", _FAINT))
    names = [short(label.label, _LONGEST_NAME) for label in explanation.labels]
    width = max(map(len, names), default=0)
    for name, label in zip(names, explanation.labels, strict=True):
        start = f"{paint(f'{two_digits(label.score):>5}', _BOLD)} {name:{width}}  "
        summary = label.branch_summary()
        branches = paint(f"({summary})", _FAINT) + "  " if summary else ""
        lines.append(f"{start}{branches}read: {_words(label, paint) or 'nothing'}")
    return "\n".join(lines) + "\n"


def _words(label: LabelExplanation, paint: Callable[[str, str], str]) -> str:
    strongest = label.words[0][1] if label.words else 0.0
    return ", ".join(
        f"{paint(printable(word), _STRONG if 2 * weight >= strongest else _WEAK)} {weight:.2f}"
        for word, weight in label.words
    )
