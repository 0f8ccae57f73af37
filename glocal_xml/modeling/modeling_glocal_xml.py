"""GlocalXML: the document token of the last layer and label-word attention on the first, in one model."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from .attention_head import word_head
from .configuration_glocal_xml import GlocalXMLConfig
from .encoder import EncodedTexts
from .label_scores import LabelScores, MeanProbability, Ranking, mean_probability
from .linear_head import LabelTable, LinearHead
from .modeling_base import XMTCPreTrainedModel


class GlocalXMLForMultiLabel(XMTCPreTrainedModel):
    """
    GlocalXML, after *Exploiting Local and Global Features in Transformer-based Extreme Multi-label Text
    Classification* (Zhang, Wang et al., [arXiv:2204.00933](https://arxiv.org/abs/2204.00933)).

    The global branch matches the document token of the last layer against label embeddings (eq. 2). The local branch
    lets every label read the words of an early layer (eq. 3-6). A label's probability is the mean of the two (eq. 7);
    in training each branch has its own binary cross-entropy (eq. 8).

    The local branch scores a label by the evidence of its words ([`EvidenceHead`]), or, as in the paper, by an MLP
    that all labels share (`attention_scoring="mlp"`).
    """

    config_class = GlocalXMLConfig

    def __init__(
        self, config: GlocalXMLConfig, encoder: PreTrainedModel | None = None, table: type[nn.Module] = LabelTable
    ):
        super().__init__(config, encoder)
        labels, label_size = config.num_labels, config.label_size or config.hidden_size
        self.document_size = config.hidden_size * config.document_layers
        self.dropout = nn.Dropout(config.document_dropout)
        self.pooler = self.global_head = self.local_head = None
        if config.branches != "local":
            self.pooler = nn.Linear(self.document_size, label_size) if config.use_pooler else None
            self.global_head = LinearHead(label_size, labels, config.label_chunk_bytes, config.label_bias, table)
        if config.branches != "global":
            self.local_head = word_head(config, labels, table, (config.mlp_size,), key_size=label_size)
        last = config.num_hidden_layers
        # The layers whose document tokens stand for a text, the last first; none where nothing reads them.
        reads_documents = config.branches != "local" or config.tree_levels
        self.document_layers = list(range(last, last - config.document_layers, -1)) if reads_documents else []
        self.layers = {*self.document_layers, *([] if config.branches == "global" else [config.local_layer])}
        self.post_init()

    def branch_heads(self) -> dict[str, nn.Module]:
        heads = {"global": self.global_head, "local": self.local_head}
        return {name: head for name, head in heads.items() if head is not None}

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)  # eq. 1
        branches = self.branches(texts, self.documents(texts))  # eq. 2-6
        terms = {name: scores.loss(texts.labels) for name, scores in branches.items() if labels is not None}  # eq. 8
        scores = mean_probability(branches)  # eq. 7
        ranks_all = labels is not None or self.config.wants_logits(answering.get("output_logits"))
        if self.config.shortlist is not None and not ranks_all:
            scores = Shortlist(scores, self.config.shortlist)
        return self.answer(scores, terms, texts, text_ids, **answering)

    def documents(self, texts: EncodedTexts) -> Tensor | None:
        """What stands for each text, of shape (texts, document)."""
        tokens = [texts.document(layer) for layer in self.document_layers]
        return self.dropout(torch.cat(tokens, dim=1)) if tokens else None

    def branches(self, texts: EncodedTexts, documents: Tensor | None) -> dict[str, LabelScores]:
        """The scores of each branch."""
        scores = {}
        if self.global_head is not None:
            scores["global"] = self.global_head(documents if self.pooler is None else self.pooler(documents))  # eq. 2
        if self.local_head is not None:
            hidden_states = texts.hidden_states[self.config.local_layer]  # (texts, tokens, hidden)
            # Table 4 of the paper: does the encoder gain from the gradient of the local branch?
            if self.config.detach_local:
                hidden_states = hidden_states.detach()
            scores["local"] = self.local_head(hidden_states, texts.mask)  # eq. 3-6
        return scores


class Shortlist(MeanProbability):
    """Scores of both branches, of which prediction ranks those labels alone that the global branch ranks highest."""

    ranks_candidates = True

    def __init__(self, scores: MeanProbability, size: int):
        super().__init__(scores.branches)
        self.most_ranked = min(size, self.num_labels)

    @torch.no_grad()
    def top_k(self, k: int) -> Ranking:
        if k > self.most_ranked:
            size = self.most_ranked
            raise ValueError(f"`top_k` is {k}, but the shortlist holds {size} labels: raise `config.shortlist`.")
        return self.top_k_of(self.branches["global"].top_k(self.most_ranked).ids, k)[0]
