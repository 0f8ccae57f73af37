"""Running any encoder over a batch of texts, as far as the highest layer that is read."""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

PADDING_LABEL = -100
_NO_MULTI_HOT = "turn a multi-hot matrix into lists of the ids that are 1 (`XMTCCollator` pads them)"


@dataclass
class EncodedTexts:
    """Token states of a batch, the attended tokens of every text moved to the front."""

    hidden_states: dict[int, Tensor]  # by layer, 0 being the embedding output: (texts, tokens, hidden)
    mask: Tensor  # (texts, tokens), true for attended tokens
    token_ids: Tensor  # (texts, tokens), -100 for padding
    labels: Tensor | None = None  # (texts, positives), checked label ids, each once
    pooling: str = "first"  # what stands for the text
    recorded: dict[str, tuple[Tensor, ...]] = field(default_factory=dict)  # of all layers, where asked for

    def document(self, layer: int) -> Tensor:
        """The state that stands for the text: that of its first or last token, or the mean of all of them."""
        hidden_states = self.hidden_states[layer]
        if self.pooling == "first":
            return hidden_states[:, 0]  # (texts, hidden)
        if self.pooling == "mean":
            weights = self.mask.unsqueeze(2).to(hidden_states.dtype)  # (texts, tokens, 1)
            return (hidden_states * (weights / weights.sum(dim=1, keepdim=True))).sum(dim=1)
        # Not indexed by text and position, which `torch.export` takes for at least two texts.
        last = (self.mask.sum(dim=1) - 1).view(-1, 1, 1).expand(-1, 1, hidden_states.shape[2])
        return hidden_states.gather(1, last).squeeze(1)


def new_encoder(config: PreTrainedConfig, **options: Any) -> PreTrainedModel:
    """An encoder with fresh weights."""
    if hasattr(config, "use_cache"):
        # What decoders keep to generate text takes memory.
        config.use_cache = False
    encoder = without_decoder(AutoModel.from_config(config, **options))
    if config.model_type == "xlnet" and config.dtype not in (None, torch.float32):
        # Some of its parameters are made in single precision, whatever is asked for.
        encoder.to(config.dtype)
    return encoder


def without_decoder(model: PreTrainedModel) -> PreTrainedModel:
    """A model without a head; of T5, BART and others, whose encoder is a model of its own, the encoder alone."""
    encoder = getattr(model.base_model, "encoder", None)
    return encoder if isinstance(encoder, PreTrainedModel) else model.base_model


def encode_texts(
    encoder: PreTrainedModel,
    layers: Iterable[int],
    input_ids: Tensor,
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    labels: Tensor | None = None,
    num_labels: int = 0,
    pooling: str = "first",
    recorded: Iterable[str] = (),
) -> EncodedTexts:
    """
    Runs the encoder and keeps the given layers: 0 is the embedding output, the number of layers the last one. Those
    above the highest of them are not run, unless `hidden_states` or `attentions` of all layers are to be `recorded`.
    Padding may be on either side.

    Labels are checked together with the rest: reading back from a device takes time.
    """
    attention_mask, labels = _check_batch(encoder, input_ids, attention_mask, labels, num_labels)
    order, mask = attended_first(attention_mask.ne(0))
    inputs = {"input_ids": input_ids.gather(1, order), "attention_mask": attention_mask.gather(1, order)}
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids.gather(1, order)
    token_ids = inputs["input_ids"].masked_fill(~mask, PADDING_LABEL)
    found = dict.fromkeys(recorded, ())
    states = chosen_layers(encoder, inputs, set(layers), found)
    for layer, values in states.items():
        if values.shape != (expected := (*input_ids.shape, encoder.config.hidden_size)):
            raise ValueError(
                f"Layer {layer} of the encoder {encoder.config.model_type} gives the shape {tuple(values.shape)}, not "
                f"{tuple(expected)} (texts, tokens, hidden size): choose another encoder."
            )
    # Columns that are in place already are kept as they are, so that a gradient can be asked of them.
    if found and not torch.equal(order, torch.arange(order.shape[1], device=order.device).expand_as(order)):
        found = {name: tuple(in_place(values, order) for values in found[name]) for name in found}
    return EncodedTexts(states, mask, token_ids, labels, pooling, found)


def attended_first(mask: Tensor) -> tuple[Tensor, Tensor]:
    """
    The order of tokens that puts attended ones first, as they were, and the mask in that order, both (texts, tokens).

    Many encoders count positions from the first column, padding or not.
    """
    attended = mask.long()
    number = attended.sum(dim=1, keepdim=True)  # (texts, 1)
    # Not by a stable sort, which ONNX does not have.
    places = torch.where(mask, attended.cumsum(dim=1) - 1, number + (1 - attended).cumsum(dim=1) - 1)
    columns = torch.arange(mask.shape[1], device=mask.device).expand_as(places)
    return torch.zeros_like(places).scatter(1, places, columns), columns < number


def in_place(values: Tensor, order: Tensor) -> Tensor:
    """Hidden states, (texts, tokens, hidden), or attentions, (texts, heads, tokens, tokens), ordered as the inputs."""
    places = order.argsort(dim=1)  # (texts, tokens)
    if values.dim() == 3:
        return values.take_along_dim(places[:, :, None], dim=1)
    return values.take_along_dim(places[:, None, :, None], dim=2).take_along_dim(places[:, None, None], dim=3)


def chosen_layers(
    encoder: PreTrainedModel, inputs: dict[str, Any], layers: set[int], recorded: dict[str, Any] | None = None
) -> dict[int, Tensor]:
    """The states of the given layers, (texts, tokens, hidden), run as in [`encode_texts`]; fills `recorded` in."""
    last, input_ids = encoder.config.num_hidden_layers, inputs["input_ids"]
    if encoder.config.model_type == "xlnet":
        inputs["use_mems"] = False
    if encoder.config.model_type in ("longformer", "led"):
        # The first token, which stands for the text, sees all of it, not only its neighbours.
        inputs["global_attention_mask"] = nn.functional.pad(torch.zeros_like(input_ids[:, 1:]), (1, 0), value=1)
    # The last layer comes as `last_hidden_state`, after a final norm where the encoder has one.
    if layers == {last} and not recorded:
        return {last: encoder(**inputs).last_hidden_state}
    seen: dict[int, Tensor] = {}
    short = None if recorded else _shortened(encoder, layers, seen)
    if short is None:
        options = {f"output_{name}": True for name in recorded or ()}
        outputs = encoder(**inputs, **{"output_hidden_states": True, **options})
        for name in recorded or ():
            recorded[name] = outputs[name]
        states = [*outputs.hidden_states[:last], outputs.last_hidden_state]
        return {layer: states[layer] for layer in layers}
    outputs = short(**inputs)
    if last in layers:
        seen[last] = outputs.last_hidden_state
    # Some encoders pad texts themselves.
    return {layer: seen[layer][:, : input_ids.shape[1]] for layer in layers}


def _shortened(encoder: PreTrainedModel, layers: set[int], seen: dict[int, Tensor]) -> PreTrainedModel | None:
    """
    A view of the encoder that ends at the highest of `layers` and notes the states of each in `seen`.

    It shares all parameters and is made for one call, so that several threads may run the same encoder. None where it
    is not clear which part of the encoder is its list of layers, or where hooks of other libraries replace what a call
    does, or a compiler, which leaves out by itself what nothing reads, and cannot follow copies of modules.
    """
    last = encoder.config.num_hidden_layers
    lists = [name for name, part in encoder.named_modules() if isinstance(part, nn.ModuleList) and len(part) == last]
    if len(lists) != 1 or last == 0 or torch.compiler.is_dynamo_compiling():
        return None
    *path, name = lists[0].split(".")
    views = [copy.copy(encoder)]
    for step in path:
        views.append(copy.copy(getattr(views[-1], step)))
    if any("forward" in vars(part) or part._compiled_call_impl is not None for part in views):
        return None
    # Assigned as attributes they would be registered in the encoder itself, whose dictionaries a copy shares.
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


def name_in_code(model: nn.Module) -> str:
    """Where the class of a model is in the code that travels; also where FSDP has made a class of its own of it."""
    kind = type(model).__bases__[-1] if hasattr(model, "reshard") else type(model)
    type(model).__name__, type(model).__module__ = kind.__name__, kind.__module__
    return f"{kind.__module__.rsplit('.', 1)[-1]}.{kind.__name__}"


def present(code: Any, name: str) -> Any:
    """Code that need not travel with a checkpoint."""
    if code is None:
        raise ValueError(f"{name} needs code that is not beside these weights: `pip install glocal-xml`.")
    return code


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switches dropout off for a while; then each part is as it was, since a frozen encoder may not train."""
    training = [part for part in model.modules() if part.training]
    model.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def position_limit(encoder: nn.Module) -> int | None:
    """Longest text that an encoder has positions for; `None` where it has no table of them."""
    if isinstance(getattr(encoder, "wpe", getattr(encoder, "embed_positions", None)), nn.Embedding):
        # As GPT-2 and BART name it, whose table may have rows that stand for no position.
        name = "max_encoder_position_embeddings" if encoder.config.model_type == "led" else "max_position_embeddings"
        return getattr(encoder.config, name)
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return None
    # Encoders such as RoBERTa count positions from behind their padding id.
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def checked_mask(input_ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Checks token ids and their mask; returns the mask, all ones where none is given."""
    shape, dtype = tuple(getattr(input_ids, "shape", ())), getattr(input_ids, "dtype", None)
    if dtype not in (torch.int64, torch.int32) or len(shape) != 2 or input_ids.numel() == 0:
        raise ValueError(
            "`input_ids` must hold token ids as integers, of the shape (texts, tokens) each at least 1, got "
            f"{dtype} of the shape {shape}; skip empty batches."
        )
    attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
    if getattr(attention_mask, "shape", None) != shape:
        found = tuple(getattr(attention_mask, "shape", ()))
        raise ValueError(f"`attention_mask` must be a tensor of the shape {shape} of `input_ids`, got {found}.")
    return attention_mask


def _check_batch(
    encoder: nn.Module, input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None, num_labels: int
) -> tuple[Tensor, Tensor | None]:
    """Checks a batch; returns the mask, all ones where none is given, and label ids, each once in a text."""
    attention_mask, shape = checked_mask(input_ids, attention_mask), tuple(input_ids.shape)
    max_tokens = position_limit(encoder)
    if max_tokens is not None and shape[1] > max_tokens:
        raise ValueError(
            f"The texts have {shape[1]} tokens, but the encoder has positions for {max_tokens}; tokenise with "
            "`truncation=True` and a `max_length` of at most that."
        )
    if labels is not None:
        kind = getattr(labels, "dtype", type(labels).__name__)
        is_whole = kind in (torch.int64, torch.int32, torch.int16, torch.uint8)
        if not is_whole or labels.dim() != 2 or len(labels) != shape[0]:
            raise ValueError(
                f"`labels` must be a tensor of label ids as integers, padded with {PADDING_LABEL}, of the shape "
                f"({shape[0]} texts, most labels of a text), got {kind} of {tuple(getattr(labels, 'shape', ()))}; "
                f"{_NO_MULTI_HOT}."
            )
    # An exported program cannot decide by what texts hold.
    if not torch.compiler.is_exporting():
        _check_values(attention_mask, labels, num_labels)
    return attention_mask, None if labels is None else each_once(labels.long())


def each_once(ids: Tensor) -> Tensor:
    """Padded ids, (texts, ids), in their order, repeated ones of a text turned into padding."""
    ids = ids.sort(dim=1).values
    repeated = ids[:, 1:] == ids[:, :-1]
    return torch.cat([ids[:, :1], ids[:, 1:].masked_fill(repeated, PADDING_LABEL)], dim=1)


@torch.compiler.disable(reason="values decide")
def _check_values(attention_mask: Tensor, labels: Tensor | None, num_labels: int) -> None:
    """Refuses texts without a token and label ids that do not exist; reads back from the device once."""
    empty = ~attention_mask.ne(0).any(dim=1)
    facts = [empty.any(), empty.int().argmax()]
    if labels is not None and labels.numel():
        facts += [labels.max(), labels.masked_fill(labels == PADDING_LABEL, 0).min()]
        if labels.shape[1] == num_labels > 2:
            # As many zeros and ones as there are labels: no ids, of which each would be there once.
            facts.append((labels.clamp(0, 1) == labels).all())
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
    if bounds and bounds[-1] and len(bounds) > 2:
        raise ValueError(f"`labels` holds {num_labels} numbers for each text, all of them 0 or 1; {_NO_MULTI_HOT}.")
