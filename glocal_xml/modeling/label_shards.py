"""A label table that is split over processes: which labels are this one's, and what the processes tell each other."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from .label_ranking import RunningTopK
from .losses import LossPair


@dataclass(frozen=True)
class LabelShard:
    """
    The run of labels whose rows this process holds; without sharding all labels, and nothing is communicated.

    The processes of a group share everything but the rows: texts, encoder and the rest of the heads. They stay equal
    as long as they read the same texts in the same order, with the same dropout: seed them alike.

    Args:
        num_labels: Number of labels of all processes together.
        first: First label of this process.
        size: Number of its labels.
        group: The processes among which the labels are split, in the order of the labels; None without sharding.
    """

    num_labels: int
    first: int
    size: int
    group: "torch.distributed.ProcessGroup | None" = None

    @property
    def largest(self) -> int:
        """Labels of a process, of which only the last may have fewer; the same number on all of them."""
        return self.size if self.group is None else math.ceil(self.num_labels / self.group.size())

    def shared(self, values: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        """
        Values that are the same on all processes and that each reads for its own labels: their gradient is the sum.

        Once for each value and use: twice would count the gradients of the others twice.
        """
        if self.group is None or not torch.is_grad_enabled():
            return values
        wanted = [value is not None and value.requires_grad for value in values]
        passed = [value for value, is_wanted in zip(values, wanted, strict=True) if is_wanted]
        passed = iter(_SharedValues.apply(self.group, *passed) if passed else ())
        return tuple(next(passed) if is_wanted else value for value, is_wanted in zip(values, wanted, strict=True))

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        """The sum over processes, on all of them; each goes on with the gradient of its own part."""
        return value if self.group is None else _SumOfParts.apply(self.group, value)

    def shifted(self, loss_pair: LossPair) -> LossPair:
        """A loss that is told the first label of a run as this process counts it, from its own first label."""
        if self.first == 0:
            return loss_pair
        return lambda logits, labels, first_label: loss_pair(logits, labels, self.first + first_label)

    def collect(
        self, compute: Callable[[slice | torch.Tensor], torch.Tensor], label_ids: slice | torch.Tensor
    ) -> torch.Tensor:
        """
        Values of any labels on all processes, from what each can compute.

        Args:
            compute: From a run or from ids of own labels, counted from the first: values of shape
                (texts, labels, …).
            label_ids: A run of labels, or labels chosen per text, of shape (texts, chosen).
        """
        if self.group is None:
            return compute(label_ids)
        if isinstance(label_ids, slice):
            start, stop, _ = label_ids.indices(self.num_labels)
            own = slice(*(min(max(bound - self.first, 0), self.size) for bound in (start, stop)))
            part = compute(own)  # (texts, own labels of the run, …)
            missing = (stop - start) - part.shape[1]
            before = min(max(self.first - start, 0), missing)
            return self.sum(nn.functional.pad(part, (0, 0) * (part.dim() - 2) + (before, missing - before)))
        own_ids = label_ids - self.first
        elsewhere = (own_ids < 0) | (own_ids >= self.size)  # (texts, chosen)
        part = compute(own_ids.clamp(0, self.size - 1))  # (texts, chosen, …)
        return self.sum(part.masked_fill(elsewhere.view(*elsewhere.shape, *(1,) * (part.dim() - 2)), 0))

    @torch.no_grad()
    def merge(self, ranking: RunningTopK) -> None:
        """Makes a ranking of own labels one of all labels, the same on all processes; exact, also in its ties."""
        if self.group is None:
            return
        width = min(ranking.top_k, self.largest)
        missing = (0, width - ranking.ids.shape[1])
        scores = self._gather(nn.functional.pad(ranking.scores, missing))
        ids = self._gather(nn.functional.pad(ranking.ids, missing))
        # Without the padding of a last process of fewer labels.
        widths = [min(width, self.num_labels - process * self.largest) for process in range(len(scores))]
        scores = torch.cat([part[:, :own] for part, own in zip(scores, widths, strict=True)], dim=1)
        ids = torch.cat([part[:, :own] for part, own in zip(ids, widths, strict=True)], dim=1)
        # Equal scores keep their order, and earlier processes have lower ids.
        scores, order = scores.sort(dim=1, descending=True, stable=True)
        ranking.scores = scores[:, : ranking.top_k].contiguous()
        ranking.ids = ids.gather(1, order[:, : ranking.top_k])

    def _gather(self, value: torch.Tensor) -> list[torch.Tensor]:
        value = value.contiguous()
        parts = [torch.empty_like(value) for _ in range(self.group.size())]
        torch.distributed.all_gather(parts, value, group=self.group)
        return parts


def label_shard(table: torch.Tensor | None, num_labels: int) -> LabelShard:
    """The labels of this process, from the weight of its label table."""
    if not is_sharded(table):
        return LabelShard(num_labels, 0, num_labels)
    mesh = table.device_mesh
    # What Transformers' column-wise plan does: equal parts, and what is left for the last process.
    largest = math.ceil(num_labels / mesh.size())
    first = mesh.get_local_rank() * largest
    return LabelShard(num_labels, first, min(largest, num_labels - first), mesh.get_group())


def is_sharded(table: torch.Tensor | None) -> bool:
    """Whether a tensor is split by a tensor-parallel plan, rather than whole or split by something else."""
    return hasattr(table, "to_local") and table.device_mesh.mesh_dim_names == ("tp",)


def own_rows(table: torch.Tensor | None) -> torch.Tensor | None:
    """The rows of a label table or bias that this process holds; changes of them are changes of the table."""
    return table.to_local() if is_sharded(table) else table


def shared_linear(linear: nn.Linear, values: torch.Tensor, shard: LabelShard) -> torch.Tensor:
    """A linear layer that all processes have and that each applies to what it computed for its own labels."""
    if shard.group is None:
        return linear(values)
    return nn.functional.linear(values, *shard.shared((linear.weight, linear.bias)))


def can_be_split(head: nn.Module) -> bool:
    """Whether the labels of a head can be split over processes: tables with sparse gradients stay whole."""
    return head.has_one_table and isinstance(head.label_embeddings, nn.Linear)


def check_shards(model: nn.Module, num_shards: int) -> None:
    """Refuses to split a model that cannot be split, or into more parts than there are labels for."""
    num_labels, heads = model.config.num_labels, model.branch_heads().values()
    if not all(can_be_split(head) for head in heads):
        raise ValueError(
            f"The labels of {type(model).__name__} cannot be split over processes, got `tp_size={num_shards}`: only "
            "label tables that are one `nn.Linear` can, so neither clusters of falling width nor the tables with "
            "sparse gradients of a label tree. Load the model without `distributed_config`, or build one without a "
            "tree."
        )
    if math.ceil(num_labels / num_shards) * (num_shards - 1) >= num_labels:
        raise ValueError(
            f"{num_labels} labels in equal parts leave nothing for the last of {num_shards} processes; lower "
            "`tp_size`."
        )


class _SharedValues(torch.autograd.Function):
    """Identity, and the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, group: Any, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.group = group
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        totals = [gradient.clone(memory_format=torch.contiguous_format) for gradient in gradients]
        for total in totals:
            torch.distributed.all_reduce(total, group=ctx.group)
        return None, *totals


class _SumOfParts(torch.autograd.Function):
    """The sum over processes, and the gradient as it comes: the same on all, since all go on with the same sum."""

    @staticmethod
    def forward(ctx: Any, group: Any, value: torch.Tensor) -> torch.Tensor:
        total = value.clone(memory_format=torch.contiguous_format)
        torch.distributed.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, torch.Tensor]:
        return None, gradient
