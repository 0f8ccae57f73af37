"""Configuration of ME-XML."""

import re
from dataclasses import field
from typing import Literal, NamedTuple

from huggingface_hub.dataclasses import strict

from .configuration_base import AttentionConfig, check_least


class Expert(NamedTuple):
    """One expert: `A` reads the words of its layer by label-word attention, `D` the document token of its layers."""

    kind: str
    layers: tuple[int, ...]

    @property
    def name(self) -> str:
        return f"{self.kind}-{'+'.join(map(str, self.layers))}"


@strict
class MEXMLConfig(AttentionConfig):
    """
    Configuration of [`MEXMLForMultiLabel`]; the defaults are those of the paper (*Extreme Multi-label Text
    Classification with Multi-layer Experts*), but for `label_bias`. Shared fields are described in [`XMTCConfig`],
    those of label-word attention and of label trees in [`AttentionConfig`].

    Args:
        experts: What the experts read. `"A-1"`: label-word attention on layer 1. `"D-12"`: the document token of layer
            12; `"D-12+1"` concatenates those of two layers. 0 is the embedding output, and negative layers count from
            the top: `"D--1"` is the last one. Experts are called by what they read, `D--1` of twelve layers `D-12`.
        training_loss: `"individual"` (mean of the experts' cross-entropies) or `"collaborative"` (cross-entropy of the
            mean of their logits, eq. 5; an ablation of the paper, which computes all logits twice).
        diversity_weight: Weight of the diversity loss (alpha of eq. 10); 0 leaves it out. It needs training
            frequencies (`model.set_label_counts`) and at least two experts.
        diversity_start_epoch: Epoch at whose begin the diversity loss sets in, the first being 0. The paper has it
            after "a few" of 4 to 8 epochs.
        mlp_size: Width of the hidden layer of the MLP of attention experts.
        document_mlp_size: Width of the hidden layer (tanh, started as the identity) of document experts; that of the
            encoder when left out. 0 leaves the layer out: a linear classifier, which learns a little faster.
    """

    model_type = "me_xml"

    experts: list[str] = field(default_factory=lambda: ["A-1", "D--1"])
    training_loss: Literal["individual", "collaborative"] = "individual"
    diversity_weight: float | int = 0.01
    diversity_start_epoch: int = 1
    mlp_size: int = 256
    document_mlp_size: int | None = None

    @property
    def parsed_experts(self) -> list[Expert]:
        return [parse_expert(name, self.num_hidden_layers) for name in self.experts]

    @property
    def whole_loss_epoch(self) -> int:
        return self.diversity_start_epoch if self.diversity_weight > 0 and len(self.experts) > 1 else 0

    def validate_experts(self):
        names = [expert.name for expert in self.parsed_experts]
        if not names:
            raise ValueError("`experts` is empty: name at least one, such as 'D--1'.")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"`experts` {self.experts} holds {', '.join(twice)} twice: name each expert once.")
        check_least(self, 0, "diversity_weight", "diversity_start_epoch", "document_mlp_size")
        check_least(self, 1, "mlp_size")


def parse_expert(name: str, num_layers: int) -> Expert:
    """What `"A-1"`, `"D-12+1"` or `"D--1"` stands for in an encoder of `num_layers` layers."""
    match = re.fullmatch(r"([AD])-(-?\d+(?:\+-?\d+)*)", name)
    if match is None:
        raise ValueError(
            f"The expert {name!r} is not understood: write 'A-1' for label-word attention on layer 1, "
            f"'D-{num_layers}' for the document token of layer {num_layers}, 'D-{num_layers}+1' for those of two."
        )
    kind, numbers = match[1], [int(number) for number in match[2].split("+")]
    layers = tuple(number + num_layers + 1 if number < 0 else number for number in numbers)
    if not all(0 <= layer <= num_layers for layer in layers):
        raise ValueError(
            f"The expert {name!r} is on a layer that this encoder does not have: layers go from 0 (embedding output) "
            f"to {num_layers}, or from -1 (last) to {-num_layers - 1}."
        )
    if len(set(layers)) < len(layers):
        raise ValueError(f"The expert {name!r} reads a layer twice: name each layer once.")
    if kind == "A" and len(layers) > 1:
        single = ", ".join(repr(f"A-{layer}") for layer in layers)
        raise ValueError(f"The expert {name!r} attends to several layers: write an expert for each, {single}.")
    return Expert(kind, layers)
