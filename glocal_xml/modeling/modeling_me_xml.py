"""ME-XML: experts on several layers of one encoder."""

from collections.abc import Sequence

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_me_xml import MEXMLConfig
from .diversity_loss import diversity_loss
from .encoded_texts import EncodedTexts
from .input_checks import check_label_counts
from .label_attention import LabelAttention
from .label_classifier import LabelClassifier
from .label_scorer import label_chunks
from .losses import binary_cross_entropy_sum
from .modeling_base import Features, XMTCPreTrainedModel


class DocumentExpert(LabelClassifier):
    """
    An MLP from document tokens to one logit per label (ME-XML eq. 1); the last layer is the classifier's, and with an
    `mlp_size` of 0 the only one.
    """

    def __init__(self, input_size: int, mlp_size: int, num_labels: int, chunk_bytes: int, bias: bool):
        super().__init__(mlp_size or input_size, num_labels, chunk_bytes, bias=bias)
        self.mlp_hidden = nn.Linear(input_size, mlp_size) if mlp_size else None

    def features(self, document_tokens: torch.Tensor) -> tuple[torch.Tensor]:
        """What the classifier reads of the concatenated document tokens, of shape (texts, mlp)."""
        if self.mlp_hidden is None:
            return (document_tokens,)
        return (nn.functional.relu(self.mlp_hidden(document_tokens)),)


class MEXMLForMultiLabel(XMTCPreTrainedModel):
    """
    ME-XML, after *Extreme Multi-label Text Classification with Multi-layer Experts* (anonymous ACL submission).

    Every expert reads one layer of a shared encoder: the document token through an MLP (`D`, eq. 1), or the words by
    label-word attention with the token states themselves as keys and values (`A`, eq. 2-4). A label's probability is
    the mean of the experts'; in training each has its own cross-entropy, and a diversity loss makes them differ on
    rare labels that none of them finds (eq. 6-10). It sets in at `config.diversity_start_epoch`, of which
    `start_epoch` has to be told (the trainers of this package do), and needs training frequencies
    (`set_label_counts`); both are kept with the weights.
    """

    config_class = MEXMLConfig

    def __init__(self, config: MEXMLConfig, encoder: PreTrainedModel | None = None):
        super().__init__(config, encoder)
        size, labels, budget = config.hidden_size, config.num_labels, config.label_chunk_bytes
        self.experts = nn.ModuleDict()
        for expert in config.parsed_experts:
            if expert.kind == "A":
                head = LabelAttention(size, labels, budget, config.mlp_size, bias=config.label_bias, projections=False)
            else:
                width = size if config.document_mlp_size is None else config.document_mlp_size
                head = DocumentExpert(size * len(expert.layers), width, labels, budget, bias=config.label_bias)
            self.experts[expert.name] = head
        self.register_buffer("label_counts", torch.zeros(labels, dtype=torch.long))
        self.register_buffer("diversity_active", torch.tensor(config.diversity_start_epoch == 0))
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, DocumentExpert) and module.mlp_hidden is not None:
            init.xavier_uniform_(module.mlp_hidden.weight)
        if module is self:
            init.zeros_(self.label_counts)

    def branch_heads(self) -> dict[str, nn.Module]:
        return dict(self.experts.items())

    def wanted_layers(self) -> set[int]:
        return {layer for expert in self.config.parsed_experts for layer in expert.layers}

    def head_features(self, encoded: EncodedTexts) -> Features:
        features = {}
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

        # Every expert's gradient depends on the others' logits, which the heads' own losses do not know: plain
        # autograd, and each chunk is computed once more in the backward pass instead of being kept.
        def chunk_loss(chunk: slice) -> torch.Tensor:
            return self.run_loss_terms(self.branch_logits(features, chunk), labels, chunk.start)["collaborative"]

        size = min(head.chunk_size(features[name]) for name, head in self.experts.items())
        total = sum(
            checkpoint(chunk_loss, chunk, use_reentrant=False, preserve_rng_state=False)
            for chunk in label_chunks(self.config.num_labels, size)
        )
        return {"collaborative": total / (len(labels) * self.config.num_labels)}

    def run_loss_terms(
        self, logits: dict[str, torch.Tensor], labels: torch.Tensor, first_label: int
    ) -> dict[str, torch.Tensor]:
        if self.config.training_loss == "individual":
            losses = super().run_loss_terms(logits, labels, first_label).values()
            return {"individual": sum(losses) / len(losses)}
        mean = torch.stack(list(logits.values())).mean(dim=0)  # (texts, labels of the run)
        return {"collaborative": binary_cross_entropy_sum(mean, labels, first_label)}

    def further_loss_terms(self, features: Features, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.config.diversity_weight == 0 or len(self.experts) == 1 or labels.numel() == 0:
            return {}
        # Already before the loss sets in, rather than hours later.
        if not self.label_counts.any():
            raise ValueError(
                "The diversity loss needs training frequencies, which this model was not told: call "
                "`model.set_label_counts(label_space.counts)`, or build the model with `diversity_weight=0`."
            )
        if not self.diversity_active:
            return {}
        is_label = labels >= 0  # (texts, positives)
        label_ids = labels.clamp(min=0)
        logits = self.branch_logits(features, label_ids)
        loss = diversity_loss(list(logits.values()), self.label_counts[label_ids], is_label)
        return {"diversity": self.config.diversity_weight * loss}


__all__ = ["MEXMLForMultiLabel"]
