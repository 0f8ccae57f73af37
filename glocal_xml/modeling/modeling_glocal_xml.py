"""GlocalXML: the document token of the last layer and label-word attention on the first, in one model."""

import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_glocal_xml import GlocalXMLConfig
from .input_checks import check_label_ids, check_labels
from .label_attention import LabelAttention
from .label_classifier import LabelClassifier
from .label_ranking import RunningTopK, best_columns
from .label_scorer import label_chunks
from .modeling_base import (
    EncodedTexts,
    XMTCOutput,
    XMTCPreTrainedModel,
    at_least_float,
    evaluation_mode,
    mean_probability_logits,
)


class GlocalXMLForMultiLabel(XMTCPreTrainedModel):
    """
    GlocalXML, after *Exploiting Local and Global Features in Transformer-based Extreme Multi-label Text
    Classification* (Zhang, Wang et al., [arXiv:2204.00933](https://arxiv.org/abs/2204.00933)).

    The global branch matches the document token of the last layer against label embeddings (eq. 2). The local branch
    lets every label read the words of an early layer (eq. 3-6). A label's probability is the mean of the two (eq. 7);
    in training each branch has its own binary cross-entropy (eq. 8).
    """

    config_class = GlocalXMLConfig

    def __init__(self, config: GlocalXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        size, labels, budget = config.hidden_size, config.num_labels, config.label_chunk_bytes
        self.pooler = None
        if config.branches != "local":
            self.pooler = nn.Linear(size, size) if config.use_pooler else None
            self.global_head = LabelClassifier(size, labels, budget, bias=config.label_bias)
        if config.branches != "global":
            self.local_head = LabelAttention(
                size, labels, budget, config.mlp_size, config.temperature, bias=config.label_bias
            )
        self.post_init()

    def branch_heads(self) -> dict[str, nn.Module]:
        heads = {"global": getattr(self, "global_head", None), "local": getattr(self, "local_head", None)}
        return {name: head for name, head in heads.items() if head is not None}

    def text_features(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> dict[str, tuple[torch.Tensor, ...]]:
        encoded = self.encode(input_ids, attention_mask, token_type_ids, layer=self._wanted_layer())
        features = {}
        if self.config.branches != "local":
            document_embedding = self.document_token(encoded)  # (texts, hidden)
            features["global"] = (document_embedding if self.pooler is None else self.pooler(document_embedding),)
        if self.config.branches != "global":
            features["local"] = self._local_features(encoded)
        return features

    def _wanted_layer(self) -> int | None:
        return None if self.config.branches == "global" else self.config.local_layer

    def _local_features(self, encoded: EncodedTexts) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        hidden_states = encoded.layer_hidden_state  # (texts, tokens, hidden)
        # Table 4 of the paper: does the encoder gain from the gradient of the local branch?
        if self.config.detach_local:
            hidden_states = hidden_states.detach()
        return self.local_head.features(hidden_states, encoded.attention_mask)

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        """
        Args:
            input_ids: Token ids, of shape (texts, tokens).
            attention_mask: 1 for real tokens, 0 for padding on either side.
            token_type_ids: Passed on to encoders that have them.
            labels: Ids of the positive labels, of shape (texts, most labels of a text), padded with -100.
            top_k: Number of labels to return in evaluation mode; the configuration's by default.
            output_logits: Whether to return the logits of all labels; by default in evaluation mode, up to
                `config.max_logits_labels` labels, unless `config.shortlist` spares most of them.
        """
        features = self.text_features(input_ids, attention_mask, token_type_ids)
        if labels is not None:
            labels = check_labels(labels, self.config.num_labels, len(input_ids))
        if self.training and labels is not None and not output_logits:
            return XMTCOutput(loss=self.branch_loss(features, labels))
        return self.scan_labels(features, labels, top_k, output_logits)

    def scan_labels(
        self,
        features: dict[str, tuple[torch.Tensor, ...]],
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        if self.config.shortlist is None or labels is not None or output_logits:
            return super().scan_labels(features, labels, top_k, output_logits)
        return self._scan_shortlist(features, self._check_top_k(top_k))

    def _scan_shortlist(self, features: dict[str, tuple[torch.Tensor, ...]], top_k: int) -> XMTCOutput:
        """The best labels among those that the global branch ranks highest; local scores for these alone."""
        if top_k > self.config.shortlist:
            raise ValueError(
                f"`top_k` is {top_k}, but the shortlist holds {self.config.shortlist} labels: ask for fewer, or raise "
                "`config.shortlist`."
            )
        ranking = RunningTopK(self.config.shortlist)
        for chunk in label_chunks(self.config.num_labels, self.global_head.chunk_size(features["global"])):
            ranking.update(at_least_float(self.global_head.logits(features["global"], chunk)), chunk.start)
        # In the order of the ids, so that of equal scores the lower id comes first.
        label_ids, order = ranking.ids.sort(dim=1)  # (texts, shortlist)
        # Labels chosen per text are gathered and scored for all texts at once.
        size = max(1, self.local_head.chunk_size(features["local"]) // len(label_ids))
        local = [
            self.local_head.logits(features["local"], label_ids[:, chunk])
            for chunk in label_chunks(label_ids.shape[1], size)
        ]
        branches = {"global": ranking.scores.gather(1, order), "local": at_least_float(torch.cat(local, dim=1))}
        scores, columns = best_columns(mean_probability_logits(list(branches.values())), top_k)
        return XMTCOutput(
            top_k_ids=label_ids.gather(1, columns),
            top_k_scores=scores.sigmoid(),
            branch_top_k_ids={
                name: label_ids.gather(1, best_columns(logits, top_k)[1]) for name, logits in branches.items()
            },
        )

    @torch.no_grad()
    def label_word_attention(
        self,
        label_ids: torch.Tensor,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """
        The weights with which chosen labels read the tokens, of shape (texts, chosen, tokens); zero on padding.

        Args:
            label_ids: The same labels for every text, of shape (chosen,), or labels per text, (texts, chosen).
        """
        if self.config.branches == "global":
            raise ValueError("This model has no label-word attention: it was built with `branches='global'`.")
        label_ids = check_label_ids(label_ids, self.config.num_labels, input_ids)
        with evaluation_mode(self):
            encoded = self.encode(input_ids, attention_mask, token_type_ids, layer=self._wanted_layer())
            weights = self.local_head.attention(self._local_features(encoded), label_ids)  # (texts, chosen, tokens)
        # Back to where the tokens stood in the input.
        return torch.zeros_like(weights).scatter(2, encoded.order.unsqueeze(1).expand_as(weights), weights)


__all__ = ["GlocalXMLForMultiLabel"]
