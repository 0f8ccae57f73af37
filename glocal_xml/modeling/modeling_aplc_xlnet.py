"""APLC-XLNet: the document token of XLNet through a hidden layer into adaptive probabilistic label clusters."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .adaptive_clusters import AdaptiveLabelClusters, TailCluster
from .configuration_aplc_xlnet import APLCXLNetConfig
from .encoded_texts import EncodedTexts
from .modeling_base import Features, XMTCPreTrainedModel, with_loss
from .modeling_output import XMTCOutput

BRANCH = "clusters"


class APLCXLNet(XMTCPreTrainedModel):
    """
    APLC-XLNet, after *Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification* (Ye et al., [arXiv:2007.02439](https://arxiv.org/abs/2007.02439)).

    The last token of the last layer, for other encoders than XLNet the first, goes through a hidden layer (section
    3.2) into [`AdaptiveLabelClusters`] (section 3.3). A new model must be told which labels are frequent before it is
    used: `model.set_label_counts(label_space.counts)`.
    """

    config_class = APLCXLNetConfig

    def __init__(self, config: APLCXLNetConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        self.summary = nn.Linear(config.hidden_size, config.cluster_input_size)
        self.dropout = nn.Dropout(config.summary_dropout)
        self.head = AdaptiveLabelClusters(
            config.cluster_input_size,
            config.num_labels,
            config.label_chunk_bytes,
            proportions=config.cluster_proportions,
            decay=config.cluster_decay,
            tail_norm=config.tail_norm,
            bias=config.label_bias,
        )
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if module is self.summary or isinstance(module, TailCluster):
            # With 0.02 the vectors that labels are compared with would be tiny in narrow encoders.
            init.xavier_uniform_((module if module is self.summary else module.projection).weight)
        if isinstance(module, AdaptiveLabelClusters):
            # Loading starts from arbitrary memory: without this, clusters that a checkpoint lacks would look known.
            for buffer in (module.label_places, module.label_order, module.cluster_sizes):
                init.zeros_(buffer)

    def set_label_counts(self, label_counts: Sequence[int] | torch.Tensor) -> None:
        """Puts the labels of a new model into clusters by their training texts; a trained model keeps its clusters."""
        if not self.head.is_clustered:
            self.head.set_label_counts(label_counts)

    def branch_heads(self) -> dict[str, nn.Module]:
        return {BRANCH: self.head}

    def wanted_layers(self) -> set[int]:
        return {self.config.num_hidden_layers}

    def head_features(self, encoded: EncodedTexts) -> Features:
        document_embedding = encoded.document_token(self.config.num_hidden_layers)  # (texts, hidden)
        return {BRANCH: (self.dropout(torch.tanh(self.summary(document_embedding))),)}  # (texts, summary)

    # Which labels count differs from text to text: no term of the loss goes over all of them.
    def label_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {}

    def run_loss_terms(
        self, logits: dict[str, torch.Tensor], labels: torch.Tensor, first_label: int
    ) -> dict[str, torch.Tensor]:
        return {}

    def further_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {BRANCH: self.head.loss(features[BRANCH], labels)}

    def scan_labels(
        self,
        features: Features,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        if self._wants_logits(output_logits):
            return super().scan_labels(features, labels, top_k, output_logits)
        # The best labels alone are found without going over all of them.
        scores, ids = self.head.top_k(features[BRANCH], self._check_top_k(top_k))
        output = XMTCOutput(top_k_ids=ids, top_k_scores=scores.sigmoid())
        return with_loss(output, {} if labels is None else self.further_loss_terms(features, labels))


__all__ = ["APLCXLNet"]
