"""
Experts beside the heads of a family: a linear model per label over token ids, and memories of training texts, by their
tokens and by their embeddings. And the final scores of a model with experts, a weighted sum of the logits of all
branches that is fitted on held-out texts.
"""

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .encoder import each_once
from .label_scores import LabelScores, MeanProbability, Ranking, TopLabels, mean_probability_logits, product_logits
from .linear_head import check_loaded
from .token_counts import SparseTable, TextCounter, run_places

# Margins of linear classifiers end near -1 and 1; times this they are log-odds of about the right size. Nodes of a
# tree decide less sharply than labels: the best of several pairs on held-out training texts of three data sets.
_LABEL_SCALE, _NODE_SCALE = 4.0, 3.0
# A vote of 0 stands for this share of the probability; and the logit of a label that no text votes for.
_LEAST_VOTE = 0.05
_NO_VOTE = math.log(_LEAST_VOTE / (1 + _LEAST_VOTE))
# How many labels each ranking brings to a blend where not all labels are scored.
_CANDIDATES = 20
# What has a weight in a blend beside the heads (`add_branch`).
LEXICAL, LEXICAL_BEND, FREQUENCY, BIAS = "lexical", "lexical_bend", "frequency", "bias"
MEMORY, DENSE = "memory", "dense"
# Whether any text of a memory votes for a label has a weight of its own.
VOTES = {MEMORY: "memory_vote", DENSE: "dense_vote"}
# Margins say less and less the larger they are: above this the lexical logit rises with a slope of its own.
LEXICAL_KNOT = -2.0


class ExpertScores(LabelScores):
    """Logits of an expert for all labels, computed at once when the first of them is asked for."""

    def __init__(self, expert: "LexicalExpert | TextMemory", texts: Tensor):
        check_loaded(expert)
        self.expert, self.texts = expert, texts
        self.num_texts, self.num_labels, self.run_size = len(texts), expert.num_labels, expert.num_labels
        self._logits: Tensor | None = None

    @torch.no_grad()
    def all(self) -> Tensor:
        if self._logits is None:
            self._logits = self.expert.logits(self.texts)
        return self._logits

    def run(self, start: int, stop: int) -> Tensor:
        return self.all()[:, start:stop]

    def chosen(self, label_ids: Tensor) -> Tensor:
        return self.all()[:, label_ids] if label_ids.dim() == 1 else self.all().gather(1, label_ids)


class LexicalExpert(nn.Module):
    """
    A linear classifier per label over the tokens of the whole text, as in Parabel
    ([10.1145/3178876.3185998](https://doi.org/10.1145/3178876.3185998)) and its successors.

    Where labels are many they lie under a tree: a label is trained against the texts of its cluster, a cluster against
    those of the node above it, and so on; the probability of a label is the product of all on the way to it.

    Args:
        num_labels: Number of labels.
        tokens: Size of the vocabulary.
        pairs: Number of pairs of tokens that are features too.
        levels: Number of nodes of each level of the tree from the top; none where labels are against all texts.
        entries: Number of weights of each level, and last of the labels.
        lead: How many of the first tokens are features of their own too.
    """

    def __init__(self, num_labels: int, tokens: int, pairs: int, levels: list[int], entries: list[int], lead: int = 0):
        super().__init__()
        self.num_labels = num_labels
        self.counter = TextCounter(tokens, pairs, lead)
        sizes, features = [*levels, num_labels], len(self.counter.weights)
        self.tables = nn.ModuleList(
            SparseTable(features, size, number) for size, number in zip(sizes, entries, strict=True)
        )
        for level, size in enumerate(sizes):
            self.register_buffer(f"biases_{level}", torch.zeros(size))
            # The node above each; all of the first level are below the root.
            self.register_buffer(f"parents_{level}", torch.zeros(size if level else 0, dtype=torch.long))

    def forward(self, token_ids: Tensor) -> ExpertScores:
        """Scores of texts, given as the ids of all of their tokens, of shape (texts, tokens)."""
        return ExpertScores(self, token_ids)

    def logits(self, token_ids: Tensor, levels: int | None = None) -> Tensor:
        """Logits of all labels, of shape (texts, labels); or of all nodes of the last of so many levels."""
        row = self.counter(token_ids)
        logits = None
        for level, table in enumerate(self.tables[:levels]):
            own = self.scale(level) * (table(*row) + getattr(self, f"biases_{level}"))
            logits = own if logits is None else product_logits(logits, own, getattr(self, f"parents_{level}"))
        return logits

    def scale(self, level: int) -> float:
        """Turns margins of a level into log-odds."""
        return _LABEL_SCALE if level == len(self.tables) - 1 else _NODE_SCALE


class TextMemory(nn.Module):
    """
    Training texts that vote for their labels: the most similar ones, each with a power of its similarity; the votes
    for a label sum to one at most. Nothing is trained, so texts can be added and removed at any time.

    A subclass keeps the texts and defines `similarities`.

    Args:
        num_labels: Number of labels.
        texts, labels: Number of texts, and of the labels of all of them.
        neighbors, power: How many texts vote, and the power of the similarity in a vote.
    """

    def __init__(self, num_labels: int, texts: int, labels: int, neighbors: int, power: float):
        super().__init__()
        self.num_labels, self.neighbors, self.power = num_labels, neighbors, power
        # Which number a text has where it comes from, and its labels.
        self.register_buffer("text_numbers", torch.zeros(texts, dtype=torch.long))
        self.register_buffer("label_starts", torch.zeros(texts + 1, dtype=torch.long))
        self.register_buffer("label_ids", torch.zeros(labels, dtype=torch.int))

    def forward(self, texts: Tensor) -> ExpertScores:
        """Scores of texts, given as `similarities` takes them."""
        return ExpertScores(self, texts)

    def similarities(self, texts: Tensor) -> Tensor:
        """Cosine similarities of texts to all texts of the memory, of shape (texts, texts of the memory)."""
        raise NotImplementedError

    @torch.no_grad()
    def similar(self, texts: Tensor, number: int | None = None) -> tuple[Tensor, Tensor]:
        """Similarities of the most similar texts, best first, the earlier one on a tie, and their rows: (texts, n)."""
        return TopLabels(number or self.neighbors).update(self.similarities(texts), 0).result()

    def labels_of(self, row: int) -> list[int]:
        """The labels of a text of the memory."""
        start, stop = self.label_starts[row : row + 2].tolist()
        return self.label_ids[start:stop].tolist()

    def logits(self, texts: Tensor) -> Tensor:
        """Log-odds of the votes for all labels, of shape (texts, labels)."""
        similarities, rows = self.similar(texts)
        weights = similarities.clamp(min=0) ** self.power
        # Votes of texts that are hardly similar sum to one as well.
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
        which, places = run_places(self.label_starts, rows.flatten())
        cells = which // rows.shape[1] * self.num_labels + self.label_ids[places].long()
        votes = weights.new_zeros(len(rows) * self.num_labels).index_add_(0, cells, weights.flatten()[which])
        # Most labels have no vote: their log-odds are the same, and are not computed one by one.
        logits = torch.full_like(votes, _NO_VOTE)
        logits[cells] = ((votes[cells] + _LEAST_VOTE) / (1 + 2 * _LEAST_VOTE)).logit()
        return logits.view(len(rows), -1)


class MemoryExpert(TextMemory):
    """
    Training texts as sparse rows of token counts, compared with the ids of all tokens of a text, (texts, tokens).

    Args:
        num_labels, texts, labels, neighbors, power: As in [`TextMemory`].
        tokens: Size of the vocabulary.
        entries: Number of counts of all texts.
        lead: How many of the first tokens are features of their own too.
    """

    def __init__(
        self, num_labels: int, tokens: int, texts: int, entries: int, labels: int, neighbors: int, power: float,
        lead: int = 0,
    ):  # fmt: skip
        super().__init__(num_labels, texts, labels, neighbors, power)
        self.counter = TextCounter(tokens, lead=lead)
        self.texts = SparseTable(len(self.counter.weights), texts, entries)

    def similarities(self, texts: Tensor) -> Tensor:
        return self.texts(*self.counter(texts))


class DenseMemory(TextMemory):
    """
    Document embeddings of training texts, compared with that of a text, (texts, hidden): it finds texts on the same
    subject in other words. The encoder must be the one that the embeddings were made with.

    Args:
        num_labels, texts, labels, neighbors, power: As in [`TextMemory`].
        size: Size of the embeddings.
    """

    def __init__(self, num_labels: int, size: int, texts: int, labels: int, neighbors: int, power: float):
        super().__init__(num_labels, texts, labels, neighbors, power)
        # The mean of the embeddings: what all texts have in common would make all of them similar.
        self.register_buffer("center", torch.zeros(size))
        self.register_buffer("directions", torch.zeros(texts, size))  # of unit length

    def similarities(self, texts: Tensor) -> Tensor:
        return self.direction(texts) @ self.directions.float().T

    def direction(self, embeddings: Tensor) -> Tensor:
        """Embeddings without what all have in common, of unit length, (texts, hidden)."""
        return nn.functional.normalize(embeddings.float() - self.center.float(), dim=1)


def vote_share(logits: Tensor) -> Tensor:
    """1 for labels that any similar text has, by their logits in a memory, and 0 for others."""
    # A comparison takes several times as long. Between the two are votes of less than 0.0001.
    return (logits - _NO_VOTE).mul_(1000).clamp_(0, 1)


def add_branch(total: Tensor, name: str, logits: Tensor, weights: dict[str, float]) -> Tensor:
    """
    Adds to the logits of a blend, in place, what a branch gives: its weight times its own logits. Those of the lexical
    expert may rise with another slope above `LEXICAL_KNOT`, and any vote of a memory may count beside how strong it
    is. A branch without weight counts nothing, whatever its scores are.
    """
    if weight := weights.get(name):
        total.add_(logits, alpha=weight)
    if name == LEXICAL and (bend := weights.get(LEXICAL_BEND)):
        total.add_((logits - LEXICAL_KNOT).clamp_(min=0), alpha=bend)
    if name in VOTES and (vote := weights.get(VOTES[name])):
        total.add_(vote_share(logits), alpha=vote)
    return total


class Blend(MeanProbability):
    """
    Scores of heads and experts together. The logit of a label is the sum of what the branches add ([`add_branch`]),
    the weighted log frequency of the label in training, and a constant (logistic regression). Without weights its
    probability is the mean of the probabilities of the branches.

    Args:
        heads: The scores of the heads of a family, where it has some.
        experts: The scores of the experts, by name.
        blend: What was fitted ([`XMTCConfig`]): `weights` of each branch, of `"lexical_bend"`, `"memory_vote"`,
            `"dense_vote"`, `"frequency"` and `"bias"`; one that is missing is 0.
        log_frequencies: Log frequency of each label, of shape (labels,).
    """

    # What a model makes its experts of.
    experts: ClassVar[dict[str, type[nn.Module]]] = {LEXICAL: LexicalExpert, MEMORY: MemoryExpert, DENSE: DenseMemory}

    def __init__(
        self,
        heads: MeanProbability | None,
        experts: dict[str, LabelScores],
        blend: dict[str, Any] | None,
        log_frequencies: Tensor | None,
    ):
        super().__init__({**({} if heads is None else heads.branches), **experts})
        self.heads, self.of_experts = heads, experts
        self.weights, self.log_frequencies = None if blend is None else blend["weights"], log_frequencies

    def combined(self, logits: list[Tensor], labels: slice | Tensor) -> Tensor:
        if self.weights is None:
            return mean_probability_logits(logits)
        total = torch.zeros_like(logits[0])
        for name, values in zip(self.branches, logits, strict=True):
            add_branch(total, name, values, self.weights)
        return total.add_(self.addends(labels))

    def addends(self, labels: slice | Tensor) -> Tensor:
        """What is added to the logits of labels whatever the text is, of the shape of the labels."""
        frequency = self.weights.get(FREQUENCY, 0.0) * self.log_frequencies[labels]
        return frequency + self.weights.get(BIAS, 0.0)

    def top_k(self, k: int) -> Ranking:
        if self.heads is None or not self.heads.ranks_candidates:
            return self.top_of_runs(k).ranking(self.num_texts)
        # The heads find their labels without scoring all: the best of these and of each expert are looked at.
        number = min(max(k, _CANDIDATES), self.num_labels)
        of_heads = self.heads.top_k(min(number, self.heads.most_ranked)).ids
        found = [of_heads, *(scores.top_k(number).ids for scores in self.of_experts.values())]
        ids = torch.cat(found, dim=1).sort(dim=1).values
        return self.top_k_of(ids, k, left_out=each_once(ids) < 0)[0]
