"""The evidence head: every label reads the words of a text, and each word speaks for the label or against it."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .attention_head import ALL, AttentionHead, Labels, WordScores
from .fused_loss import Precisions, add_product, at_least_float
from .linear_head import IdentityStart, LabelTable, read_table


class EvidenceHead(nn.Module):
    """
    Label-wise attention with an output row per label, as in CAML ([Mullenbach et al.
    2018](https://arxiv.org/abs/1802.05695)) and LWAN ([Chalkidis et al. 2019](https://arxiv.org/abs/1906.02192)).

    Token states h_t become keys k_t and values v_t. The query q_l of a label decides which words it reads, its output
    row o_l what a word says about it:

        a_lt = softmax_t(q_l . k_t / temperature)
        e_lt = o_l . v_t
        z_l  = b_l + sum_t a_lt e_lt

    So a_lt e_lt is the share of word t in the logit, and the shares sum to it exactly. In the form of the GlocalXML
    paper ([`AttentionHead`]) a label has a query alone.

    Args:
        hidden_size, num_labels, chunk_bytes, bias, table: As in [`LinearHead`], of token states.
        key_size, value_size: Size of keys and queries, and of values and output rows; `hidden_size` when left out.
        tied: Whether the output row of a label is its query; needs `key_size` and `value_size` to be equal.
        temperature: Divides the scores before the softmax.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
        tied: bool = False,
        temperature: float = 1.0,
        bias: bool = False,
        table: type[nn.Module] = LabelTable,
    ):
        super().__init__()
        key_size, value_size = key_size or hidden_size, value_size or hidden_size
        self.chunk_bytes, self.temperature = chunk_bytes, temperature
        # A bias of the keys would shift all scores of a label alike and vanish in the softmax.
        self.key = IdentityStart(hidden_size, key_size, bias=False)
        self.value = IdentityStart(hidden_size, value_size)
        self.label_embeddings = table(key_size, num_labels, bias)
        self.label_outputs = None if tied else table(value_size, num_labels, False)

    def forward(self, hidden_states: Tensor, mask: Tensor) -> "EvidenceScores":
        """The scores of all labels, from token states, (texts, tokens, hidden), and the mask of the real ones."""
        return EvidenceScores(self, self.key(hidden_states), self.value(hidden_states), mask)


def word_head(
    config: Any, num_labels: int, table: type[nn.Module], mlp_sizes: Sequence[int], **mlp: Any
) -> EvidenceHead | AttentionHead:
    """The head that a configuration asks for, over labels or over nodes of a tree; `mlp` are options of that form."""
    sizes = (config.hidden_size, num_labels, config.label_chunk_bytes)
    options = {"temperature": getattr(config, "temperature", 1.0), "bias": config.label_bias, "table": table}
    if config.attention_scoring == "mlp":
        return AttentionHead(*sizes, mlp_sizes, **options, **mlp)
    return EvidenceHead(*sizes, *config.evidence_sizes, tied=config.tied_outputs, **options)


class EvidenceScores(WordScores):
    """What the words of each text say about each label."""

    def __init__(self, head: EvidenceHead, keys: Tensor, values: Tensor, mask: Tensor):
        # Weights, evidence and their product.
        super().__init__(head, keys, values, mask, 4 * (3 * keys.shape[1] + 2))
        self.outputs = self.table if head.label_outputs is None else read_table(head, "label_outputs")
        # Tied rows have their gradient with the queries.
        rows = None if self.outputs is self.table else self.outputs.weight
        self.make_reader, self.parameters = evidence_reader, [rows]

    def sums(self, labels: Labels, weights: Tensor, texts: slice = ALL, tokens: int | None = None) -> Tensor:
        return self._shares(labels, weights, texts, tokens).sum(dim=-1)

    def contributions(self, label_ids: Tensor) -> Tensor:
        """What each token adds to the logit of labels, (texts, chosen), as (texts, chosen, tokens); 0 on padding."""
        return self._shares(label_ids, self.attention(label_ids), ALL, None)

    def _shares(self, labels: Labels, weights: Tensor, texts: slice, tokens: int | None) -> Tensor:
        outputs = self.outputs.rows(labels).to(self.values.dtype)  # (labels, value) or (texts, chosen, value)
        return weights * at_least_float(outputs @ self.values[texts, :tokens].transpose(1, 2))


def evidence_reader(
    precisions: Precisions, most: int, tables: Sequence[Tensor | None], gradients: Sequence[Tensor | None]
) -> Callable[..., Any]:
    """
    The reader ([`reading_loss`]) that sums up the evidence of tokens by their weights.

    With g the derivative by a logit, that by the evidence is g a, and that by the score before the softmax is
    g a (e - sum_t a e). The tables are queries and output rows; without the latter these are the queries.
    """
    low, high, backward = precisions
    outputs, by_outputs = (tables[0], gradients[0]) if tables[1] is None else (tables[1], gradients[1])
    evidence_buffer = outputs.new_empty(most, dtype=high)

    def read(chunk: slice, weights: Tensor, value: Tensor, shares: Tensor) -> tuple[Tensor, Callable]:
        output, flat = outputs[chunk], value.view(-1, value.shape[2])
        evidence = evidence_buffer[: weights.numel()].view(len(output), -1)  # (labels of the chunk, tokens)
        add_product(evidence, output.to(low), flat.T, fresh=True)
        torch.mul(weights, evidence.view_as(weights), out=shares)
        sums = shares.sum(dim=-1)  # (labels of the chunk, texts of the block)

        def way_back(by_logits: Tensor, by_value: Tensor | None) -> None:
            by_logits = by_logits.T.unsqueeze(-1)  # (labels of the chunk, texts of the block, 1)
            shares.addcmul_(weights, sums.unsqueeze(-1), value=-1).mul_(by_logits)
            by_evidence = weights.mul_(by_logits).flatten(1).to(backward)
            if by_outputs is not None:
                add_product(by_outputs[chunk], by_evidence, flat.to(backward))
            if by_value is not None:
                add_product(by_value.view(flat.shape), by_evidence.T, output.to(backward))

        return sums.T, way_back

    return read
