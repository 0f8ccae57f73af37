"""Miniatures of heads, encoder and optimiser, run for a moment: what they compute, need and take on this machine."""

import copy
import math
import statistics
import timeit
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode, addmm_flop, baddbmm_flop
from transformers.initialization import no_init_weights

from glocal_xml.modeling import FAMILIES, XMTCConfig, XMTCPreTrainedModel
from glocal_xml.modeling.encoder import new_encoder
from glocal_xml.modeling.fused_loss import CPU_CHUNK_BYTES
from glocal_xml.training import XMTCTrainingArguments
from glocal_xml.training.optimizer import clip_gradients

from .planned_model import LiveBytes, Workload, optimizer_of

Run = Callable[[], None]
# Products of one run of a miniature: enough to be measured, few enough to take a moment.
_HEAD_FLOPS = 4e9
# More for the encoder: in a trial one or two texts of 128 tokens ran a fifth slower than batches of four to sixteen.
_ENCODER_FLOPS = 24e9
_RUNS = 5
_LAYERS = 3
# Labels of the miniature of a head that scores all: several chunks for a linear head, and one for attention.
_LABELS = 4096
# Larger than caches, and than the blocks that the allocator keeps: fresh gradients are fresh pages.
_OPTIMIZED_NUMBERS = 10_000_000
_ROW_SIZE = 256


@dataclass(frozen=True)
class PlannedHead:
    """A head of a model, over all labels or the nodes of a level of a tree."""

    config: XMTCConfig
    name: str
    num_labels: int
    # Labels or nodes that are scored for a text; None where all are.
    candidates: float | None
    # Whether all are scored once more: the first level of a tree, and before a collaborative loss.
    ranks_all: bool

    def costs(self, workload: Workload, texts: int, tokens: int, most: int = _LABELS) -> tuple[float, float]:
        """Products of a batch in floating-point operations and their seconds, from a run with `most` labels."""
        labels = self._rows(most)
        head = self._small(labels)
        one = counted_flops(self._run(head, labels, workload, 1, tokens))
        some = max(1, min(texts, int(_HEAD_FLOPS / one)))
        run = self._run(head, labels, workload, some, tokens)
        counted = flops = counted_flops(run)
        if self.candidates is None and labels < self.num_labels:
            # Products grow with the labels along a straight line, which layers before the labels lift.
            half = counted_flops(self._run(self._small(labels // 2), labels // 2, workload, some, tokens))
            flops += (flops - half) * (self.num_labels - labels) / (labels - labels // 2)
        flops *= texts / some
        return flops, median_seconds(run) * flops / counted

    def bytes(self, workload: Workload, texts: int) -> int:
        """Memory in a batch of the longest texts, beyond weights and their dense gradients."""
        peaks, labels = [], self._rows(32)
        for number in (1, 2):
            head = self._small(labels)
            # Chunks of labels, whose size does not depend on texts, are counted apart.
            head.chunk_bytes = 1
            run = self._run(head, labels, workload, number, workload.longest)
            with LiveBytes(head) as memory:
                run()
            dense = [p for p in head.parameters() if p.grad is not None and not p.grad.is_sparse]
            peaks.append(memory.peak - sum(p.nbytes for p in dense))
        # Four numbers for each label, text and token at most; candidates are not scored in chunks.
        scored = 16 * self.num_labels * texts * workload.longest
        chunk = 0 if self.candidates else min(scored, self.config.label_chunk_bytes or CPU_CHUNK_BYTES)
        # Single-precision logits of all labels, copies of them and their order.
        ranked = 16 * texts * self.num_labels if self.ranks_all else 0
        return peaks[0] + (texts - 1) * (peaks[1] - peaks[0]) + chunk + ranked

    def _rows(self, most: int) -> int:
        return min(self.num_labels, most if self.candidates is None else 8 * math.ceil(self.candidates))

    def _small(self, num_labels: int) -> nn.Module:
        """The head as in the model, with weights, over few labels."""
        config = copy.deepcopy(self.config)
        config.num_labels = num_labels
        if getattr(config, "tree_levels", None):
            config.tree_levels = [min(size, num_labels) for size in config.tree_levels]
        with torch.device("meta"), no_init_weights():
            head = all_heads(FAMILIES[type(config)](config))[self.name]
        head.to_empty(device="cpu")
        for parameter in head.parameters():
            nn.init.normal_(parameter, std=0.02)
        for buffer in head.buffers():
            buffer.zero_()
        if hasattr(head, "set_label_counts"):
            head.set_label_counts(torch.arange(num_labels, 0, -1))
        return head

    def _run(self, head: nn.Module, num_labels: int, workload: Workload, texts: int, tokens: int) -> Run:
        """Loss and gradients over few labels."""
        first = getattr(head, "mlp_hidden", None) or getattr(head, "key", None)
        size = head.label_embeddings.weight.shape[1] if first is None else first.in_features
        inputs = [torch.randn(texts, size, requires_grad=True)]
        # Heads that read tokens: texts of mean length, padded to that of the batch.
        if hasattr(head, "key"):
            mask = (torch.arange(tokens) < workload.lengths.mean()).expand(texts, tokens)
            inputs = [torch.randn(texts, tokens, size, requires_grad=True), mask]
        if self.candidates is None:
            labels = torch.from_numpy(workload.drawn_labels(texts, num_labels))
        else:
            labels = torch.rand(texts, num_labels).topk(math.ceil(self.candidates)).indices

        def run() -> None:
            head.zero_grad()
            scores = head(*inputs)
            loss = scores.loss if self.candidates is None else scores.chosen
            loss(labels).sum().backward()
            if self.ranks_all:
                with torch.no_grad():
                    scores.all()

        return run


def all_heads(model: XMTCPreTrainedModel) -> dict[str, nn.Module]:
    """The heads over the nodes of a label tree from the top, where there is one, and those of the branches."""
    return {**getattr(model, "level_heads", dict)(), **model.branch_heads()}


def planned_heads(model: XMTCPreTrainedModel) -> list[PlannedHead]:
    """All heads of a planned model, with what their losses go over."""
    config, levels = model.config, getattr(model.config, "tree_levels", None) or []
    sizes = [*levels, config.num_labels]
    candidates = [None, *(min(config.training_beam, n) * below / n for n, below in pairwise(sizes))]
    ranks_all = bool(levels) or getattr(config, "training_loss", None) == "collaborative"
    # All branches come after the last level.
    at = {name: min(i, len(levels)) for i, name in enumerate(all_heads(model))}
    return [PlannedHead(config, name, sizes[i], candidates[i], ranks_all and i == 0) for name, i in at.items()]


def encoder_seconds(model: XMTCPreTrainedModel, texts: int, tokens: int, flops: float) -> float:
    """Seconds of so many products of the encoder, from one of few layers, for as many texts as do not take long."""
    small = copy.deepcopy(model.config.encoder)
    small.num_hidden_layers = min(_LAYERS, model.config.num_hidden_layers)
    # The gradient of word vectors is counted with all others.
    small.vocab_size = max(1000, (small.pad_token_id or 0) + 1)
    encoder = new_encoder(small, attn_implementation=model.config.encoder._attn_implementation).train()
    if model.is_gradient_checkpointing:
        encoder.gradient_checkpointing_enable()
    options = {"use_mems": False} if small.model_type == "xlnet" else {}

    def run(number: int) -> None:
        encoder.zero_grad()
        ids = torch.randint(1000, (number, tokens))
        encoder(input_ids=ids, attention_mask=torch.ones_like(ids), **options).last_hidden_state.sum().backward()

    one = counted_flops(lambda: run(1))
    some = max(1, min(texts, int(_ENCODER_FLOPS / one)))
    return median_seconds(lambda: run(some)) * flops / (some * one)


def optimizer_seconds(model: XMTCPreTrainedModel, args: XMTCTrainingArguments, sparse: bool) -> float:
    """Seconds to make, clip and apply a number of a gradient, which holds every other row of a table if sparse."""
    rows = _OPTIMIZED_NUMBERS // _ROW_SIZE // (4 if sparse else 1)
    parameter = nn.Parameter(torch.zeros(2 * rows if sparse else rows, _ROW_SIZE))
    optimizer_class, options = optimizer_of(args, model)
    optimizer = optimizer_class([parameter], **options)
    ids = torch.randperm(len(parameter))[:rows].unsqueeze(0)

    def run() -> None:
        gradient = torch.full((rows, _ROW_SIZE), 1e-3)
        if sparse:
            gradient = torch.sparse_coo_tensor(ids, gradient, parameter.shape, check_invariants=False)
        parameter.grad = gradient
        clip_gradients([parameter], args.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()

    return median_seconds(run) / (rows * _ROW_SIZE)


def counted_flops(run: Run) -> int:
    """Floating-point operations of the products of a run, with those that torch's counter leaves out."""
    aten = torch.ops.aten
    more = {
        aten.addmm_: lambda total, left, right, **options: addmm_flop(None, left, right),
        aten.baddbmm_: lambda total, left, right, **options: baddbmm_flop(None, left, right),
        aten.mv: lambda matrix, *rest, **options: 2 * math.prod(matrix),
        aten.addmv_: lambda total, matrix, *rest, **options: 2 * math.prod(matrix),
    }
    with FlopCounterMode(display=False, custom_mapping=more) as counter:
        run()
    return counter.get_total_flops()


def median_seconds(run: Run) -> float:
    """Median of several runs, after a first one that is not counted."""
    return statistics.median(timeit.repeat(run, number=1, repeat=_RUNS + 1)[1:])
