"""Explanations as lines for a terminal."""

import textwrap
from collections.abc import Callable

from .explanation import ATTENTION, BLEND, Explanation
from .printable import printable, short, signed, two_digits

_LONGEST_TEXT = 300
_LONGEST_NAME = 40
_WIDTH = 100
_BOLD, _FAINT = "1", "2"
# Strong and weak: what was read, what speaks for a label, and what against it.
_READ, _FOR, _AGAINST = ("1;33", "33"), ("1;32", "32"), ("1;31", "31")
# Below the name of a label.
_INDENT = " " * 6
_SIMILAR = 5


def terminal_text(explanation: Explanation, color: bool, legend: bool = True) -> str:
    """The start of the text, a line for each label with the words that matter most, and what the numbers are."""

    def paint(text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if color else text

    lines = [textwrap.shorten(printable(explanation.text), _LONGEST_TEXT, placeholder=" …") or "(empty text)"]
    if explanation.truncated and explanation.words:
        read = explanation.words[-1].end - explanation.words[0].start
        lines.append(paint(f"  too long: {read:,} of {len(explanation.text):,} characters were read", _FAINT))
    if explanation.partly_read():
        lines.append(paint(f"  {explanation.partly_read()}", _FAINT))
    names = [short(label.label, _LONGEST_NAME) for label in explanation.labels]
    width = max(map(len, names), default=0)
    for row, (name, label) in enumerate(zip(names, explanation.labels, strict=True)):
        start = f"{paint(f'{two_digits(label.score):>5}', _BOLD)} {name:{width}}  "
        summary = label.branch_summary()
        branches = paint(f"({summary})", _FAINT) + "  " if summary else ""
        shown = []
        if explanation.measure == ATTENTION:
            strongest = label.words[0][1] if label.words else 0.0
            words = (f"{paint(printable(word), _READ[2 * x < strongest])} {x:.2f}" for word, x in label.words)
            shown.append(f"read: {', '.join(words) or 'nothing'}")
        if label.logit is not None:
            shown += _contributions(explanation, row, paint)
        if similar := explanation.similar_with(row)[:_SIMILAR]:
            named = ", ".join(f"{text.name} ({text.by} {two_digits(text.similarity)})" for text in similar)
            shown.append(paint(f"similar: {named}", _FAINT))
        if explanation.branch == BLEND:
            # A sum of many parts is read more easily below the label.
            lines += [f"{start}{branches}".rstrip(), *(_INDENT + line for line in shown)]
        else:
            lines.append(f"{start}{branches}{' '.join(shown)}")
    if legend and explanation.labels:
        lines += [paint(f"  {line}", _FAINT) for line in textwrap.wrap(explanation.meaning(), _WIDTH)]
    return "\n".join(lines) + "\n"


def _contributions(explanation: Explanation, row: int, paint: Callable[[str, str], str]) -> list[str]:
    """A sum: words, then all the rest, in lines of their own with a blend, then the logit."""
    label = explanation.labels[row]
    words, rest = explanation.addends(row)
    strongest = abs(words[0][1]) if words else 0.0
    shown = [
        paint(f"{printable(word)} {signed(value)}", (_FOR if value > 0 else _AGAINST)[2 * abs(value) < strongest])
        for word, value in words
    ]
    # In brackets, since a word of the text may be called the same.
    others = [paint(f"({printable(name)}) {signed(value)}", _FAINT) for name, value in rest]
    cluster = "" if label.cluster_score is None else f", cluster {two_digits(label.cluster_score)}"
    end = f" = logit {signed(label.logit)}{cluster}"
    if explanation.branch != BLEND or not shown or not others:
        return [f"adds: {', '.join(shown + others) or 'nothing'}{end}"]
    return [f"adds: {', '.join(shown)},", f"      {', '.join(others)}{end}"]
