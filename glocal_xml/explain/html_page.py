"""Explanations as HTML: no script, nothing from elsewhere, and whatever comes from texts and names escaped."""

from collections.abc import Sequence
from html import escape

from .explanation import Explanation, LabelExplanation
from .printable import printable, short, two_digits

# A weight as a share of the largest one: below it, a mark could not be seen.
_FAINTEST = 0.05
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
.words { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem; padding: 0; margin: .5rem 0 0; }
.words li { border: 1px solid var(--line); border-radius: 1rem; padding: 0 .6rem; font-size: .875rem; }
.words b { font-weight: 600; overflow-wrap: anywhere; }
"""
_HEAD = f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What labels read</title>
<style>{_STYLE}</style>
</head>
"""
_LONGEST_HEADING = 100


def highlighted_text(explanation: Explanation, label_row: int) -> str:
    """The text with a mark on every word that a label read, the stronger the more of its attention it has."""
    weights = explanation.labels[label_row].word_weights
    strongest = max(weights, default=0.0)
    parts, end = [], 0
    for word, weight in zip(explanation.words, weights, strict=True):
        parts.append(_between_words(explanation, end, word.start))
        parts.append(_mark(word.text, weight, weight / strongest if strongest > 0 else 0.0))
        end = word.end
    parts.append(_between_words(explanation, end, len(explanation.text)))
    return f'<p dir="auto" lang="" style="white-space:pre-wrap;overflow-wrap:anywhere">{"".join(parts)}</p>'


def html_page(explanations: Sequence[Explanation]) -> str:
    """A whole page of explained texts."""
    articles = "\n".join(_article(explanation) for explanation in explanations)
    return f"""{_HEAD}<body>
<h1>What labels read</h1>
<p class="note">The stronger the mark, the more of a label's attention a word has. Attention tells what a label looked
at; it is no proof that a word caused the score.</p>
{articles}
</body>
</html>
"""


def _article(explanation: Explanation) -> str:
    parts = [f'<h2 dir="auto" lang="">{escape(short(explanation.text, _LONGEST_HEADING))}</h2>']
    if not explanation.words:
        parts.append('<p class="note">There is no word in the text that could be read.</p>')
    if explanation.truncated:
        parts.append('<p class="note">The text is longer than the model reads: what is pale was not read.</p>')
    parts += [_details(explanation, row, label) for row, label in enumerate(explanation.labels)]
    return "\n".join(["<article>", *parts, "</article>"])


def _details(explanation: Explanation, row: int, label: LabelExplanation) -> str:
    summary = label.branch_summary()
    note = f'\n<p class="note">{escape(summary)}</p>' if summary else ""
    words = "".join(
        f'<li><b><bdi lang="">{escape(short(word, _LONGEST_HEADING))}</bdi></b> {weight:.2f}</li>'
        for word, weight in label.words
    )
    return f"""<details{" open" if row == 0 else ""}>
<summary><span class="score">{escape(two_digits(label.score))}</span>
<bdi class="name" lang="">{escape(printable(label.label))}</bdi>
<span class="bar"><span style="width:{100 * label.score:.1f}%"></span></span></summary>
<div class="read">{note}
<ul class="words">{words}</ul>
{highlighted_text(explanation, row)}
</div>
</details>"""


def _mark(word: str, weight: float, strength: float) -> str:
    shown = escape(printable(word))
    if strength < _FAINTEST:
        return shown
    # A colour that is seen through suits light and dark pages, and letters keep the colour of the page.
    style = f"background:rgba(245,158,11,{0.6 * strength:.2f});color:inherit"
    return f'<mark style="{style}" title="{weight:.3f}">{shown}</mark>'


def _between_words(explanation: Explanation, start: int, end: int) -> str:
    """What stands between words that were read; pale where the text was cut off."""
    shown = escape(printable(explanation.text[start:end]))
    words = explanation.words
    if shown and explanation.truncated and (not words or start >= words[-1].end or end <= words[0].start):
        return f'<span style="opacity:.6">{shown}</span>'
    return shown
