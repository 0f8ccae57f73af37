"""What an explanation holds, and the forms it can be given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .printable import two_digits
from .words import Word

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass
class LabelExplanation:
    """
    A label and the words behind it.

    Args:
        label: Name of the label.
        score: Final probability.
        branch_scores: Probability of each branch.
        local_share: What part of the score the branches with label-word attention bring, 0 to 1. The score is the mean
            over branches, so it is the sum of their probabilities by the sum of all. With a label tree the probability
            of every branch includes the way down to the label's cluster, which cancels: the share is then that of
            telling the label from the others of its cluster. 1 where all branches have attention.
        word_weights: With what share of its attention the label read each of the explanation's words. Special tokens
            (`[CLS]`, `<sep>`) have a share too, which is left out and not given to the words: the sum may be below 1.
        words: The words read most with their weights, most first; occurrences of a word are summed.
    """

    label: str
    score: float
    branch_scores: dict[str, float]
    local_share: float
    word_weights: list[float]
    words: list[tuple[str, float]]

    def branch_summary(self) -> str:
        """What the branches say, and the share of those with attention; nothing where there is only one."""
        if len(self.branch_scores) == 1:
            return ""
        branches = ", ".join(f"{name} {two_digits(score)}" for name, score in self.branch_scores.items())
        return f"{branches}; {100 * self.local_share:.0f} % by attention"


@dataclass
class Explanation:
    """
    Labels of a text and the words that each read.

    Args:
        text: The text.
        words: Every word that was read, each occurrence with its place, in the order of the text.
        labels: The explained labels.
        branch: The branch whose attention is shown; `"all"` for the mean of all that have one.
        truncated: Whether the text was too long, so that words before the first or after the last of `words` were not
            read.
    """

    text: str
    words: list[Word]
    labels: list[LabelExplanation]
    branch: str
    truncated: bool

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return asdict(self)

    def to_text(self, color: bool = False) -> str:
        """Lines for a terminal, with colours where they are wanted."""
        from .terminal_text import terminal_text

        return terminal_text(self, color)

    def highlighted_html(self, label_row: int) -> str:
        """
        The text as a fragment of HTML, marked with what a label read; all that comes from the text is escaped.

        Args:
            label_row: Which of `labels` is meant.
        """
        from .html_page import highlighted_text

        return highlighted_text(self, label_row)

    def to_html(self) -> str:
        """A page that needs nothing else: no script, no font, no network."""
        from .html_page import html_page

        return html_page([self])

    def figure(self) -> "Figure":
        """A heat map of labels and words (extra `analysis`)."""
        from .heat_map import heat_map

        return heat_map(self)


def most_read(words: Sequence[Word], weights: Sequence[float], number: int) -> list[tuple[str, float]]:
    """Words with the weights of their occurrences summed, most first; equal ones in the order of the text."""
    totals: dict[str, float] = {}
    for word, weight in zip(words, weights, strict=True):
        totals[word.text] = totals.get(word.text, 0.0) + weight
    return sorted(totals.items(), key=lambda item: -item[1])[:number]
