"""Running any encoder over a batch of texts, and keeping the layers that are asked for."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from .input_checks import check_inputs, position_limit


@dataclass
class EncodedTexts:
    """Token states of a batch, the attended tokens of every text moved to the front."""

    hidden_states: dict[int, torch.Tensor]  # by layer, 0 being the embedding output: (texts, tokens, hidden)
    attention_mask: torch.Tensor  # (texts, tokens)
    order: torch.Tensor  # (texts, tokens), where each token stood in the input
    document_positions: torch.Tensor  # (texts,), where the token that stands for the text is now

    def document_token(self, layer: int) -> torch.Tensor:
        """State of the token that stands for the text: the first attended one, for XLNet the last."""
        hidden_states = self.hidden_states[layer]
        # Not indexed by text and position, which `torch.export` takes for at least two texts.
        places = self.document_positions.view(-1, 1, 1).expand(-1, 1, hidden_states.shape[2])
        return hidden_states.gather(1, places).squeeze(1)  # (texts, hidden)

    def in_input_order(self, weights: torch.Tensor) -> torch.Tensor:
        """Puts one value per token, of shape (texts, anything, tokens), back to where the tokens stood."""
        return torch.zeros_like(weights).scatter(2, self.order.unsqueeze(1).expand_as(weights), weights)


def encode_texts(
    encoder: PreTrainedModel,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None,
    token_type_ids: torch.Tensor | None,
    layers: Iterable[int],
) -> EncodedTexts:
    """Runs the encoder and keeps the given layers: 0 is the embedding output, the number of layers the last one."""
    attention_mask = check_inputs(input_ids, attention_mask, position_limit(encoder))
    # Many encoders count positions from the first column, padding or not: attended tokens go to the front.
    order = attention_mask.ne(0).int().argsort(dim=1, descending=True, stable=True)
    attention_mask = attention_mask.gather(1, order)
    inputs = {"input_ids": input_ids.gather(1, order), "attention_mask": attention_mask}
    if token_type_ids is not None:
        inputs["token_type_ids"] = token_type_ids.gather(1, order)
    document_positions = torch.zeros_like(attention_mask[:, 0], dtype=torch.long)
    if encoder.config.model_type == "xlnet":
        inputs["use_mems"] = False
        document_positions = attention_mask.ne(0).sum(dim=1) - 1
    hidden_states = chosen_layers(encoder, inputs, set(layers))
    return EncodedTexts(hidden_states, attention_mask, order, document_positions)


def chosen_layers(
    encoder: PreTrainedModel, inputs: dict[str, torch.Tensor | bool], layers: set[int]
) -> dict[int, torch.Tensor]:
    last = encoder.config.num_hidden_layers
    # The last layer comes as `last_hidden_state`, after a final norm where the encoder has one.
    early = sorted(layers - {last})
    if not early:
        return {last: encoder(**inputs).last_hidden_state}
    # Encoders that record outputs can keep chosen layers (counted without the embeddings); others keep all of them.
    records = "hidden_states" in (getattr(type(encoder), "_can_record_outputs", None) or {})
    recorded = records and early[0] > 0
    outputs = encoder(**inputs, output_hidden_states=[layer - 1 for layer in early] if recorded else True)
    kept = {layer: outputs.hidden_states[layer - 1 if recorded else layer] for layer in early}
    return kept | ({last: outputs.last_hidden_state} if last in layers else {})
