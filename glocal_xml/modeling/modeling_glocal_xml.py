"""GlocalXML: the document token of the last layer and label-word attention on the first, in one model."""

from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel

from .configuration_glocal_xml import GlocalXMLConfig
from .encoded_texts import EncodedTexts
from .label_attention import LabelAttention
from .label_classifier import LabelClassifier
from .label_ranking import RunningTopK, best_columns
from .label_scorer import label_chunks
from .modeling_base import Features
from .modeling_clustered import ClusteredXMTCModel
from .modeling_output import XMTCOutput
from .probabilities import at_least_float, mean_probability_logits


class GlocalXMLForMultiLabel(ClusteredXMTCModel):
    """
    GlocalXML, after *Exploiting Local and Global Features in Transformer-based Extreme Multi-label Text
    Classification* (Zhang, Wang et al., [arXiv:2204.00933](https://arxiv.org/abs/2204.00933)).

    The global branch matches the document token of the last layer against label embeddings (eq. 2). The local branch
    lets every label read the words of an early layer (eq. 3-6). A label's probability is the mean of the two (eq. 7);
    in training each branch has its own binary cross-entropy (eq. 8).

    With a label tree (`config.tree_levels`), for half a million labels and more, the document token scores clusters
    and both branches the labels of the best ones; the global branch alone is then *LightXML*
    ([arXiv:2101.03305](https://arxiv.org/abs/2101.03305)).
    """

    config_class = GlocalXMLConfig

    def __init__(self, config: GlocalXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        size, labels, budget = config.hidden_size, config.num_labels, config.label_chunk_bytes
        label_size = size if config.label_size is None else config.label_size
        options = {"bias": config.label_bias, "sparse": bool(config.tree_levels)}
        document_size = size * config.document_layers
        self.dropout = nn.Dropout(config.document_dropout)
        self.pooler = None
        if config.branches != "local":
            self.pooler = nn.Linear(document_size, label_size) if config.use_pooler else None
            self.global_head = LabelClassifier(label_size, labels, budget, **options)
        if config.branches != "global":
            self.local_head = LabelAttention(
                size, labels, budget, config.mlp_size, config.temperature, label_size=label_size, **options
            )
        self.make_label_tree(partial(LabelClassifier, document_size))
        self.post_init()

    def branch_heads(self) -> dict[str, nn.Module]:
        heads = {"global": getattr(self, "global_head", None), "local": getattr(self, "local_head", None)}
        return {name: head for name, head in heads.items() if head is not None}

    def document_layers(self) -> list[int]:
        """The layers whose document tokens stand for a text, the last first; none where nothing reads them."""
        if self.config.branches == "local" and self.label_tree is None:
            return []
        last = self.config.num_hidden_layers
        return list(range(last, last - self.config.document_layers, -1))

    def wanted_layers(self) -> set[int]:
        local = set() if self.config.branches == "global" else {self.config.local_layer}
        return local | set(self.document_layers())

    def head_features(self, encoded: EncodedTexts) -> Features:
        features = {}
        if self.document_layers():
            tokens = [encoded.document_token(layer) for layer in self.document_layers()]
            document_embedding = self.dropout(torch.cat(tokens, dim=1))  # (texts, document)
            features |= dict.fromkeys(self.level_heads(), (document_embedding,))
        if self.config.branches != "local":
            features["global"] = (document_embedding if self.pooler is None else self.pooler(document_embedding),)
        if self.config.branches != "global":
            hidden_states = encoded.hidden_states[self.config.local_layer]  # (texts, tokens, hidden)
            # Table 4 of the paper: does the encoder gain from the gradient of the local branch?
            if self.config.detach_local:
                hidden_states = hidden_states.detach()
            features["local"] = self.local_head.features(hidden_states, encoded.attention_mask)
        return features

    def scan_labels(
        self,
        features: Features,
        labels: torch.Tensor | None = None,
        top_k: int | None = None,
        output_logits: bool | None = None,
    ) -> XMTCOutput:
        if self.config.shortlist is None or labels is not None or output_logits:
            return super().scan_labels(features, labels, top_k, output_logits)
        return self._scan_shortlist(features, self._check_top_k(top_k))

    def _scan_shortlist(self, features: Features, top_k: int) -> XMTCOutput:
        """The best labels among those that the global branch ranks highest; local scores for these alone."""
        if top_k > self.config.shortlist:
            raise ValueError(
                f"`top_k` is {top_k}, but the shortlist holds {self.config.shortlist} labels: ask for fewer, or raise "
                "`config.shortlist`."
            )
        ranking, shard = RunningTopK(self.config.shortlist), self.label_shard
        for chunk in label_chunks(shard.size, self.global_head.chunk_size(features["global"])):
            logits = at_least_float(self.global_head.own_logits(features["global"], chunk))
            ranking.update(logits, shard.first + chunk.start)
        shard.merge(ranking)
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


__all__ = ["GlocalXMLForMultiLabel"]
