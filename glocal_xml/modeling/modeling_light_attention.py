"""LightAttention: words through a bidirectional LSTM, which labels, or nodes of a label tree, read by attention."""

from torch import nn
from transformers import PreTrainedModel

from .attention_head import AttentionHead, EvidenceHead, word_head
from .configuration_light_attention import LightAttentionConfig
from .label_scores import mean_probability
from .linear_head import LabelTable
from .modeling_base import XMTCPreTrainedModel
from .modeling_word_lstm import WordLSTMModel

BRANCH = "attention"


class LightAttentionForMultiLabel(XMTCPreTrainedModel):
    """
    LightAttention, after *Multi-Label text classification (MTC)* (Zhu, Teng, Huang), which builds on AttentionXML
    ([You et al. 2019](https://arxiv.org/abs/1811.01727)).

    Every label reads the token states of the last layer by an attention of its own (eq. 2), and fully connected
    layers shared by all labels turn what it read into its score (III-D).
    """

    config_class = LightAttentionConfig

    def __init__(
        self, config: LightAttentionConfig, encoder: PreTrainedModel | None = None, table: type[nn.Module] = LabelTable
    ):
        # Code that came with a checkpoint is loaded once for configurations and once for models: `AutoModel` goes by
        # the class of the configuration and would not know the other copy.
        if encoder is None and config.encoder.model_type == WordLSTMModel.config_class.model_type:
            encoder = WordLSTMModel(config.encoder)
        super().__init__(config, encoder)
        self.head = self.make_head(config.num_labels, table)
        self.last_layer = config.num_hidden_layers
        self.layers = {self.last_layer}
        self.post_init()

    def make_head(self, num_labels: int, table: type[nn.Module]) -> AttentionHead | EvidenceHead:
        """A head over labels, or over nodes of a label tree."""
        return word_head(self.config, num_labels, table, self.config.mlp_sizes, projections=False)

    def branch_heads(self) -> dict[str, nn.Module]:
        return {BRANCH: self.head}

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        # Section III-D, 1 and 2.
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)
        attention = self.head(texts.hidden_states[self.last_layer], texts.mask)  # eq. 2
        terms = {} if labels is None else {BRANCH: attention.loss(texts.labels)}
        scores = mean_probability({BRANCH: attention})
        return self.answer(scores, terms, texts, text_ids, **answering)
