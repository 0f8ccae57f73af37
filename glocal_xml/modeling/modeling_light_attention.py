"""LightAttention: words through a bidirectional LSTM, which every label reads by attention."""

from torch import nn
from transformers import PreTrainedModel

from .configuration_light_attention import LightAttentionConfig
from .encoded_texts import EncodedTexts
from .label_attention import LabelAttention
from .modeling_base import Features, XMTCPreTrainedModel

BRANCH = "attention"


class LightAttentionForMultiLabel(XMTCPreTrainedModel):
    """
    LightAttention, after *Multi-Label text classification (MTC)* (Zhu, Teng, Huang), which builds on AttentionXML
    ([You et al. 2019](https://arxiv.org/abs/1811.01727)).

    Every label reads the token states of the last layer by an attention of its own (eq. 2), and fully connected
    layers shared by all labels turn what it read into its score (III-D). All labels are scored: there is no tree.
    """

    config_class = LightAttentionConfig

    def __init__(self, config: LightAttentionConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        first, *further = config.mlp_sizes
        self.head = LabelAttention(
            config.hidden_size,
            config.num_labels,
            config.label_chunk_bytes,
            first,
            bias=config.label_bias,
            projections=False,
            further_sizes=further,
        )
        self.post_init()

    def branch_heads(self) -> dict[str, nn.Module]:
        return {BRANCH: self.head}

    def wanted_layers(self) -> set[int]:
        return {self.config.num_hidden_layers}

    def head_features(self, encoded: EncodedTexts) -> Features:
        hidden_states = encoded.hidden_states[self.config.num_hidden_layers]  # (texts, tokens, hidden)
        return {BRANCH: self.head.features(hidden_states, encoded.attention_mask)}


__all__ = ["LightAttentionForMultiLabel"]
