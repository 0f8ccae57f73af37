"""What an explanation holds, and the forms it can be given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from .printable import NOTHING, signed, two_digits
from .words import Word

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ALL_BRANCHES, BLEND = "all", "blend"
# What the numbers of words are.
ATTENTION, CONTRIBUTIONS = "attention", "contributions"
# How parts of a blend are called; others are heads that read the text as a whole.
_PART_NAMES = {
    "memory": "texts with similar words",
    "dense": "texts with a similar meaning",
    "frequency": "label frequency",
    "tree": "label tree",
}
FURTHER_WORDS = "further words"


@dataclass
class SimilarText:
    """
    A training text that is similar to the explained one: its number, counted from 0 (-1 for the name of a label), the
    cosine, the names of its labels, and what is similar: its `"words"` (expert `memory`), its `"meaning"` (`dense`) or
    `"words and meaning"`.
    """

    number: int
    similarity: float
    labels: list[str]
    by: str = "words"

    @property
    def name(self) -> str:
        """How it is called."""
        return f"training text {self.number}" if self.number >= 0 else "the name of a label"


@dataclass
class LabelExplanation:
    """
    A label and what is behind it.

    With a blend, `sum(word_contributions) + sum(other_contributions.values()) + sum(parts.values()) + bias` is the
    `logit`, whose sigmoid is the final score. Without one the same holds for a branch with
    `attention_scoring="evidence"`: there are no parts then, and the sigmoid of the logit is the probability of the
    branch. With `attention_scoring="mlp"` and no blend there is attention alone, and these fields are `None`.

    Args:
        label, score, branch_scores: Name of the label, final probability, and that of each branch.
        local_share: What part of the score, which is the mean over branches, those with label-word attention bring, 0
            to 1: the sum of their probabilities by the sum of all. With a label tree it is that of telling the label
            from the others of its cluster, since the way down there cancels. `None` with a blend.
        word_weights: With what share of its attention the label read each of the explanation's words. Special tokens
            (`[CLS]`, `<sep>`) have a share too, which is left out: the sum may be below 1. `None` without attention.
        words: The words that matter most with their contributions, or else their attention; the largest first,
            whatever their sign. Occurrences of a word are summed.
        word_contributions: What each of the explanation's words adds to the logit: above 0 for the label, below 0
            against it.
        other_contributions: What tokens that are part of no word add: special tokens by their name, and those for
            blanks and the like as `"between words"`.
        parts: What has no words, by its name among the weights of the blend: heads such as `"global"`, `"memory"` and
            `"dense"` (similar texts), `"frequency"` (how often the label was met in training), and `"tree"` (the way
            down a label tree, in branches that read words). Empty without a blend.
        bias: What is there before anything is read: the bias of the label, and with a blend also that of the blend and
            where the lexical expert starts; 0 where there is none.
        logit: The sum of all of these; with a label tree and no blend that of the label given its cluster.
        cluster_score: With a label tree and no blend, the probability of the way down to the cluster of the label;
            times the sigmoid of the logit it is the probability of the branch.
    """

    label: str
    score: float
    branch_scores: dict[str, float]
    local_share: float | None
    word_weights: list[float] | None
    words: list[tuple[str, float]]
    word_contributions: list[float] | None = None
    other_contributions: dict[str, float] | None = None
    parts: dict[str, float] = field(default_factory=dict)
    bias: float | None = None
    logit: float | None = None
    cluster_score: float | None = None

    @property
    def word_values(self) -> list[float]:
        """The contribution of each of the explanation's words where it has one, else its attention."""
        return self.word_weights if self.word_contributions is None else self.word_contributions

    def named_parts(self) -> list[tuple[str, float]]:
        """The parts as people call them."""
        return [(_PART_NAMES.get(name, f"whole text: {name}"), value) for name, value in self.parts.items()]

    def branch_summary(self) -> str:
        """What the branches say, and the share of those with attention; nothing where there is only one."""
        if len(self.branch_scores) == 1:
            return ""
        branches = ", ".join(f"{name} {two_digits(score)}" for name, score in self.branch_scores.items())
        return branches if self.local_share is None else f"{branches}; {100 * self.local_share:.0f} % by attention"


@dataclass
class Explanation:
    """
    Labels of a text and what is behind each.

    Args:
        text, labels: The text, and the explained labels.
        words: Every word that was read, each occurrence with its place, in the order of the text.
        branch: The branch whose words are shown; `"blend"` for all that adds to the final score, `"all"` for the mean
            of all branches that read words.
        truncated: Whether the text was too long, so that words before the first or after the last of `words` were not
            read.
        measure: What the numbers in `words` of each label are: `"contributions"`, signed, or `"attention"`.
        similar_texts: With a blend, the most similar training texts, and the most similar ones that have an explained
            label, best first.
        encoder_characters: How many characters the encoder read of a text that the lexical expert read all of; `None`
            where there is no such difference.
    """

    text: str
    words: list[Word]
    labels: list[LabelExplanation]
    branch: str
    truncated: bool
    measure: str = ATTENTION
    similar_texts: list[SimilarText] = field(default_factory=list)
    encoder_characters: int | None = None

    def meaning(self) -> str:
        """What the numbers are, in a few sentences."""
        where, parts, bias = "", "", "the bias of the label"
        if self.branch == BLEND:
            named = dict.fromkeys(name for label in self.labels for name, _ in label.named_parts())
            parts, bias = "".join(f"{name}, " for name in named), "the bias"
            whole = "the logit, whose sigmoid is the score"
        elif self.branch == ALL_BRANCHES:
            where = " in the branches that read words (their mean, weighted by their probabilities)"
            whole = "the mean of their logits"
        else:
            where = f" in the branch {self.branch}"
            has_tree = any(label.cluster_score is not None for label in self.labels)
            of_what = "label given its cluster" if has_tree else "branch"
            whole = f"that logit, whose sigmoid is the probability of the {of_what}"
        if self.measure == ATTENTION:
            attention = (
                "The number of a word is its share of the label's attention. Attention tells what a label looked at; "
                "it is no proof that a word caused the score, nor whether it speaks for the label or against it."
            )
            return f"{attention} What is added sums to {whole}." if self.branch == BLEND else attention
        return (
            f"The number of a word is what it adds to the label's logit{where}: + speaks for the label, - against it. "
            f"All words, {parts}special tokens and {bias} sum to {whole}."
        )

    def partly_read(self) -> str:
        """How much of a long text the encoder read, where the experts read all of it; else nothing."""
        if self.encoder_characters is None:
            return ""
        read = f"{self.encoder_characters:,} of {len(self.text):,} characters"
        return f"long: the encoder read {read}, the lexical expert all of them"

    def similar_with(self, label_row: int) -> list[SimilarText]:
        """The similar training texts that have the label `labels[label_row]`."""
        return [text for text in self.similar_texts if self.labels[label_row].label in text.labels]

    def rest(self, label_row: int, shown: Sequence[str] | None = None) -> list[tuple[str, float]]:
        """
        What, beside some words, adds to the logit of `labels[label_row]`: other words, parts without words, special
        tokens and the bias, each by name. Together with those words, by default `words` of the label, it sums to the
        logit. Empty where there is attention alone.
        """
        label = self.labels[label_row]
        if label.logit is None:
            return []
        named = {word for word, _ in label.words} if shown is None else set(shown)
        numbers = zip(self.words, label.word_contributions or (), strict=False)
        others = [value for word, value in numbers if word.text not in named]
        return [
            *([("other words", sum(others))] if others else []),
            *label.named_parts(),
            *label.other_contributions.items(),
            *([("bias", label.bias)] if label.bias else []),
        ]

    def addends(self, label_row: int) -> tuple[list[tuple[str, float]], list[tuple[str, float]]]:
        """
        Contributions to `labels[label_row]` as people are shown them: words, and all the rest; without what rounds to
        nothing, so that what is left sums to the logit as far as two digits tell.
        """
        label = self.labels[label_row]
        words = [] if label.word_contributions is None else label.words
        words = [(word, value) for word, value in words if signed(value) != NOTHING]
        rest = self.rest(label_row, [word for word, _ in words])
        return words, [(name, value) for name, value in rest if signed(value) != NOTHING]

    def start(self, characters: int) -> "Explanation":
        """
        The same for the start of the text alone, of so many characters. What words further on add is one number,
        `"further words"` in `other_contributions`.
        """
        if len(self.text) <= characters:
            return self
        number = sum(word.end <= characters for word in self.words)
        words, labels = self.words[:number], []
        for label in self.labels:
            start = replace(label, word_weights=label.word_weights and label.word_weights[:number])
            if label.word_contributions is not None:
                start.word_contributions = label.word_contributions[:number]
                if further := sum(label.word_contributions[number:]):
                    start.other_contributions = {**label.other_contributions, FURTHER_WORDS: further}
            start.words = strongest_words(words, start.word_values, len(label.words))
            labels.append(start)
        return replace(self, text=self.text[:characters] + "…", words=words, labels=labels)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        return asdict(self)

    def to_text(self, color: bool = False, legend: bool = True) -> str:
        """Lines for a terminal, in colour or not; the legend below them says what the numbers are."""
        from .terminal_text import terminal_text

        return terminal_text(self, color, legend)

    def highlighted_html(self, label_row: int) -> str:
        """The text as a fragment of HTML, its words marked for `labels[label_row]`; what is of the text is escaped."""
        from .html_page import highlighted_text

        return highlighted_text(self, label_row)

    def to_html(self) -> str:
        """A page that needs nothing else: no script, no font, no network."""
        from .html_page import html_page

        return html_page([self])

    def figure(self) -> "Figure":
        """A heat map (`matplotlib.figure.Figure`) of labels and words (extra `analysis`)."""
        from .heat_map import heat_map

        return heat_map(self)


def strongest_words(words: Sequence[Word], values: Sequence[float], number: int) -> list[tuple[str, float]]:
    """Words with the values of their occurrences summed, the largest first whatever their sign."""
    totals: dict[str, float] = {}
    for word, value in zip(words, values, strict=True):
        totals[word.text] = totals.get(word.text, 0.0) + value
    return sorted(totals.items(), key=lambda item: -abs(item[1]))[:number]
