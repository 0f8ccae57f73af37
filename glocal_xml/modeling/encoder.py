"""Running any encoder over a batch of texts, as far as the highest layer that is read."""

import copy
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedModel

PADDING_LABEL = -100
_USUAL = ("inputs_embeds", "output_attentions", "output_hidden_states", "return_dict")


@dataclass
class EncodedTexts:
    """Token states of a batch, the attended tokens of every text moved to the front."""

    hidden_states: dict[int, Tensor]  # by layer, 0 being the embedding output: (texts, tokens, hidden)
    mask: Tensor  # (texts, tokens), true for attended tokens
    document_positions: Tensor  # (texts,), where the token that stands for the text is now
    token_ids: Tensor  # (texts, tokens), -100 for padding
    labels: Tensor | None = None  # (texts, positives), checked label ids, each once

    def document(self, layer: int) -> Tensor:
        """State of the token that stands for the text: the first attended one, for XLNet the last."""
        hidden_states = self.hidden_states[layer]
        # Not indexed by text and position, which `torch.export` takes for at least two texts.
        places = self.document_positions.view(-1, 1, 1).expand(-1, 1, hidden_states.shape[2])
        return hidden_states.gather(1, places).squeeze(1)  # (texts, hidden)


def load_encoder(name_or_path: str | os.PathLike | PreTrainedModel, options: dict[str, Any]) -> PreTrainedModel:
    """A pretrained encoder by its folder or Hub id, or a copy of one: the caller's stays as it is."""
    if isinstance(name_or_path, PreTrainedModel):
        return copy.deepcopy(name_or_path)
    try:
        # Checkpoints in half precision would otherwise be trained in it.
        return AutoModel.from_pretrained(name_or_path, **{"dtype": torch.float32, **options})
    except TypeError as error:
        raise ValueError(f"The encoder does not take the options {options}: {error}.") from error


def encode_texts(
    encoder: PreTrainedModel,
    layers: Iterable[int],
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    labels: Tensor | None = None,
    num_labels: int = 0,
) -> EncodedTexts:
    """
    Runs the encoder and keeps the given layers: 0 is the embedding output, the number of layers the last one. Those
    above the highest of them are not run. Padding may be on either side.

    Labels are checked together with the rest: reading back from a device takes time.
    """
    attention_mask, labels = _check_batch(encoder, input_ids, attention_mask, labels, num_labels)
    order, mask = attended_first(attention_mask.ne(0))
    inputs = {"input_ids": input_ids.gather(1, order), "attention_mask": attention_mask.gather(1, order)}
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids.gather(1, order)
    document_positions = torch.zeros_like(order[:, 0])
    if encoder.config.model_type == "xlnet":
        inputs["use_mems"] = False
        document_positions = mask.sum(dim=1) - 1
    token_ids = inputs["input_ids"].masked_fill(~mask, PADDING_LABEL)
    return EncodedTexts(chosen_layers(encoder, inputs, set(layers)), mask, document_positions, token_ids, labels)


def attended_first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """
    The order of tokens that puts attended ones first, as they were, and the mask in that order, both (texts, tokens).

    Many encoders count positions from the first column, padding or not.
    """
    attended = mask.long()
    number = attended.sum(dim=1, keepdim=True)  # (texts, 1)
    places = torch.where(mask, attended.cumsum(dim=1) - 1, number + (1 - attended).cumsum(dim=1) - 1)
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(places)
    return torch.zeros_like(places).scatter(1, places, columns), columns < number


def chosen_layers(encoder: PreTrainedModel, inputs: dict[str, Any], layers: set[int]) -> dict[int, Tensor]:
    """The states of the given layers, each of shape (texts, tokens, hidden); layers above them are not run."""
    last = encoder.config.num_hidden_layers
    # The last layer comes as `last_hidden_state`, after a final norm where the encoder has one.
    if layers == {last}:
        return {last: encoder(**inputs).last_hidden_state}
    seen: dict[int, Tensor] = {}
    short = _shortened(encoder, layers, seen)
    if short is None:
        outputs = encoder(**inputs, output_hidden_states=True)
        states = [*outputs.hidden_states[:last], outputs.last_hidden_state]
        return {layer: states[layer] for layer in layers}
    outputs = short(**inputs)
    if last in layers:
        seen[last] = outputs.last_hidden_state
    return {layer: seen[layer] for layer in layers}


def _shortened(encoder: PreTrainedModel, layers: set[int], seen: dict[int, Tensor]) -> PreTrainedModel | None:
    """
    A view of the encoder that ends at the highest of `layers` and notes the states of each in `seen`.

    It shares all parameters and is made for one call, so that several threads may run the same encoder. None where it
    is not clear which part of the encoder is its list of layers, or where hooks of other libraries or `compile`
    replace what a call does.
    """
    last = encoder.config.num_hidden_layers
    lists = [name for name, part in encoder.named_modules() if isinstance(part, nn.ModuleList) and len(part) == last]
    if len(lists) != 1 or last == 0:
        return None
    *path, name = lists[0].split(".")
    views = [copy.copy(encoder)]
    for step in path:
        views.append(copy.copy(getattr(views[-1], step)))
    if any("forward" in vars(part) or part._compiled_call_impl is not None for part in views):
        return None
    for step, outer, inner in zip(path, views, views[1:], strict=False):
        outer._modules = {**outer._modules, step: inner}
    kept = nn.ModuleList(getattr(views[-1], name)[: max(1, *layers)])
    # XLNet computes with (tokens, texts, hidden).
    transposed = encoder.config.model_type == "xlnet"
    for layer in layers - {last}:
        number = max(layer, 1) - 1
        kept[number] = _Noted(kept[number], layer, seen, transposed)
    views[-1]._modules = {**views[-1]._modules, name: kept}
    return views[0]


class _Noted(nn.Module):
    """A layer that notes its output, or, for layer 0, its input."""

    def __init__(self, layer: nn.Module, number: int, seen: dict[int, Tensor], transposed: bool):
        super().__init__()
        self.layer, self.number, self.seen, self.transposed = layer, number, seen, transposed

    def __getattr__(self, name: str) -> Any:
        # Encoders ask their layers for attributes, such as the kind of attention.
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("layer"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        outputs = self.layer(*args, **kwargs)
        noted = outputs[0] if isinstance(outputs, tuple) else outputs
        if self.number == 0:
            noted = args[0] if args else kwargs["hidden_states"]
        self.seen[self.number] = noted.transpose(0, 1) if self.transposed else noted
        return outputs


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switches dropout off for a while."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def position_limit(encoder: nn.Module) -> int | None:
    """Longest text that an encoder has positions for; `None` where it has no table of them."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return None
    # Encoders such as RoBERTa count positions from behind their padding id.
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def _check_batch(
    encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None, num_labels: int
) -> tuple[Tensor, Tensor | None]:
    """Checks a batch; returns the mask, all ones where none is given, and label ids, each once in a text."""
    shape, dtype = tuple(getattr(input_ids, "shape", ())), getattr(input_ids, "dtype", None)
    if dtype not in (torch.int64, torch.int32) or len(shape) != 2 or input_ids.numel() == 0:
        raise ValueError(
            "`input_ids` must hold token ids as integers, of the shape (texts, tokens) each at least 1, got "
            f"{dtype} of the shape {shape}; skip empty batches."
        )
    max_tokens = position_limit(encoder)
    if max_tokens is not None and shape[1] > max_tokens:
        raise ValueError(
            f"The texts have {shape[1]} tokens, but the encoder has positions for {max_tokens}; tokenise with "
            "`truncation=True` and a `max_length` of at most that."
        )
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if attention_mask.shape != shape:
        raise ValueError(f"The shapes of `attention_mask` {tuple(attention_mask.shape)} and {shape} must be equal.")
    if labels is not None:
        if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
            raise ValueError(
                f"`labels` must hold label ids as integers, padded with {PADDING_LABEL}, got {labels.dtype}; turn a "
                "multi-hot matrix into lists of the ids that are 1."
            )
        if labels.dim() != 2 or len(labels) != shape[0]:
            raise ValueError(
                f"`labels` must have the shape ({shape[0]} texts, most labels of a text), got {tuple(labels.shape)}."
            )
        labels = each_once(labels.long())
    # An exported program cannot decide by what texts hold.
    if not torch.compiler.is_exporting():
        _check_values(attention_mask, labels, num_labels)
    return attention_mask, labels


def check_usual(arguments: dict[str, Any]) -> None:
    """Refuses arguments of other models, unless they ask for nothing: adapters pass them on to any model."""
    for name, value in arguments.items():
        if name not in _USUAL or (value is not None and value is not (name == "return_dict")):
            raise ValueError(
                f"`{name}` is not to be had: leave it out, or ask `model.encoder` what the encoder knows."
            )


def each_once(ids: Tensor) -> Tensor:
    """Padded ids, (texts, ids), in their order, repeated ones of a text turned into padding."""
    ids = ids.sort(dim=1).values
    repeated = ids[:, 1:] == ids[:, :-1]
    return torch.cat([ids[:, :1], ids[:, 1:].masked_fill(repeated, PADDING_LABEL)], dim=1)


def _check_values(attention_mask: Tensor, labels: Tensor | None, num_labels: int) -> None:
    """Refuses texts without a token and label ids that do not exist; reads back from the device once."""
    empty = ~attention_mask.ne(0).any(dim=1)
    facts = [empty.any(), empty.int().argmax()]
    if labels is not None and labels.numel():
        facts += [labels.max(), labels.masked_fill(labels == PADDING_LABEL, 0).min()]
    no_token, text, *bounds = torch.stack([fact.long() for fact in facts]).tolist()
    if no_token:
        raise ValueError(f"Text {text} of the batch has no attended token; tokenise with special tokens.")
    if bounds and bounds[0] >= num_labels:
        raise ValueError(
            f"`labels` holds the id {bounds[0]}, but the model has {num_labels} labels (ids 0 to {num_labels - 1}); "
            "build the model with `num_labels` of the label space, or drop labels it does not know."
        )
    if bounds and bounds[1] < 0:
        raise ValueError(f"`labels` holds the id {bounds[1]}; ids start at 0 and padding is {PADDING_LABEL}.")
