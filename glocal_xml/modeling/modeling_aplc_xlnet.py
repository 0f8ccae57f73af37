"""APLC-XLNet: the document token of XLNet through a hidden layer into adaptive probabilistic label clusters."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .adaptive_clusters import AdaptiveLabelClusters
from .configuration_aplc_xlnet import APLCXLNetConfig
from .label_scores import mean_probability
from .linear_head import Projection
from .modeling_base import XMTCPreTrainedModel

BRANCH = "clusters"


class APLCXLNet(XMTCPreTrainedModel):
    """
    APLC-XLNet, after *Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification* (Ye et al., [arXiv:2007.02439](https://arxiv.org/abs/2007.02439)).

    What stands for a text, of XLNet its last token, goes through a hidden layer (section 3.2) into
    [`AdaptiveLabelClusters`] (section 3.3). A new model must be told which labels are frequent before it is used:
    `model.set_label_counts(label_space.counts)`.
    """

    config_class = APLCXLNetConfig

    def __init__(self, config: APLCXLNetConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.summary = Projection(config.hidden_size, config.cluster_input_size)
        self.dropout = nn.Dropout(config.summary_dropout)
        sizes = (config.cluster_input_size, config.num_labels, config.label_chunk_bytes)
        clusters = (config.cluster_proportions, config.cluster_decay, config.tail_norm)
        self.head = AdaptiveLabelClusters(*sizes, *clusters, config.label_bias)
        self.last_layer = config.num_hidden_layers
        self.layers = {self.last_layer}
        self.post_init()

    def set_label_counts(self, label_counts: Sequence[int] | Tensor) -> None:
        """Puts the labels of a new model into clusters by their training texts; a trained model keeps its clusters."""
        if not self.head.is_clustered:
            self.head.set_label_counts(label_counts)

    def start_label_bias(self, log_odds: Tensor) -> None:
        """Starts the biases of labels and roots so that every label has its training log-odds."""
        self.config.check_label_bias()
        self.head.start_label_bias(torch.as_tensor(log_odds))

    def branch_heads(self) -> dict[str, nn.Module]:
        return {BRANCH: self.head}

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)
        documents = texts.document(self.last_layer)  # (texts, hidden)
        clusters = self.head(self.dropout(torch.tanh(self.summary(documents))))  # section 3.2, eq. 2
        terms = {} if labels is None else {BRANCH: clusters.loss(texts.labels)}  # eq. 5
        scores = mean_probability({BRANCH: clusters})
        return self.answer(scores, terms, texts, text_ids, **answering)
