"""What an explanation holds, and the forms it can be given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .printable import NOTHING, signed, two_digits
from .words import Word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_BRANCHES = "all"
# What the numbers of words are.
ATTENTION, CONTRIBUTIONS = "attention", "contributions"


@dataclass
class LabelExplanation:
    """
    A label and the words behind it.

    With `attention_scoring="evidence"` a word has a contribution: what it adds to the logit of the label in the branch
    that is explained. `sum(word_contributions) + sum(other_contributions.values()) + bias` is `logit`. With
    `attention_scoring="mlp"` there is attention alone, and the fields of contributions are `None`.

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
        words: The words that matter most with their contributions, or else their attention; the largest first,
            whatever their sign. Occurrences of a word are summed.
        word_contributions: What each of the explanation's words adds to the logit: above 0 for the label, below 0
            against it.
        other_contributions: What tokens that are part of no word add: special tokens by their name, and those for
            blanks and the like as `"between words"`.
        bias: The bias of the label, which is there before a word is read; 0 where the model has none.
        logit: The sum of all of these. Its sigmoid is the probability of the branch, or, with a label tree, that of
            the label given its cluster.
        cluster_score: With a label tree, the probability of the way down to the cluster of the label; times the
            sigmoid of the logit it is the probability of the branch. `None` without a tree.
    """

    label: str
    score: float
    branch_scores: dict[str, float]
    local_share: float
    word_weights: list[float]
    words: list[tuple[str, float]]
    word_contributions: list[float] | None = None
    other_contributions: dict[str, float] | None = None
    bias: float | None = None
    logit: float | None = None
    cluster_score: float | None = None

    @property
    def word_values(self) -> list[float]:
        """The contribution of each of the explanation's words where it has one, else its attention."""
        return self.word_weights if self.word_contributions is None else self.word_contributions

    def branch_summary(self) -> str:
        """What the branches say, and the share of those with attention; nothing where there is only one."""
        if len(self.branch_scores) == 1:
            return ""
        branches = ", ".join(f"{name} {two_digits(score)}" for name, score in self.branch_scores.items())
        return f"{branches}; {100 * self.local_share:.0f} % by attention"


@dataclass
class Explanation:
    """
    Labels of a text and the words behind each.

    Args:
        text: The text.
        words: Every word that was read, each occurrence with its place, in the order of the text.
        labels: The explained labels.
        branch: The branch whose words are shown; `"all"` for the mean of all that read words.
        truncated: Whether the text was too long, so that words before the first or after the last of `words` were not
            read.
        measure: What the numbers in `words` of each label are: `"contributions"`, signed, or `"attention"`.
    """

    text: str
    words: list[Word]
    labels: list[LabelExplanation]
    branch: str
    truncated: bool
    measure: str = ATTENTION

    def meaning(self) -> str:
        """What the numbers are, in a few sentences."""
        if self.measure == ATTENTION:
            return (
                "The number of a word is its share of the label's attention. Attention tells what a label looked at; "
                "it is no proof that a word caused the score, nor whether it speaks for the label or against it."
            )
        has_tree = any(label.cluster_score is not None for label in self.labels)
        of_logit = "the probability of the label given its cluster" if has_tree else "the probability of the branch"
        where, whole = f"the branch {self.branch}", f"that logit, whose sigmoid is {of_logit}"
        if self.branch == ALL_BRANCHES:
            where = "the branches that read words (their mean, weighted by their probabilities)"
            whole = "the mean of their logits"
        return (
            f"The number of a word is what it adds to the label's logit in {where}: + speaks for the label, - against "
            f"it. All words, special tokens and the bias of the label sum to {whole}."
        )

    def rest(self, label_row: int, shown: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """
        What, beside some words, adds to the logit of a label: other words, special tokens and the bias, each by name.
        Together with those words it sums to the logit. Empty where words have no contributions.

        Args:
            label_row: Which of `labels` is meant.
            shown: The words that are shown by themselves; those in `words` of the label by default.
        """
        label = self.labels[label_row]
        if label.word_contributions is None:
            return []
        named = {word for word, _ in label.words} if shown is None else set(shown)
        others = [
            value for word, value in zip(self.words, label.word_contributions, strict=True) if word.text not in named
        ]
        return [
            *([("other words", sum(others))] if others else []),
            *label.other_contributions.items(),
            *([("bias", label.bias)] if label.bias else []),
        ]

    def addends(self, label_row: int) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """
        Contributions as people are shown them: words, and all the rest; without what rounds to nothing, so that what
        is left sums to the logit as far as two digits tell.

        Args:
            label_row: Which of `labels` is meant.
        """
        words = [(word, value) for word, value in self.labels[label_row].words if signed(value) != NOTHING]
        rest = self.rest(label_row, [word for word, _ in words])
        return words, [(name, value) for name, value in rest if signed(value) != NOTHING]

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return asdict(self)

    def to_text(self, color: bool = False, legend: bool = True) -> str:
        """
        Lines for a terminal.

        Args:
            color: Whether to colour them.
            legend: Whether to say below them what the numbers are.
        """
        from .terminal_text import terminal_text

        return terminal_text(self, color, legend)

    def highlighted_html(self, label_row: int) -> str:
        """
        The text as a fragment of HTML, its words marked for a label; all that comes from the text is escaped.

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


def strongest_words(words: Sequence[Word], values: Sequence[float], number: int) -> list[tuple[str, float]]:
    """Words with the values of their occurrences summed, the largest first whatever their sign."""
    totals: dict[str, float] = {}
    for word, value in zip(words, values, strict=True):
        totals[word.text] = totals.get(word.text, 0.0) + value
    return sorted(totals.items(), key=lambda item: -abs(item[1]))[:number]
