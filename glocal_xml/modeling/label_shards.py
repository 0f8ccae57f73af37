"""Labels split over processes: each holds the rows of a run of labels, and what they tell each other."""

import math
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .fused_loss import LossPair, binary_cross_entropy_pair
from .label_scores import LabelScores, MeanProbability, Ranking, TopLabels
from .linear_head import LabelTable
from .modeling_base import XMTCPreTrainedModel


class LabelShard:
    """
    The run of labels whose rows this process holds.

    The processes of a group share everything but the rows: texts, encoder and the rest of the heads. They stay equal
    as long as they read the same texts in the same order, with the same dropout: seed them alike.

    Args:
        num_labels: Number of labels of all processes together.
        group: The processes among which the labels are split, in the order of the labels.
    """

    def __init__(self, num_labels: int, group: "torch.distributed.ProcessGroup"):
        self.num_labels, self.group = num_labels, group
        # Labels of a process, of which only the last may have fewer.
        self.largest = math.ceil(num_labels / group.size())
        self.first = self.largest * group.rank()
        self.size = max(0, min(self.largest, num_labels - self.first))

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over processes, on all of them; each goes on with the gradient of its own part."""
        return _SumOfParts.apply(self.group, value)

    def collect(self, compute: Callable[[torch.Tensor], torch.Tensor], label_ids: torch.Tensor) -> torch.Tensor:
        """
        Values of any labels on all processes, from what each can compute.

        Args:
            compute: From ids of own labels, counted from the first: values of shape (texts, labels, …).
            label_ids: The same labels for every text, (chosen,), or labels per text, (texts, chosen).
        """
        own_ids = label_ids - self.first
        elsewhere = (own_ids < 0) | (own_ids >= self.size)
        part = compute(own_ids.clamp(0, self.size - 1))  # (texts, chosen, …)
        elsewhere = elsewhere.expand(len(part), -1)
        return self.sum(part.masked_fill(elsewhere.view(*elsewhere.shape, *(1,) * (part.dim() - 2)), 0))

    @torch.no_grad()
    def merged(self, best: TopLabels) -> TopLabels:
        """One ranking of all labels from those of own labels, the same on all processes; exact, also in its ties."""
        best.pad()
        parts = [torch.empty_like(best.keys) for _ in range(self.group.size())]
        torch.distributed.all_gather(parts, best.keys.contiguous(), group=self.group)
        return TopLabels(best.k, torch.cat(parts, dim=1).topk(best.k, dim=1).values)


class SplitScores(LabelScores):
    """The scores of one branch, from those of the labels of each process."""

    def __init__(self, own: LabelScores, shard: LabelShard):
        self.own, self.shard = own, shard
        self.num_texts, self.num_labels = own.num_texts, shard.num_labels

    @cached_property
    def run_size(self) -> int:
        # A process with fewer labels may want other runs; all must ask for the same.
        sizes = torch.tensor(self.own.run_size)
        torch.distributed.all_reduce(sizes, torch.distributed.ReduceOp.MIN, group=self.shard.group)
        return sizes.item()

    def run(self, start: int, stop: int) -> torch.Tensor:
        first = min(max(start - self.shard.first, 0), self.shard.size)
        last = min(max(stop - self.shard.first, 0), self.shard.size)
        before = min(max(self.shard.first - start, 0), stop - start)
        part = self.own.run(first, last)  # (texts, own labels of the run)
        return self.shard.sum(nn.functional.pad(part, (before, stop - start - before - (last - first))))

    def chosen(self, label_ids: torch.Tensor) -> torch.Tensor:
        return self.shard.collect(self.own.chosen, label_ids)

    def attention(self, label_ids: torch.Tensor) -> torch.Tensor:
        """Weights with which labels, (texts, chosen), read the tokens: (texts, chosen, tokens)."""
        return self.shard.collect(self.own.attention, label_ids)

    def contributions(self, label_ids: torch.Tensor) -> torch.Tensor:
        """What each token adds to the logit of labels, (texts, chosen), as (texts, chosen, tokens)."""
        return self.shard.collect(self.own.contributions, label_ids)

    def loss(self, labels: torch.Tensor, loss_pair: LossPair = binary_cross_entropy_pair) -> torch.Tensor:
        first = self.shard.first

        def shifted(logits: torch.Tensor, labels: torch.Tensor, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
            return loss_pair(logits, labels, first + first_label)

        return self.shard.sum(self.own.loss(labels, shifted) * (self.shard.size / self.num_labels))

    def top_k(self, k: int) -> Ranking:
        return Ranking(*self.shard.merged(_own_ranking([self.own], self.shard, k)).result())

    def mean_with(self, branches: "dict[str, SplitScores]") -> MeanProbability:
        return SplitMean(branches)


class SplitMean(MeanProbability):
    """The mean of branches that are split over processes; each process ranks its own labels first."""

    def top_k(self, k: int) -> Ranking:
        shard = next(iter(self.branches.values())).shard
        own = [scores.own for scores in self.branches.values()]
        return self.split_ranking(*shard.merged(_own_ranking(own, shard, k)).result())


def _own_ranking(own: list[LabelScores], shard: LabelShard, k: int) -> TopLabels:
    """The best labels of this process, with ids as all processes count them: rows of the mean, then of each branch."""
    mean, best = MeanProbability(dict(enumerate(own))), TopLabels(k)
    for start in range(0, shard.size, mean.run_size):
        rows = mean.run_with_branches(start, min(start + mean.run_size, shard.size))
        best.update(torch.cat(rows), shard.first + start)
    return best


def check(model: XMTCPreTrainedModel, num_shards: int) -> None:
    """Refuses to split a model that cannot be split, or into more parts than there are labels for."""
    num_labels, heads = model.config.num_labels, model.branch_heads().values()
    if not all(isinstance(head.label_embeddings, LabelTable) and not hasattr(head, "tails") for head in heads):
        raise ValueError(
            f"The labels of {type(model).__name__} cannot be split over processes, got `tp_size={num_shards}`: only "
            "one table with dense gradients can, so neither clusters of falling width nor the tables with sparse "
            "gradients of a label tree. Load the model without `distributed_config`, or build one without a tree."
        )
    if math.ceil(num_labels / num_shards) * (num_shards - 1) >= num_labels:
        raise ValueError(
            f"{num_labels} labels in equal parts leave nothing for the last of {num_shards} processes; lower "
            "`tp_size`."
        )


def install(model: XMTCPreTrainedModel, group: "torch.distributed.ProcessGroup") -> XMTCPreTrainedModel:
    """Makes the heads of a model whose tables are split give scores of all labels."""
    shard = model.label_shard = LabelShard(model.config.num_labels, group)
    for head in model.branch_heads().values():
        head.register_forward_pre_hook(_SharedInputs(group))
        head.register_forward_hook(lambda _, inputs, scores: SplitScores(scores, shard))

    def start_label_bias(log_odds: torch.Tensor) -> None:
        model.check_label_bias()
        own = torch.as_tensor(log_odds)[shard.first :][: shard.size]
        for head in model.branch_heads().values():
            head.label_embeddings.start_biases(own)

    model.start_label_bias = start_label_bias
    return model


def _total(group: Any, gradient: torch.Tensor) -> torch.Tensor:
    total = gradient.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total, group=group)
    return total


class _SharedInputs:
    """Inputs of a head that all processes have alike and each reads for its own labels: their gradient is the sum."""

    def __init__(self, group: Any):
        self.group = group
        self.hooked: set[int] = set()

    def __call__(self, head: nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        # Not before a call: loading replaces parameters, and frozen ones may be trained later.
        for module in head.modules():
            for parameter in () if isinstance(module, LabelTable) else module.parameters(recurse=False):
                if parameter.requires_grad and id(parameter) not in self.hooked:
                    parameter.register_hook(lambda gradient: _total(self.group, gradient))
                    self.hooked.add(id(parameter))
        return tuple(
            _SharedValue.apply(self.group, value) if torch.is_grad_enabled() and value.requires_grad else value
            for value in inputs
        )


class _SharedValue(torch.autograd.Function):
    """Identity, and the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, group: Any, value: torch.Tensor) -> torch.Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, _total(ctx.group, gradient)


class _SumOfParts(torch.autograd.Function):
    """The sum over processes, and the gradient as it comes: the same on all, since all go on with the same sum."""

    @staticmethod
    def forward(ctx: Any, group: Any, value: torch.Tensor) -> torch.Tensor:
        return _total(group, value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient


XMTCPreTrainedModel.label_splitter = SimpleNamespace(check=check, install=install)
