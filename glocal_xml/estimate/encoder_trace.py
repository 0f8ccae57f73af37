"""What the encoder computes and keeps: a training step on tensors without content."""

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import chosen_layers

# glibc takes larger blocks from the system and gives them back; smaller ones leave gaps in its heap, which the next
# step fills only in part. In trials with a small BERT and batches of 4 to 32 texts the heap was 1.2 to 1.45 times as
# large as what lived in it.
_OWN_PAGES = 32 * 2**20
_HEAP_GAPS = 1.33


@dataclass(frozen=True)
class EncoderTrace:
    """
    A forward and backward pass through the encoder, as far as it is run, and through layers between it and the heads.

    Args:
        flops: Floating-point operations of the products of both passes.
        peak_bytes: Most that lived at a time besides weights, with the gaps between; gradients are part of it.
        untrained: Parameters of the encoder that got no gradient, by identity.
    """

    flops: int
    peak_bytes: int
    untrained: frozenset[int]


def trace_encoder(model: XMTCPreTrainedModel, texts: int, tokens: int, token_types: bool = False) -> EncoderTrace:
    """Runs a planned model on a batch of `texts` texts of `tokens` tokens each, as a training step does."""
    memory, flops = LiveBytes(model), FlopCounterMode(display=False)
    layers = getattr(model, "layers", None) or {model.last_layer}
    # Not `encode_texts`, whose checks read values back.
    names = ("input_ids", "attention_mask", *(["token_type_ids"] if token_types else []))
    with next(model.parameters()).fake_mode:
        inputs = {name: torch.ones(texts, tokens, dtype=torch.long) for name in names}
        with flops, memory:
            states = chosen_layers(model.encoder, inputs, set(layers))
            if getattr(model.config, "detach_local", False):
                states = {layer: states[layer] for layer in model.document_layers}
            # A pooler, or whatever else stands between the encoder and a head.
            between = [layer for layer in model.children() if isinstance(layer, nn.Linear)]
            documents = [layer(torch.zeros(texts, layer.in_features).requires_grad_()) for layer in between]
            outputs = [*states.values(), *documents]
            del states, documents
            if outputs:
                torch.autograd.backward(outputs, [torch.ones_like(x) for x in outputs])
    untrained = frozenset(id(p) for p in model.encoder.parameters() if p.grad is None)
    model.zero_grad()
    return EncoderTrace(flops.get_total_flops(), memory.peak, untrained)


# torch has no public way to see each operation (`torch.utils._python_dispatch`) and the tensors in its results.
class LiveBytes(TorchDispatchMode):
    """Counts the bytes of tensors that are made while it is on and still live, and how many these were at most."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.live = self.peak = 0
        self._seen: weakref.WeakSet = weakref.WeakSet()
        for tensor in (*model.parameters(), *model.buffers()):
            self._seen.add(tensor.untyped_storage())

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and not tensor.is_sparse:
                self._add(tensor.untyped_storage())
        self.peak = max(self.peak, self.live)
        return result

    def _add(self, storage: Any) -> None:
        if storage not in self._seen:
            size = storage.nbytes() if storage.nbytes() > _OWN_PAGES else int(_HEAP_GAPS * storage.nbytes())
            self._seen.add(storage)
            self.live += size
            weakref.finalize(storage, self._free, size)

    def _free(self, size: int) -> None:
        self.live -= size
