"""ME-XML: experts on several layers of one encoder."""

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .attention_head import word_head
from .configuration_me_xml import MEXMLConfig
from .encoder import EncodedTexts
from .fused_loss import binary_cross_entropy_pair
from .label_scores import LabelScores, check_label_counts, mean_probability
from .linear_head import IdentityStart, LabelTable, LinearHead, LinearScores
from .modeling_base import XMTCPreTrainedModel


class DocumentExpert(LinearHead):
    """
    An MLP from document tokens to one logit per label (ME-XML eq. 1); the last layer is the label table, and with an
    `mlp_size` of 0 the only one.
    """

    def __init__(self, input_size: int, mlp_size: int, *options):
        super().__init__(mlp_size or input_size, *options)
        self.mlp_hidden = IdentityStart(input_size, mlp_size) if mlp_size else None

    def forward(self, document_tokens: Tensor) -> LinearScores:
        """The scores of all labels, from the concatenated document tokens, of shape (texts, input)."""
        hidden = document_tokens if self.mlp_hidden is None else torch.tanh(self.mlp_hidden(document_tokens))
        return super().forward(hidden)


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

    def __init__(
        self, config: MEXMLConfig, encoder: PreTrainedModel | None = None, table: type[nn.Module] = LabelTable
    ):
        super().__init__(config, encoder)
        size, labels = config.hidden_size, config.num_labels
        self.parsed_experts = config.parsed_experts
        self.experts = nn.ModuleDict()
        for expert in self.parsed_experts:
            if expert.kind == "D":
                width = size if config.document_mlp_size is None else config.document_mlp_size
                options = (labels, config.label_chunk_bytes, config.label_bias, table)
                head = DocumentExpert(size * len(expert.layers), width, *options)
            else:
                head = word_head(config, labels, table, (config.mlp_size,), projections=False)
            self.experts[expert.name] = head
        self.layers = {layer for expert in self.parsed_experts for layer in expert.layers}
        self.register_buffer("label_counts", torch.zeros(labels, dtype=torch.long))
        self.register_buffer("diversity_active", torch.tensor(config.diversity_start_epoch == 0))
        # What the buffers say, once they were asked: asking a device takes time.
        self._diversity_is_on: bool | None = None
        self.register_load_state_dict_post_hook(_ask_again)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if module is self:
            # Loading starts from arbitrary memory, where a checkpoint lacks them.
            init.zeros_(self.label_counts)
            init.constant_(self.diversity_active, self.config.diversity_start_epoch == 0)

    def branch_heads(self) -> dict[str, nn.Module]:
        return dict(self.experts.items())

    @torch.no_grad()
    def set_label_counts(self, label_counts: Sequence[int] | Tensor) -> None:
        """Sets how many training texts each label has (n of eq. 9)."""
        self.label_counts.copy_(check_label_counts(label_counts, self.config.num_labels))
        self._diversity_is_on = None

    @torch.no_grad()
    def start_epoch(self, epoch: int) -> None:
        """Switches the diversity loss on from `config.diversity_start_epoch` on, and off before."""
        self.diversity_active.fill_(epoch >= self.config.diversity_start_epoch)
        self._diversity_is_on = None

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]."""
        texts = self.encode(self.layers, input_ids, attention_mask, token_type_ids, labels, **answering)
        branches, terms = self.branches(texts), {}  # eq. 1-4
        if labels is not None:
            if self.config.training_loss == "individual":
                terms["individual"] = sum(scores.loss(texts.labels) for scores in branches.values()) / len(branches)
            else:
                terms["collaborative"] = collaborative_loss(list(branches.values()), texts.labels)  # eq. 5
            if self.diversity_is_on() and texts.labels.numel():
                label_ids, is_label = texts.labels.clamp(min=0), texts.labels >= 0  # (texts, positives)
                positive = [scores.chosen(label_ids) for scores in branches.values()]
                terms["diversity"] = self.diversity_term(positive, label_ids, is_label)
        return self.answer(mean_probability(branches), terms, texts, text_ids, **answering)

    def branches(self, texts: EncodedTexts) -> dict[str, LabelScores]:
        """The scores of each expert."""
        scores = {}
        for expert in self.parsed_experts:
            head = self.experts[expert.name]
            if expert.kind == "A":
                scores[expert.name] = head(texts.hidden_states[expert.layers[0]], texts.mask)  # eq. 2-4
            else:
                tokens = [texts.document(layer) for layer in expert.layers]
                scores[expert.name] = head(torch.cat(tokens, dim=1))  # eq. 1
        return scores

    def diversity_is_on(self) -> bool:
        """Whether there is a diversity loss now."""
        if self.config.diversity_weight == 0 or len(self.experts) == 1:
            return False
        if self._diversity_is_on is not None:
            return self._diversity_is_on
        # Already before the loss sets in, rather than hours later.
        if not self.label_counts.any():
            raise ValueError(
                "The diversity loss needs training frequencies, which this model was not told: call "
                "`model.set_label_counts(label_space.counts)`, or build the model with `diversity_weight=0`."
            )
        self._diversity_is_on = bool(self.diversity_active)
        return self._diversity_is_on

    def diversity_term(self, expert_logits: list[Tensor], label_ids: Tensor, is_label: Tensor) -> Tensor:
        """The weighted diversity loss of the labels of each text, all arguments of shape (texts, labels)."""
        loss = diversity_loss(expert_logits, self.label_counts[label_ids], is_label)
        return self.config.diversity_weight * loss


def collaborative_loss(experts: list[LabelScores], labels: Tensor) -> Tensor:
    """Cross-entropy of the mean of the experts' logits (eq. 5), the mean over texts and labels."""
    num_texts, num_labels = experts[0].num_texts, experts[0].num_labels
    # Every expert's gradient depends on the logits of the others: these are computed first, and what they leave is the
    # derivative by each logit, the same for all experts, of size (texts, labels).
    loss, parts = 0.0, []
    with torch.no_grad():
        for start, stop in mean_probability(dict(enumerate(experts))).runs():
            logits = torch.stack([scores.run(start, stop) for scores in experts]).mean(dim=0)
            part, by_mean = binary_cross_entropy_pair(logits, labels, start)
            loss = loss + part
            parts.append(by_mean / len(experts))
    by_logits = torch.cat(parts, dim=1)  # (texts, labels)

    def loss_pair(logits: Tensor, texts: Tensor, first_label: int) -> tuple[Tensor, Tensor]:
        part = by_logits[texts.squeeze(1), first_label : first_label + logits.shape[1]].to(logits.dtype)
        return (part * logits).sum(), part

    texts = torch.arange(num_texts, device=labels.device).unsqueeze(1)  # (texts, 1)
    linear = sum(scores.loss(texts, loss_pair) for scores in experts)
    # The value of the loss with the gradients of its linear form.
    return loss / (num_texts * num_labels) + (linear - linear.detach())


def _ask_again(model: nn.Module, _: Any) -> None:
    """Not a lambda, which cannot be pickled."""
    model._diversity_is_on = None


def bernoulli_kl(first: Tensor, second: Tensor) -> Tensor:
    """KL divergence of two Bernoulli distributions given by logits, elementwise and always finite (eq. 7 and 8)."""
    log_sigmoid = nn.functional.logsigmoid
    one = first.sigmoid() * (log_sigmoid(first) - log_sigmoid(second))
    zero = (-first).sigmoid() * (log_sigmoid(-first) - log_sigmoid(-second))
    return one + zero


def diversity_loss(expert_logits: list[Tensor], label_counts: Tensor, is_label: Tensor) -> Tensor:
    """
    Minus the weighted KL divergence of the experts on the positive labels (eq. 6 and 9): the sum over the labels of a
    text, the mean over texts and, beyond the two experts of the paper, over the pairs in their order.

    All arguments are of shape (texts, labels); those of `label_counts` that are not labels of their text do not count.
    """
    total = expert_logits[0].new_zeros(())
    pairs = list(combinations(expert_logits, 2))
    for first, second in pairs:
        # 1 - max(p, q), from the logits so that small values keep their digits.
        both_miss = (-torch.maximum(first, second).detach()).sigmoid()
        # A label of validation texts may have no training text.
        weight = both_miss / label_counts.clamp(min=1)
        total = total - (weight * bernoulli_kl(first, second)).masked_fill(~is_label, 0).sum()
    return total / (len(pairs) * len(is_label))
