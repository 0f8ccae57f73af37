"""Explanations as HTML: no script, nothing from elsewhere, and whatever comes from texts and names escaped."""

from collections.abc import Sequence
from html import escape

from .explanation import ATTENTION, Explanation, LabelExplanation, SimilarText
from .printable import printable, short, signed, two_digits

# A value as a share of the largest one: below it, a mark could not be seen.
_FAINTEST = 0.05
# Colours that are seen through suit light and dark pages.
_READ, _FOR, _AGAINST = "245,158,11", "22,163,74", "239,68,68"
# Who cannot tell these colours apart sees a line under what is against a label.
_LINES = {_AGAINST: ";text-decoration:underline dashed"}
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #5f5f5f; --bar: #d97706; }
@media (prefers-color-scheme: dark) { :root { --soft: #adadad; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 52rem; padding: 1rem; font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.3rem; margin: 0 0 .5rem; }
h2 { font-size: 1rem; margin: 0 0 .5rem; overflow-wrap: anywhere; }
article { border-top: 2px solid var(--line); padding-top: 1rem; margin-top: 1rem; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .5rem 0; }
summary { cursor: pointer; padding: .6rem .8rem; }
summary:focus-visible { outline: 3px solid var(--bar); border-radius: .5rem; }
.name { font-weight: 600; overflow-wrap: anywhere; }
.score { float: inline-end; margin-inline-start: .75rem; font-variant-numeric: tabular-nums; font-weight: 600; }
.bar { display: block; height: .3rem; margin-top: .4rem; border-radius: .2rem; background: var(--line); }
.bar > span { display: block; height: 100%; border-radius: inherit; background: var(--bar); }
.read { padding: 0 .8rem .8rem; }
.read > p { margin: .5rem 0 0; }
.note { color: var(--soft); font-size: .875rem; margin: .25rem 0; overflow-wrap: anywhere; }
.legend { font-size: .875rem; margin: .25rem 0; overflow-wrap: anywhere; }
.words { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem; padding: 0; margin: .5rem 0 0; }
.words li { border: 1px solid var(--line); border-radius: 1rem; padding: 0 .6rem; font-size: .875rem; }
.words b { font-weight: 600; overflow-wrap: anywhere; }
.words .for { background: rgba(22,163,74,.25); border-color: rgba(22,163,74,.7); }
.words .against { background: rgba(239,68,68,.25); border-color: rgba(239,68,68,.7); border-style: dashed; }
.words .rest { border-style: dotted; }
.words .sum { border-color: transparent; font-weight: 600; }
.similar { border: none; font-size: .875rem; }
.similar summary { padding: .2rem 0; }
.similar ul { margin: 0; padding-inline-start: 1.2rem; overflow-wrap: anywhere; }
"""
_HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>The words behind labels</title>
<style>{_STYLE}</style>
</head>
"""
_LONGEST_HEADING = 100
_SIMILAR = 5


def highlighted_text(explanation: Explanation, label_row: int) -> str:
    """
    The text with a mark on every word, the stronger the more it adds to the logit of a label or takes from it; where
    there is attention alone, the stronger the more of it the word has.
    """
    label = explanation.labels[label_row]
    strongest = max(map(abs, label.word_values), default=0.0)
    parts, end = [], 0
    for number, word in enumerate(explanation.words):
        parts.append(_between_words(explanation, end, word.start))
        parts.append(_mark(word.text, label, number, strongest))
        end = word.end
    parts.append(_between_words(explanation, end, len(explanation.text)))
    return f'<p dir="auto" lang="" style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(parts)}</p>'


def html_legend(explanation: Explanation) -> str:
    """What marks and numbers mean, as a fragment of HTML."""
    meaning = escape(explanation.meaning())
    if explanation.measure == ATTENTION:
        return f"{_styled('read', _READ, 0.6)} {meaning}"
    return f"{_styled('for the label', _FOR, 0.6)} {_styled('against it', _AGAINST, 0.6)} {meaning}"


def html_sum(explanation: Explanation, label_row: int) -> str:
    """What the numbers of a label sum to, as a fragment of HTML; nothing where there is attention alone."""
    label = explanation.labels[label_row]
    if label.logit is None:
        return ""
    return f"= logit {minus(signed(label.logit))}" + (
        "" if label.cluster_score is None else f" (its cluster: {escape(two_digits(label.cluster_score))})"
    )


def html_similar(explanation: Explanation, label_row: int) -> str:
    """
    The similar training texts that have a label, with the labels of each, as a fragment of HTML; a sentence where none
    of the most similar ones has it, and nothing where the model knows none.
    """
    if not explanation.similar_texts:
        return ""
    label, found = explanation.labels[label_row].label, explanation.similar_with(label_row)[:_SIMILAR]
    if not found:
        return '<p class="note">None of the training texts that are most similar to this one has the label.</p>'
    rows = "".join(f"<li>{_similar_text(text, label)}</li>" for text in found)
    return (
        f'<details class="similar"><summary>Similar training texts with this label</summary><ul>{rows}</ul></details>'
    )


def _similar_text(text: SimilarText, label: str) -> str:
    names = ", ".join(
        f'<bdi lang="">{escape(short(name, _LONGEST_HEADING))}</bdi>' for name in text.labels if name != label
    )
    own = f'<b><bdi lang="">{escape(short(label, _LONGEST_HEADING))}</bdi></b>'
    return f"{text.name.capitalize()}, similarity {two_digits(text.similarity)}: {own}" + (
        f", {names}" if names else ""
    )


def html_page(explanations: Sequence[Explanation]) -> str:
    """A whole page of explained texts."""
    articles = "\n".join(_article(explanation) for explanation in explanations)
    # Most often the same for all texts.
    legends = dict.fromkeys(html_legend(explanation) for explanation in explanations if explanation.labels)
    notes = "\n".join(f'<p class="legend">{legend}</p>' for legend in legends)
    return f"""{_HEAD}<body>
<h1>The words behind labels</h1>
{notes}
{articles}
</body>
</html>
"""


def _article(explanation: Explanation) -> str:
    parts = [f'<h2 dir="auto" lang="">{escape(short(explanation.text, _LONGEST_HEADING))}</h2>']
    if not explanation.words:
        parts.append('<p class="note">There is no word in the text that has a number.</p>')
    if explanation.truncated:
        parts.append('<p class="note">The text is longer than the model reads: what is pale was not read.</p>')
    if explanation.partly_read():
        parts.append(f'<p class="note">{escape(explanation.partly_read().capitalize())}.</p>')
    parts += [_details(explanation, row, label) for row, label in enumerate(explanation.labels)]
    return "\n".join(["<article>", *parts, "</article>"])


def _details(explanation: Explanation, row: int, label: LabelExplanation) -> str:
    summary = label.branch_summary()
    note = f'\n<p class="note">{escape(summary)}</p>' if summary else ""
    return f"""<details{" open" if row == 0 else ""}>
<summary><span class="score">{escape(two_digits(label.score))}</span>
<bdi class="name" lang="">{escape(printable(label.label))}</bdi>
<span class="bar"><span style="width:{100 * label.score:.1f}%"></span></span></summary>
<div class="read">{note}
<ul class="words">{_chips(explanation, row)}</ul>
{highlighted_text(explanation, row)}
{html_similar(explanation, row)}</div>
</details>"""


def _chips(explanation: Explanation, row: int) -> str:
    label, chips = explanation.labels[row], []
    if explanation.measure == ATTENTION:
        chips += [f"<li>{_name(word)} {weight:.2f}</li>" for word, weight in label.words]
    if label.logit is None:
        return "".join(chips)
    words, rest = explanation.addends(row)
    chips += [
        f'<li class="{"for" if value > 0 else "against"}">{_name(word)} {minus(signed(value))}</li>'
        for word, value in words
    ]
    chips += [f'<li class="rest">{escape(printable(name))} {minus(signed(value))}</li>' for name, value in rest]
    return f'{"".join(chips)}<li class="sum">{html_sum(explanation, row)}</li>'


def _name(word: str) -> str:
    return f'<b><bdi lang="">{escape(short(word, _LONGEST_HEADING))}</bdi></b>'


def minus(number: str) -> str:
    """The number with a minus as wide as a plus, which screen readers read out, in the place of a hyphen."""
    return number.replace("-", "\N{MINUS SIGN}")


def _mark(word: str, label: LabelExplanation, number: int, strongest: float) -> str:
    shown, value = escape(printable(word)), label.word_values[number]
    strength = abs(value) / strongest if strongest > 0 else 0.0
    if strength < _FAINTEST:
        return shown
    if label.word_contributions is None:
        return _styled(shown, _READ, 0.6 * strength, f"{value:.3f}")
    title = minus(f"{value:+.3f}")
    if label.word_weights is not None:
        title += f", attention {label.word_weights[number]:.3f}"
    return _styled(shown, _FOR if value > 0 else _AGAINST, 0.6 * strength, title)


def _styled(shown: str, color: str, strength: float, title: str = "") -> str:
    # Letters keep the colour of the page.
    style = f"background:rgba({color},{strength:.2f});color:inherit{_LINES.get(color, '')}"
    title = f' title="{title}"' if title else ""
    return f'<mark style="{style}"{title}>{shown}</mark>'


def _between_words(explanation: Explanation, start: int, end: int) -> str:
    """What stands between words that were read; pale where the text was cut off."""
    shown = escape(printable(explanation.text[start:end]))
    words = explanation.words
    if shown and explanation.truncated and (not words or start >= words[-1].end or end <= words[0].start):
        return f'<span style="opacity:.6">{shown}</span>'
    return shown
