"""Labels split over processes: each holds the rows of a run of labels, and what they tell each other."""

import math
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor, nn

from glocal_xml.modeling.fused_loss import LossPair, binary_cross_entropy_pair
from glocal_xml.modeling.label_scores import LabelScores, MeanProbability, Ranking, TopLabels
from glocal_xml.modeling.linear_head import LabelTable
from glocal_xml.modeling.modeling_base import XMTCPreTrainedModel


class LabelShard:
    """
    The run of labels, of all that a group of processes has, whose rows this process holds.

    The processes share everything but the rows: texts, encoder and the rest of the heads. They stay equal as long as
    they read the same texts in the same order, with the same dropout: seed them alike.
    """

    def __init__(self, num_labels: int, group: "torch.distributed.ProcessGroup"):
        self.num_labels, self.group = num_labels, group
        # Labels of a process, of which only the last may have fewer.
        self.largest = math.ceil(num_labels / group.size())
        self.first = self.largest * group.rank()
        self.size = max(0, min(self.largest, num_labels - self.first))

    def sum(self, value: Tensor) -> Tensor:
        """The sum over processes, on all of them; each continues with the gradient of its own part."""
        return _SumOfParts.apply(self.group, value)

    def collect(self, compute: Callable[[Tensor], Tensor], label_ids: Tensor) -> Tensor:
        """
        Values of any labels, (chosen,) or (texts, chosen), on all processes, from what each can compute by the ids of
        its own labels, counted from the first: (texts, chosen, …).
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

    def run(self, start: int, stop: int) -> Tensor:
        first = min(max(start - self.shard.first, 0), self.shard.size)
        last = min(max(stop - self.shard.first, 0), self.shard.size)
        before = min(max(self.shard.first - start, 0), stop - start)
        part = self.own.run(first, last)  # (texts, own labels of the run)
        return self.shard.sum(nn.functional.pad(part, (before, stop - start - before - (last - first))))

    def chosen(self, label_ids: Tensor) -> Tensor:
        return self.shard.collect(self.own.chosen, label_ids)

    def attention(self, label_ids: Tensor) -> Tensor:
        return self.shard.collect(self.own.attention, label_ids)

    def contributions(self, label_ids: Tensor) -> Tensor:
        return self.shard.collect(self.own.contributions, label_ids)

    def loss(self, labels: Tensor, loss_pair: LossPair = binary_cross_entropy_pair) -> Tensor:
        def shifted(logits: Tensor, labels: Tensor, first_label: int) -> tuple[Tensor, Tensor]:
            return loss_pair(logits, labels, self.shard.first + first_label)

        return self.shard.sum(self.own.loss(labels, shifted) * (self.shard.size / self.num_labels))

    def top_k(self, k: int) -> Ranking:
        return SplitMean({"": self}).top_k(k)

    def mean_with(self, branches: "dict[str, SplitScores]") -> MeanProbability:
        return SplitMean(branches)


class SplitMean(MeanProbability):
    """The mean of branches that are split over processes; each process ranks its own labels first."""

    def top_k(self, k: int) -> Ranking:
        shard = next(iter(self.branches.values())).shard
        own = MeanProbability({name: scores.own for name, scores in self.branches.items()})
        return shard.merged(own.top_of_runs(k, shard.first)).ranking(self.num_texts)


def prepare(model: XMTCPreTrainedModel, num_shards: int) -> None:
    """Says what is split; refuses a model that cannot be split, or not into so many parts."""
    num_labels, heads = model.config.num_labels, model.branch_heads().values()
    if model.is_blended:
        raise ValueError(
            f"A model with experts or a blend cannot have its labels split, got `tp_size={num_shards}`: "
            "load the model without `distributed_config`, or train one with `--experts none --blend false`."
        )
    if not all(isinstance(head.label_embeddings, LabelTable) and not hasattr(head, "tails") for head in heads):
        raise ValueError(
            f"The labels of {type(model).__name__} cannot be split over processes, got `tp_size={num_shards}`: "
            "neither clusters nor tables with sparse gradients, as with a label tree, can. Load the model without "
            "`distributed_config`, or build one without a tree."
        )
    if math.ceil(num_labels / num_shards) * (num_shards - 1) >= num_labels:
        raise ValueError(f"{num_labels} labels leave nothing for the last of {num_shards} parts; lower `tp_size`.")
    # What tensor parallelism splits; all else is whole everywhere.
    model._tp_plan = {name: "colwise" for name, module in model.named_modules() if isinstance(module, LabelTable)}


def install(model: XMTCPreTrainedModel, group: "torch.distributed.ProcessGroup") -> XMTCPreTrainedModel:
    """Makes the heads of a model whose tables are split give scores of all labels."""
    shard = model.label_shard = LabelShard(model.config.num_labels, group)
    for head in model.branch_heads().values():
        head.register_forward_pre_hook(_shared_inputs(group))
        head.register_forward_hook(lambda _, inputs, scores: SplitScores(scores, shard))

    def start_label_bias(log_odds: Tensor) -> None:
        model.config.check_label_bias()
        own = torch.as_tensor(log_odds)[shard.first :][: shard.size]
        for head in model.branch_heads().values():
            head.label_embeddings.start_biases(own)

    model.start_label_bias = start_label_bias
    return model


def _total(group: Any, gradient: Tensor) -> Tensor:
    total = gradient.clone(memory_format=torch.contiguous_format)
    torch.distributed.all_reduce(total, group=group)
    return total


def _shared_inputs(group: Any) -> Callable[[nn.Module, tuple[Tensor, ...]], tuple[Tensor, ...]]:
    """A hook for what all processes have alike and a head reads for its own labels: the gradient is the sum."""
    total, hooked = partial(_total, group), set()

    def share(value: Tensor) -> Tensor:
        if torch.is_grad_enabled() and value.requires_grad:
            value = value.view_as(value)
            value.register_hook(total)
        return value

    def hook(head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        # Not before a call: loading replaces parameters, and frozen ones may be trained later.
        for module in head.modules():
            for parameter in () if isinstance(module, LabelTable) else module.parameters(recurse=False):
                if parameter.requires_grad and id(parameter) not in hooked:
                    parameter.register_hook(total)
                    hooked.add(id(parameter))
        return tuple(map(share, inputs))

    return hook


class _SumOfParts(torch.autograd.Function):
    """The sum over processes, and the gradient as it comes: the same on all, since all go on with the same sum."""

    @staticmethod
    def forward(ctx: Any, group: Any, value: Tensor) -> Tensor:
        return _total(group, value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, gradient
