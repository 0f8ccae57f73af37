"""
Experts that read a text as a bag of token ids, a linear model per label and a memory of training texts; and the final
scores of a model with experts, a weighted sum of the logits of all branches that is fitted on held-out texts.
"""

import math
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from .encoder import each_once
from .label_scores import LabelScores, MeanProbability, Ranking, TopLabels, mean_probability_logits, product_logits
from .linear_head import check_loaded

# Margins of linear classifiers end near -1 and 1; times this they are log-odds of about the right size. Nodes of a
# tree decide less sharply than labels: the best of several pairs on held-out training texts of three data sets.
_LABEL_SCALE, _NODE_SCALE = 4.0, 3.0
# A vote of 0 stands for this share of the probability; and the logit of a label that no text votes for.
_LEAST_VOTE = 0.05
_NO_VOTE = math.log(_LEAST_VOTE / (1 + _LEAST_VOTE))
# Products of texts and sparse rows are made in pieces of about this many entries.
_PIECE_ENTRIES = 2**22
# How many labels each ranking brings to a blend where not all labels are scored.
_CANDIDATES = 20
# What has a weight in a blend beside the heads (`add_branch`).
LEXICAL, LEXICAL_BEND, MEMORY, MEMORY_VOTE = "lexical", "lexical_bend", "memory", "memory_vote"
FREQUENCY, BIAS = "frequency", "bias"
# Margins say less and less the larger they are: above this the lexical logit rises with a slope of its own.
LEXICAL_KNOT = -2.0


class TextCounter(nn.Module):
    """
    From token ids to a sparse row of unit length: logarithmic counts of tokens, of frequent pairs of neighbouring
    tokens, and of the first tokens once more, times a weight for each (inverse document frequency). What has the
    weight 0, such as special tokens, and what is beyond the vocabulary is ignored.

    Args:
        tokens: Size of the vocabulary.
        pairs: Number of pairs of tokens; they come behind the tokens.
        lead: How many of the first tokens of a text, where its title often is, are features of their own too; these
            come behind the pairs.
    """

    def __init__(self, tokens: int, pairs: int = 0, lead: int = 0):
        super().__init__()
        self.tokens, self.lead = tokens, lead
        self.register_buffer("weights", torch.zeros(tokens + pairs + (tokens if lead else 0)))
        # first id * tokens + second id, ascending
        self.register_buffer("pair_keys", torch.zeros(pairs, dtype=torch.long))

    def features(self, token_ids: Tensor) -> Tensor:
        """
        The feature of each token; then, where there are pairs, of each pair that starts with it; then, where the first
        tokens count apart, of each of them: (texts, tokens) for each kind, side by side; -1 for none.
        """
        known = (token_ids >= 0) & (token_ids < self.tokens)
        ids = token_ids.where(known, 0)
        known &= self.weights[ids] != 0
        kinds = [ids.where(known, -1)]
        if len(self.pair_keys):
            keys = torch.full_like(ids, -1)
            keys[:, :-1] = (ids[:, :-1] * self.tokens + ids[:, 1:]).where(known[:, :-1] & known[:, 1:], -1)
            places = torch.searchsorted(self.pair_keys, keys).clamp(max=len(self.pair_keys) - 1)
            kinds.append((places + self.tokens).where(self.pair_keys[places] == keys, -1))
        if self.lead:
            # Padding and special tokens before a text move nothing: only tokens that count are numbered.
            is_first = known & (known.cumsum(dim=1) <= self.lead)
            kinds.append((ids + self.tokens + len(self.pair_keys)).where(is_first, -1))
        return torch.cat(kinds, dim=1)

    def forward(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Distinct features of each text and their values, both (texts, features); padding has the value 0."""
        features = self.features(token_ids).sort(dim=1).values
        is_first = torch.ones_like(features, dtype=torch.bool)
        is_first[:, 1:] = features[:, 1:] != features[:, :-1]
        place = is_first.cumsum(dim=1) - 1
        counts = torch.zeros_like(features, dtype=torch.float).scatter_add_(1, place, (features >= 0).float())
        distinct = torch.zeros_like(features).scatter_(1, place, features.clamp(min=0))
        values = (1 + counts.clamp(min=1).log()) * self.weights[distinct].float() * (counts > 0)
        return distinct, values / values.norm(dim=1, keepdim=True).clamp(min=1e-12)


class SparseTable(nn.Module):
    """
    Sparse rows over the features of texts, kept feature by feature: a text costs what its own features hold.

    Args:
        features: Number of features.
        rows: Number of rows.
        entries: Number of values that are not zero.
    """

    def __init__(self, features: int, rows: int, entries: int):
        super().__init__()
        self.num_rows = rows
        self.register_buffer("starts", torch.zeros(features + 1, dtype=torch.long))
        self.register_buffer("rows", torch.zeros(entries, dtype=torch.int))
        self.register_buffer("values", torch.zeros(entries))

    def entries(self, features: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of each entry that these features meet: which of them, its row, and its value times theirs."""
        which, places = run_places(self.starts, features, values != 0)
        return which, self.rows[places].long(), self.values[places].float() * values[which]

    def forward(self, features: Tensor, values: Tensor) -> Tensor:
        """Products of texts, given as by [`TextCounter`], with all rows: (texts, rows)."""
        if values.device.type == "cpu" and torch.backends.mkl.is_available() and self.starts[-1] < 2**31:
            return self._of_matrices(features, values)
        return self._of_entries(features, values)

    def _of_matrices(self, features: Tensor, values: Tensor) -> Tensor:
        """As matrices in compressed rows, where there is a library for it: twenty times as fast."""
        met = values != 0
        ends = torch.cat([values.new_zeros(1), met.sum(dim=1).cumsum(0)]).int()
        size = (len(values), len(self.starts) - 1)
        with warnings.catch_warnings():
            # torch tells, once, that such matrices are new.
            warnings.simplefilter("ignore")
            texts = torch.sparse_csr_tensor(ends, features[met].int(), values[met], size=size)
            table = torch.sparse_csr_tensor(
                self.starts.int(), self.rows, self.values.to(values.dtype), size=(size[1], self.num_rows)
            )
        return torch.mm(texts, table, out=values.new_empty(len(values), self.num_rows))

    def _of_entries(self, features: Tensor, values: Tensor) -> Tensor:
        """Entry by entry, anywhere."""
        result = values.new_zeros(len(values), self.num_rows)
        met = ((self.starts[features + 1] - self.starts[features]) * (values != 0)).sum(dim=1)
        pieces = (met.cumsum(0) // _PIECE_ENTRIES).unique_consecutive(return_counts=True)[1].tolist()
        start = 0
        for length in pieces:
            texts = slice(start, start + length)
            which, rows, products = self.entries(features[texts].flatten(), values[texts].flatten())
            text = which // features.shape[1]
            result[texts].view(-1).index_add_(0, text * self.num_rows + rows, products)
            start += length
        return result


def run_places(starts: Tensor, runs: Tensor, wanted: Tensor | int = 1) -> tuple[Tensor, Tensor]:
    """Which of the given runs, (runs,), every entry of those `wanted` belongs to, and the place of the entry."""
    first = starts[runs]
    lengths = (starts[runs + 1] - first) * wanted
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if len(ends) else 0
    which = torch.repeat_interleave(lengths, output_size=total)
    return which, torch.arange(total, device=first.device) + (first - ends + lengths)[which]


class ExpertScores(LabelScores):
    """Logits of an expert for all labels, computed at once when the first of them is asked for."""

    def __init__(self, expert: "LexicalExpert | MemoryExpert", token_ids: Tensor):
        check_loaded(expert)
        self.expert, self.token_ids = expert, token_ids
        self.num_texts, self.num_labels, self.run_size = len(token_ids), expert.num_labels, expert.num_labels
        self._logits: Tensor | None = None

    @torch.no_grad()
    def all(self) -> Tensor:
        if self._logits is None:
            self._logits = self.expert.logits(self.token_ids)
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


class MemoryExpert(nn.Module):
    """
    Training texts as sparse rows: the most similar ones vote for their labels, each with a power of its cosine
    similarity; the votes of a text sum to one per label at most. Nothing is trained, so texts can be added and removed
    at any time.

    Args:
        num_labels: Number of labels.
        tokens: Size of the vocabulary.
        texts, entries, labels: Number of texts, and of the counts and the labels of all of them.
        neighbors, power: How many texts vote, and the power of the similarity in a vote.
        lead: How many of the first tokens are features of their own too.
    """

    def __init__(
        self, num_labels: int, tokens: int, texts: int, entries: int, labels: int, neighbors: int, power: float,
        lead: int = 0,
    ):  # fmt: skip
        super().__init__()
        self.num_labels, self.neighbors, self.power = num_labels, neighbors, power
        self.counter = TextCounter(tokens, lead=lead)
        self.texts = SparseTable(len(self.counter.weights), texts, entries)
        # Which number a text has where it comes from, and its labels.
        self.register_buffer("text_numbers", torch.zeros(texts, dtype=torch.long))
        self.register_buffer("label_starts", torch.zeros(texts + 1, dtype=torch.long))
        self.register_buffer("label_ids", torch.zeros(labels, dtype=torch.int))

    def forward(self, token_ids: Tensor) -> ExpertScores:
        """Scores of texts, given as the ids of all of their tokens, of shape (texts, tokens)."""
        return ExpertScores(self, token_ids)

    @torch.no_grad()
    def similar(self, token_ids: Tensor, number: int | None = None) -> tuple[Tensor, Tensor]:
        """Similarities of the most similar texts, best first, the earlier one on a tie, and their rows: (texts, n)."""
        similarities = self.texts(*self.counter(token_ids))
        return TopLabels(number or self.neighbors).update(similarities, 0).result()

    def labels_of(self, row: int) -> list[int]:
        """The labels of a text of the memory."""
        start, stop = self.label_starts[row : row + 2].tolist()
        return self.label_ids[start:stop].tolist()

    def logits(self, token_ids: Tensor) -> Tensor:
        """Log-odds of the votes for all labels, of shape (texts, labels)."""
        similarities, rows = self.similar(token_ids)
        weights = similarities.clamp(min=0) ** self.power
        weights = weights / weights.sum(dim=1, keepdim=True).clamp(min=1e-12)
        which, places = run_places(self.label_starts, rows.flatten())
        cells = which // rows.shape[1] * self.num_labels + self.label_ids[places].long()
        votes = weights.new_zeros(len(rows) * self.num_labels).index_add_(0, cells, weights.flatten()[which])
        # Most labels have no vote: their log-odds are the same, and are not computed one by one.
        logits = torch.full_like(votes, _NO_VOTE)
        logits[cells] = ((votes[cells] + _LEAST_VOTE) / (1 + 2 * _LEAST_VOTE)).logit()
        return logits.view(len(rows), -1)


def vote_share(logits: Tensor) -> Tensor:
    """1 for labels that any similar text has, by their logits in the memory, and 0 for others."""
    # A comparison takes several times as long. Between the two are votes of less than 0.0001.
    return (logits - _NO_VOTE).mul_(1000).clamp_(0, 1)


def add_branch(total: Tensor, name: str, logits: Tensor, weights: dict[str, float]) -> Tensor:
    """
    Adds to the logits of a blend, in place, what a branch gives: its weight times its own logits. Those of the lexical
    expert may rise with another slope above `LEXICAL_KNOT`, and any vote of the memory may count beside how strong it
    is. A branch without weight counts nothing, whatever its scores are.
    """
    if weight := weights.get(name):
        total.add_(logits, alpha=weight)
    if name == LEXICAL and (bend := weights.get(LEXICAL_BEND)):
        total.add_((logits - LEXICAL_KNOT).clamp_(min=0), alpha=bend)
    if name == MEMORY and (vote := weights.get(MEMORY_VOTE)):
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
            `"frequency"` and `"bias"`; one that is missing is 0.
        log_frequencies: Log frequency of each label, of shape (labels,).
    """

    # What a model makes its experts of.
    experts: ClassVar[dict[str, type[nn.Module]]] = {LEXICAL: LexicalExpert, MEMORY: MemoryExpert}

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
