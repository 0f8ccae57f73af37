"""A matrix of scores that is never whole: logits of every label for every text, computed when they are asked for."""

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor, nn
from transformers.utils import ModelOutput

from .fused_loss import LossAndGradients, LossPair, binary_cross_entropy_pair, fused_loss

# Labels that are looked at together when the best of many are looked for.
_BLOCK = 32


class LabelScores:
    """
    Logits of every label for every text, of shape (texts, labels). Calling a head gives such a matrix.

    A subclass sets the first three attributes and defines `of`; one that can be trained on all labels sets the others.
    """

    num_texts: int
    num_labels: int
    run_size: int  # how many labels to ask for at a time, by the memory that they take
    compute_loss: Callable[..., LossAndGradients]  # and the tensors that it is called with ([`fused_loss`])
    loss_inputs: tuple[Tensor | None, ...]

    def of(self, labels: slice | Tensor) -> Tensor:
        """Logits of a run of labels, (run,), of chosen ones, (chosen,), or of some per text, (texts, chosen)."""
        raise NotImplementedError

    def run(self, start: int, stop: int) -> Tensor:
        """Logits of the labels from `start` to before `stop`, of shape (texts, labels of the run)."""
        return self.of(slice(start, stop))

    def chosen(self, label_ids: Tensor) -> Tensor:
        """Logits of the same labels for every text, given as (chosen,), or of labels per text, (texts, chosen)."""
        return self.of(label_ids)

    def loss(self, labels: Tensor, loss_pair: LossPair = binary_cross_entropy_pair) -> Tensor:
        """
        Binary cross-entropy, the mean over texts and labels, from ids padded with -100; or another loss as a pair.

        Gradients are made in the forward pass ([`fused_loss`]): one backward pass per forward pass.
        """
        compute = partial(self.compute_loss, labels=labels, loss_pair=loss_pair)
        return fused_loss(compute, self.loss_inputs, 1 / (self.num_texts * self.num_labels))

    def all(self) -> Tensor:
        """Logits of all labels, of shape (texts, labels)."""
        return torch.cat([self.run(start, stop) for start, stop in self.runs()], dim=1)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Start and stop of runs that fit into memory and together cover all labels."""
        for start in range(0, self.num_labels, self.run_size):
            yield start, min(start + self.run_size, self.num_labels)

    def top_k(self, k: int) -> "Ranking":
        """The `k` best labels of each text, best first, the lower id first on a tie."""
        best = TopLabels(k)
        for start, stop in self.runs():
            best.update(self.run(start, stop), start)
        return best.ranking(self.num_texts)

    def mean_with(self, branches: "dict[str, LabelScores]") -> "MeanProbability":
        """The mean of the probabilities of these branches, of which this is the first."""
        return MeanProbability(branches)


@dataclass
class Ranking:
    """The best labels of each text: logits and ids, (texts, k), and the ids of each branch, (texts, branches, k)."""

    logits: Tensor
    ids: Tensor
    branch_ids: Tensor | None = None


class MeanProbability(LabelScores):
    """Scores whose probability is the mean of the probabilities of several branches (eq. 7 of GlocalXML)."""

    # Whether `top_k` looks at some labels alone.
    ranks_candidates = False

    def __init__(self, branches: dict[str, LabelScores]):
        self.branches = branches
        first = next(iter(branches.values()))
        self.num_texts, self.num_labels = first.num_texts, first.num_labels
        self.most_ranked = self.num_labels  # how many labels `top_k` can be asked for

    @property
    def run_size(self) -> int:
        return min(scores.run_size for scores in self.branches.values())

    def combined(self, logits: list[Tensor], labels: slice | Tensor) -> Tensor:
        """The final logits of labels from those of each branch, (texts, labels)."""
        return mean_probability_logits(logits)

    def run(self, start: int, stop: int) -> Tensor:
        return self.combined([scores.run(start, stop) for scores in self.branches.values()], slice(start, stop))

    def chosen(self, label_ids: Tensor) -> Tensor:
        return self.combined([scores.chosen(label_ids) for scores in self.branches.values()], label_ids)

    def all(self) -> Tensor:
        return self.combined([scores.all() for scores in self.branches.values()], slice(None))

    def top_k(self, k: int) -> Ranking:
        """The best labels, also of each branch where there are several; in one pass over the labels."""
        if len(self.branches) == 1:
            return next(iter(self.branches.values())).top_k(k)
        return self.top_of_runs(k).ranking(self.num_texts)

    def top_of_runs(self, k: int, first_label: int = 0) -> "TopLabels":
        """The best of all labels, and further rows for those of each branch; ids are counted from the given one."""
        best = TopLabels(k)
        for start, stop in self.runs():
            logits = [scores.run(start, stop) for scores in self.branches.values()]
            best.update(self._rows(logits, slice(start, stop)), first_label + start)
        return best

    def top_k_and_all(self, k: int) -> tuple[Ranking, Tensor]:
        """[`top_k`], and the logits of all labels, of shape (texts, labels)."""
        rows = self._rows([scores.all() for scores in self.branches.values()], slice(None))
        return TopLabels(k).update(rows, 0).ranking(self.num_texts), rows[: self.num_texts]

    def best(self, k: int, candidate_ids: Tensor | None = None) -> Ranking:
        """The best labels, at most `k`, of all or of the candidates, (candidates,)."""
        if candidate_ids is None:
            return self.top_k(min(k, self.num_labels))
        return self.top_k_of(candidate_ids, min(k, len(candidate_ids)))[0]

    def top_k_of(self, label_ids: Tensor, k: int, left_out: Tensor | None = None) -> tuple[Ranking, Tensor]:
        """
        The best of chosen labels, (chosen,) or (texts, chosen), without those to be left out, (texts, chosen); and the
        logits of all of them, those of the branches: (branches, texts, chosen).
        """
        logits = [scores.chosen(label_ids) for scores in self.branches.values()]  # (texts, chosen) each
        return self.ranked(logits, label_ids, k, left_out), torch.stack(logits)

    def ranked(self, logits: list[Tensor], label_ids: Tensor, k: int, left_out: Tensor | None = None) -> Ranking:
        """The best of chosen labels, from the logits of each branch."""
        rows = self._rows(logits, label_ids)
        # Not by the number of rows, which exported programs leave open.
        times = 1 if len(logits) == 1 else len(logits) + 1
        if left_out is not None:
            rows = rows.masked_fill(left_out.repeat(times, 1), -torch.inf)
        columns = label_ids if label_ids.dim() == 1 else label_ids.repeat(times, 1)
        return TopLabels(k).update(rows, columns).ranking(self.num_texts)

    def _rows(self, logits: list[Tensor], labels: slice | Tensor) -> Tensor:
        """What is ranked: the final logits, and below them those of the branches where there are several."""
        # One ranking costs by the number of its steps, not of its rows.
        return torch.cat([self.combined(logits, labels), *(logits if len(logits) > 1 else [])])


def mean_probability(branches: dict[str, LabelScores]) -> MeanProbability:
    """The final scores of a model: those whose probability is the mean of the probabilities of its branches."""
    return next(iter(branches.values())).mean_with(branches)


class TopLabels:
    """
    Keeps the `k` best labels of each text while runs of scores pass by; of equal scores the lower id ranks first.

    Score and label are packed into one whole number, so that the best of these are exact in their ties, and nothing
    has to be read back from the device to know it.
    """

    def __init__(self, k: int, keys: Tensor | None = None):
        self.k = k
        self.keys = keys  # (texts, at most k)

    @torch.no_grad()
    def update(self, logits: Tensor, labels: int | Tensor) -> "TopLabels":
        """
        Takes scores, (texts, labels), of a run of labels from the given one, or of the label of each column, (labels,)
        or (texts, labels).
        """
        if isinstance(labels, int):
            labels = torch.arange(labels, labels + logits.shape[1], device=logits.device)
            if logits.device.type == "cpu" and logits.shape[1] > 4 * self.k * _BLOCK:
                logits, labels = self._best_blocks(logits, labels)
        if torch.compiler.is_exporting():
            # A program scores all labels at once, and ONNX knows no bits of numbers: equal scores come in any order.
            values, columns = logits.float().topk(min(self.k, logits.shape[1]), dim=1)
            ids = labels[columns] if labels.dim() == 1 else labels.gather(1, columns)
            self.result = lambda: (values, ids)
            return self
        # 0.0 turns the zero with a minus sign into the other, which equals it.
        bits = (logits.float() + 0.0).view(torch.int32)
        # Negative floats are ordered the other way round.
        ordered = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).long()
        keys = (ordered << 32).sub_(labels)
        if self.keys is not None:
            keys = torch.cat([self.keys, keys], dim=1)
        self.keys = keys.topk(min(self.k, keys.shape[1]), dim=1).values
        return self

    def _best_blocks(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """
        Scores and labels of those blocks of a run that can hold the `k` best: a label of any other has `k` before it,
        the highest of each of these. To look for blocks first is several times as fast on a processor.
        """
        whole = logits.shape[1] // _BLOCK * _BLOCK
        blocks = logits[:, :whole].unflatten(1, (-1, _BLOCK))
        numbers = TopLabels(self.k).update(blocks.amax(dim=2), torch.arange(blocks.shape[1])).result()[1]
        rest = torch.arange(whole, logits.shape[1]).expand(logits.shape[0], -1)
        columns = torch.cat([(numbers.unsqueeze(2) * _BLOCK + torch.arange(_BLOCK)).flatten(1), rest], dim=1)
        return logits.gather(1, columns), labels[columns]

    def pad(self) -> None:
        """Fills up to `k` places with such as are lower than any score."""
        # Minus infinity, and an id beyond all others.
        lowest = (-0x7F800001 << 32) - 0xFFFFFFFF
        missing = self.keys.new_full((len(self.keys), self.k - self.keys.shape[1]), lowest)
        self.keys = torch.cat([self.keys, missing], dim=1)

    def result(self) -> tuple[Tensor, Tensor]:
        """Logits and ids of the best labels, (texts, k), best first."""
        negative = -self.keys
        ordered = (-(negative >> 32)).int()
        return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).view(torch.float32), negative & 0xFFFFFFFF

    def ranking(self, num_texts: int) -> Ranking:
        """The result, of which rows beyond the number of texts are those of branches, one after the other."""
        logits, ids = self.result()
        final, *others = ids.unflatten(0, (ids.shape[0] // num_texts, num_texts))
        return Ranking(logits[:num_texts], final, torch.stack(others, dim=1) if others else None)


def masked_softmax(scores: Tensor, padding: Tensor | None) -> Tensor:
    """Softmax over the tokens, the last dimension; padding, where there is some, gets exactly 0."""
    if padding is not None:
        scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)
    return scores.softmax(dim=-1)


def pieces(label_ids: Tensor, size: int) -> Sequence[Tensor]:
    """Labels per text, (texts, chosen), in pieces of at most `size` columns; in one where all is needed anyway."""
    whole = torch.is_grad_enabled() or torch.compiler.is_exporting()
    return [label_ids] if whole else label_ids.split(max(1, size), dim=1)


def check_label_ids(
    label_ids: Sequence[int] | Tensor, num_labels: int, input_ids: Tensor, name: str = "label_ids"
) -> Tensor:
    """Checks chosen labels, the same for every text or, but for candidates, per text; returns their ids."""
    ids = torch.as_tensor(label_ids)
    shapes = "(chosen,) or (texts, chosen)" if name == "label_ids" else "(chosen,)"
    per_text = name == "label_ids" and ids.dim() == 2 and len(ids) == len(input_ids)
    if ids.dtype not in (torch.int64, torch.int32) or not (ids.dim() == 1 or per_text) or ids.numel() == 0:
        raise ValueError(
            f"`{name}` must be integers of the shape {shapes}, at least one, got {ids.dtype} of {tuple(ids.shape)} "
            f"for {len(input_ids)} texts."
        )
    if not (ids.min() >= 0 and ids.max() < num_labels):
        raise ValueError(f"`{name}` must lie in 0 to {num_labels - 1}, got {ids.min().item()} to {ids.max().item()}.")
    return ids.long().to(input_ids.device)


def check_label_counts(label_counts: Sequence[int] | Tensor, num_labels: int) -> Tensor:
    """Checks how many training texts each label has; returns the counts as a tensor."""
    counts = torch.as_tensor(label_counts)
    if counts.is_floating_point() or counts.shape != (num_labels,) or counts.min() < 0 or counts.max() == 0:
        span = f"{counts.min().item()} to {counts.max().item()}" if counts.numel() else "none"
        raise ValueError(
            f"`label_counts` must hold a whole number for each of the {num_labels} labels, none negative and not all "
            f"zero, got {span} as {counts.dtype} of shape {tuple(counts.shape)}; `LabelSpace.counts` has them."
        )
    return counts


def mean_probability_logits(logits: list[Tensor]) -> Tensor:
    """The logits whose sigmoid is the mean of the sigmoids of several; nothing saturates and no digit is lost."""
    if len(logits) == 1:
        return logits[0]
    log_sigmoid = nn.functional.logsigmoid
    log_yes = reduce(torch.logaddexp, map(log_sigmoid, logits))
    return log_yes - reduce(torch.logaddexp, map(log_sigmoid, map(operator.neg, logits)))


def log_odds_of(log_probability: Tensor) -> Tensor:
    """Log-odds of probabilities, just below one where they are one: those of the only child of a node."""
    log_probability = log_probability.clamp(max=-1e-6)
    return log_probability - torch.log(-torch.expm1(log_probability))


def product_logits(first: Tensor, second: Tensor, parents: Tensor | None = None) -> Tensor:
    """
    The logits whose sigmoid is sigmoid(first) * sigmoid(second): eq. 2 of APLC-XLNet, in log space. With `parents`,
    (second,), the first is of the nodes above, which are fewer.

    With u = exp(-first) and v = exp(-second) the odds against the product are u + v + uv. Nothing saturates before the
    product itself does, and no product is above its factors.
    """
    against, softplus = -first, nn.functional.softplus(-first)
    if parents is not None:
        against, softplus = against.index_select(1, parents), softplus.index_select(1, parents)
    return -torch.logaddexp(against, softplus - second)


@dataclass
class XMTCOutput(ModelOutput):
    """
    What a model for extreme multi-label text classification returns.

    Args:
        loss: Training loss, when labels are given.
        logits: Their sigmoid is the final probability, `(texts, labels)` or, with `candidate_ids`, `(texts,
            candidates)`.
        top_k_ids: Best labels, best first, lower id on a tie, `(texts, top_k)`.
        top_k_scores: Final probabilities of these labels, `(texts, top_k)`.
        branch_top_k_ids: Best labels of each branch on its own, in the order of `model.branch_names`, where there are
            several, `(texts, branches, top_k)`.
        branch_logits: With `candidate_ids`, the logits of each branch, `(texts, branches, candidates)`.
        loss_terms: What `loss` is the sum of, for the log; no gradient.
        hidden_states, attentions: On request, those of all layers of the encoder.
        scores: The scores themselves ([`LabelScores`]), on request (`output_scores`).
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    top_k_ids: Tensor | None = None
    top_k_scores: Tensor | None = None
    branch_top_k_ids: Tensor | None = None
    branch_logits: Tensor | None = None
    loss_terms: dict[str, Tensor] | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
    scores: Any = None

    def __getitem__(self, key: Any) -> Any:
        if key == "logits" and self.logits is None:
            use = '`pipeline("extreme-multi-label-classification")`, `output_logits=True` or raise `max_logits_labels`'
            raise ValueError(f"No logits of so many labels, and none in training mode: use {use}.")
        return super().__getitem__(key)
