"""ME-XML: experts on several layers of one encoder."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_me_xml import MEXMLConfig
from .diversity_loss import diversity_loss
from .encoded_texts import EncodedTexts
from .input_checks import check_label_counts
from .label_attention import LabelAttention
from .label_candidates import Candidates
from .label_classifier import LabelClassifier
from .label_scorer import label_chunks
from .losses import binary_cross_entropy_pair, binary_cross_entropy_sum, candidate_cross_entropy
from .modeling_base import Features
from .modeling_clustered import ClusteredXMTCModel


class DocumentExpert(LabelClassifier):
    """
    An MLP from document tokens to one logit per label (ME-XML eq. 1); the last layer is the classifier's, and with an
    `mlp_size` of 0 the only one.
    """

    def __init__(
        self, input_size: int, mlp_size: int, num_labels: int, chunk_bytes: int, bias: bool, sparse: bool = False
    ):
        super().__init__(mlp_size or input_size, num_labels, chunk_bytes, bias=bias, sparse=sparse)
        self.mlp_hidden = nn.Linear(input_size, mlp_size) if mlp_size else None

    def features(self, document_tokens: torch.Tensor) -> tuple[torch.Tensor]:
        """What the classifier reads of the concatenated document tokens, of shape (texts, mlp)."""
        if self.mlp_hidden is None:
            return (document_tokens,)
        return (torch.tanh(self.mlp_hidden(document_tokens)),)


class MEXMLForMultiLabel(ClusteredXMTCModel):
    """
    ME-XML, after *Extreme Multi-label Text Classification with Multi-layer Experts* (anonymous ACL submission).

    Every expert reads one layer of a shared encoder: the document token through an MLP (`D`, eq. 1), or the words by
    label-word attention with the token states themselves as keys and values (`A`, eq. 2-4). A label's probability is
    the mean of the experts'; in training each has its own cross-entropy, and a diversity loss makes them differ on
    rare labels that none of them finds (eq. 6-10). It sets in at `config.diversity_start_epoch`, of which
    `start_epoch` has to be told (the trainers of this package do), and needs training frequencies
    (`set_label_counts`); both are kept with the weights.

    With a label tree (`config.tree_levels`) the document token of the last layer scores clusters, and the experts the
    labels of the best ones.
    """

    config_class = MEXMLConfig

    def __init__(self, config: MEXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        size, labels, budget = config.hidden_size, config.num_labels, config.label_chunk_bytes
        options = {"bias": config.label_bias, "sparse": bool(config.tree_levels)}
        self.experts = nn.ModuleDict()
        for expert in config.parsed_experts:
            if expert.kind == "A":
                head = LabelAttention(size, labels, budget, config.mlp_size, projections=False, **options)
            else:
                width = size if config.document_mlp_size is None else config.document_mlp_size
                head = DocumentExpert(size * len(expert.layers), width, labels, budget, **options)
            self.experts[expert.name] = head
        self.make_label_tree(partial(LabelClassifier, size))
        self.register_buffer("label_counts", torch.zeros(labels, dtype=torch.long))
        self.register_buffer("diversity_active", torch.tensor(config.diversity_start_epoch == 0))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, DocumentExpert) and module.mlp_hidden is not None:
            # It passes on what the encoder knows from the first step; random weights were far behind after 200 steps.
            init.eye_(module.mlp_hidden.weight)
        if module is self:
            # Loading starts from arbitrary memory, where a checkpoint lacks them.
            init.zeros_(self.label_counts)
            init.constant_(self.diversity_active, self.config.diversity_start_epoch == 0)

    def branch_heads(self) -> dict[str, nn.Module]:
        return dict(self.experts.items())

    def wanted_layers(self) -> set[int]:
        layers = {layer for expert in self.config.parsed_experts for layer in expert.layers}
        return layers if self.label_tree is None else layers | {self.config.num_hidden_layers}

    def head_features(self, encoded: EncodedTexts) -> Features:
        features = {}
        if self.label_tree is not None:
            features |= dict.fromkeys(self.level_heads(), (encoded.document_token(self.config.num_hidden_layers),))
        for expert in self.config.parsed_experts:
            head = self.experts[expert.name]
            if expert.kind == "A":
                features[expert.name] = head.features(encoded.hidden_states[expert.layers[0]], encoded.attention_mask)
            else:
                tokens = [encoded.document_token(layer) for layer in expert.layers]
                features[expert.name] = head.features(torch.cat(tokens, dim=1))
        return features

    @torch.no_grad()
    def set_label_counts(self, label_counts: Sequence[int] | torch.Tensor) -> None:
        """Sets how many training texts each label has (n of eq. 9)."""
        self.label_counts.copy_(check_label_counts(label_counts, self.config.num_labels))

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Switches the diversity loss on from `config.diversity_start_epoch` on, and off before."""
        self.diversity_active.fill_(epoch >= self.config.diversity_start_epoch)

    def label_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.config.training_loss == "individual":
            losses = super().label_loss_terms(features, labels).values()
            return {"individual": sum(losses) / len(losses)}

        # Every expert's gradient depends on the logits of the others: these are computed first, and what they leave
        # is the derivative by each logit, the same for all experts, of size (texts, own labels).
        loss, by_logits = self._collaborative_pair(features, labels)

        def loss_pair(
            logits: torch.Tensor, texts: torch.Tensor, first_label: int
        ) -> tuple[torch.Tensor, torch.Tensor]:
            first = first_label - self.label_shard.first
            part = by_logits[texts.squeeze(1), first : first + logits.shape[1]].to(logits.dtype)
            return (part * logits).sum(), part

        texts = torch.arange(len(labels), device=labels.device).unsqueeze(1)  # (texts, 1)
        linear = sum(head.loss(features[name], texts, loss_pair) for name, head in self.experts.items())
        # The value of the loss with the gradients of its linear form.
        return {"collaborative": loss + (linear - linear.detach())}

    @torch.no_grad()
    def _collaborative_pair(self, features: Features, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy of the mean logits, and its derivative by each logit of an expert, (texts, own labels)."""
        size = min(head.chunk_size(features[name]) for name, head in self.experts.items())
        total, parts, shard = 0.0, [], self.label_shard
        for chunk in label_chunks(shard.size, size):
            logits = self._mean_logits(self.own_branch_logits(features, chunk))
            loss, by_mean = binary_cross_entropy_pair(logits, labels, shard.first + chunk.start)
            total = total + loss
            parts.append(by_mean / len(self.experts))
        return shard.sum(total) / (len(labels) * self.config.num_labels), torch.cat(parts, dim=1)

    @staticmethod
    def _mean_logits(logits: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.stack(list(logits.values())).mean(dim=0)  # (texts, labels of the run)

    def run_loss_terms(
        self, logits: dict[str, torch.Tensor], labels: torch.Tensor, first_label: int
    ) -> dict[str, torch.Tensor]:
        if self.config.training_loss == "individual":
            losses = super().run_loss_terms(logits, labels, first_label).values()
            return {"individual": sum(losses) / len(losses)}
        return {"collaborative": binary_cross_entropy_sum(self._mean_logits(logits), labels, first_label)}

    def further_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self._experts_are_to_differ() or labels.numel() == 0:
            return {}
        is_label = labels >= 0  # (texts, positives)
        logits = self.branch_logits(features, labels.clamp(min=0))
        positive = [scores[is_label] for scores in logits.values()]  # (labels of all texts,)
        loss = diversity_loss(positive, self.label_counts[labels[is_label]], len(labels))
        return {"diversity": self.config.diversity_weight * loss}

    def candidate_loss_terms(
        self, logits: dict[str, torch.Tensor], candidates: Candidates, is_label: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        if self.config.training_loss == "individual":
            losses = super().candidate_loss_terms(logits, candidates, is_label).values()
            terms = {"individual": sum(losses) / len(losses)}
        else:
            terms = {"collaborative": candidate_cross_entropy(self._mean_logits(logits), candidates, is_label)}
        if self._experts_are_to_differ():
            # All labels of a text are among its candidates; experts differ in what they make of these, given the
            # way down the tree, which they share.
            positive = [scores[is_label] for scores in logits.values()]  # (labels of all texts,)
            counts = self.label_counts[candidates.ids[is_label]]
            loss = diversity_loss(positive, counts, len(candidates.counts))
            terms["diversity"] = self.config.diversity_weight * loss
        return terms

    def _experts_are_to_differ(self) -> bool:
        """Whether there is a diversity loss now."""
        if self.config.diversity_weight == 0 or len(self.experts) == 1:
            return False
        # Already before the loss sets in, rather than hours later.
        if not self.label_counts.any():
            raise ValueError(
                "The diversity loss needs training frequencies, which this model was not told: call "
                "`model.set_label_counts(label_space.counts)`, or build the model with `diversity_weight=0`."
            )
        return bool(self.diversity_active)


__all__ = ["MEXMLForMultiLabel"]
