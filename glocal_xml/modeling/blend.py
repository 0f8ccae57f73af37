"""The final scores of a model with experts: a weighted sum of the logits of all branches, fitted on held-out texts."""

from typing import Any

import torch
from torch import Tensor, nn

from .encoder import each_once
from .experts import LexicalExpert, MemoryExpert
from .label_scores import LabelScores, MeanProbability, Ranking, TopLabels, mean_probability_logits

# How many labels each ranking brings where not all labels are scored.
_CANDIDATES = 20
FREQUENCY, BIAS = "frequency", "bias"


class Blend(MeanProbability):
    """
    Scores of heads and experts together. The logit of a label is the weighted sum of the logits of the branches, of
    the log frequency of the label in training, and of a constant (logistic regression). Without weights its
    probability is the mean of the probabilities of the branches.

    Args:
        heads: The scores of the heads of a family, where it has some.
        experts: The scores of the experts, by name.
        weights: Weight of each branch, of `"frequency"` and of `"bias"`; one that is missing is 0.
        log_frequencies: Log frequency of each label, of shape (labels,).
    """

    def __init__(
        self,
        heads: MeanProbability | None,
        experts: dict[str, LabelScores],
        weights: dict[str, float] | None,
        log_frequencies: Tensor | None,
    ):
        super().__init__({**({} if heads is None else heads.branches), **experts})
        self.heads, self.experts = heads, experts
        self.weights, self.log_frequencies = weights, log_frequencies

    def combined(self, logits: list[Tensor], labels: slice | Tensor) -> Tensor:
        if self.weights is None:
            return mean_probability_logits(logits)
        total = torch.zeros_like(logits[0])
        for name, values in zip(self.branches, logits, strict=True):
            # A branch without weight counts nothing, whatever its scores are.
            if weight := self.weights.get(name, 0.0):
                total.add_(values, alpha=weight)
        return total.add_(self.addends(labels))

    def addends(self, labels: slice | Tensor) -> Tensor:
        """What is added to the logits of labels whatever the text is, of the shape of the labels."""
        frequency = self.weights.get(FREQUENCY, 0.0) * self.log_frequencies[labels]
        return frequency + self.weights.get(BIAS, 0.0)

    def top_k(self, k: int) -> Ranking:
        if self.heads is None or not self.heads.ranks_candidates:
            return self._pass_over_labels(k, None)
        # The heads find their labels without scoring all: the best of these and of each expert are looked at.
        number = min(max(k, _CANDIDATES), self.num_labels)
        of_heads = self.heads.top_k(min(number, self.heads.most_ranked)).ids
        found = [of_heads, *(scores.top_k(number).ids for scores in self.experts.values())]
        ids = torch.cat(found, dim=1).sort(dim=1).values
        logits = [scores.chosen(ids) for scores in self.branches.values()]
        rows = torch.cat(self.with_branches(logits, ids))
        times = rows.shape[0] // ids.shape[0]
        rows = rows.masked_fill((each_once(ids) < 0).repeat(times, 1), -torch.inf)
        return TopLabels(k).update(rows, ids.repeat(times, 1)).ranking(self.num_texts)

    def top_k_and_all(self, k: int) -> tuple[Ranking, Tensor]:
        kept: list[Tensor] = []
        return self._pass_over_labels(k, kept), torch.cat(kept, dim=1)


class ExpertsMixin:
    """What a model knows of its experts and of the blend; all of it is kept with the weights."""

    def make_experts(self) -> None:
        """Experts of the sizes that the configuration tells, with nothing in them yet."""
        config = self.config
        self.lexical = None if config.lexical is None else LexicalExpert(config.num_labels, **config.lexical)
        self.memory = None if config.memory is None else MemoryExpert(config.num_labels, **config.memory)
        self.register_buffer("log_frequencies", None if config.blend is None else torch.zeros(config.num_labels))

    @property
    def branch_names(self) -> list[str]:
        """Names of the branches, in the order of outputs: the heads of the family, then the experts."""
        return [*self.branch_heads(), *self.text_experts()]

    def text_experts(self) -> dict[str, nn.Module]:
        """The experts beside the heads, by name."""
        experts = {"lexical": self.lexical, "memory": self.memory}
        return {name: expert for name, expert in experts.items() if expert is not None}

    def set_expert(self, name: str, expert: nn.Module | None, sizes: dict[str, Any] | None) -> None:
        """Takes over an expert, `"lexical"` or `"memory"`, and its sizes for the configuration; or takes it out."""
        setattr(self, name, None if expert is None else expert.to(self.device))
        setattr(self.config, name, sizes)

    def set_blend(self, blend: dict[str, Any] | None, log_frequencies: Tensor | None) -> None:
        """Takes over what was fitted on held-out texts: `weights` by branch, and the `threshold` for labels."""
        self.config.blend = blend
        self.log_frequencies = None if blend is None else torch.as_tensor(log_frequencies).to(self.device)

    def blended(self, scores: MeanProbability | None, token_ids: Tensor) -> MeanProbability | None:
        """The final scores: those of the heads alone, or together with the experts' as the blend weighs them."""
        experts = {name: expert(token_ids) for name, expert in self.text_experts().items()}
        if self.config.blend is None and not experts:
            return scores
        weights = None if self.config.blend is None else self.config.blend["weights"]
        return Blend(scores, experts, weights, self.log_frequencies)
