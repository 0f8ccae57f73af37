"""The evidence head: every label reads the words of a text, and each word speaks for the label or against it."""

import torch
from torch import nn

from .attention_head import Labels, WordScores
from .fused_loss import Blocks, LossPair, Precisions, add_product, at_least_float, binary_cross_entropy_pair
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
        hidden_size: Size of the token states.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take; by device when left out.
        key_size: Size of keys and queries; that of the token states when left out.
        value_size: Size of values and output rows; that of the token states when left out.
        tied: Whether the output row of a label is its query; needs `key_size` and `value_size` to be equal.
        temperature: Divides the scores before the softmax.
        bias: Whether each label has a bias.
        table: The class of the label tables.
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

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor) -> "EvidenceScores":
        """The scores of all labels, from token states, (texts, tokens, hidden), and the mask of the real ones."""
        return EvidenceScores(self, self.key(hidden_states), self.value(hidden_states), mask)


class EvidenceScores(WordScores):
    """What the words of each text say about each label."""

    def __init__(self, head: EvidenceHead, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor):
        # Weights, evidence and their product.
        super().__init__(head, keys, values, mask, 4 * (3 * keys.shape[1] + 2))
        # Tied rows have their gradient with the queries.
        self.outputs, self.output_rows = self.table, None
        if head.label_outputs is not None:
            self.outputs, self.output_rows, _ = read_table(head, "label_outputs")

    def sums(
        self,
        labels: Labels,
        weights: torch.Tensor,
        texts: slice = slice(None),
        tokens: int | None = None,
    ) -> torch.Tensor:
        return self._shares(labels, weights, texts, tokens).sum(dim=-1)

    def contributions(self, label_ids: torch.Tensor) -> torch.Tensor:
        """What each token adds to the logit of labels, (texts, chosen), as (texts, chosen, tokens); 0 on padding."""
        return self._shares(label_ids, self.attention(label_ids), slice(None), None)

    def _shares(self, labels: Labels, weights: torch.Tensor, texts: slice, tokens: int | None) -> torch.Tensor:
        outputs = self.outputs.rows(labels).to(self.values.dtype)  # (labels, value) or (texts, chosen, value)
        return weights * at_least_float(outputs @ self.values[texts, :tokens].transpose(1, 2))

    def loss(self, labels: torch.Tensor, loss_pair: LossPair = binary_cross_entropy_pair) -> torch.Tensor:
        return self.fused(evidence_loss, labels, loss_pair, self.output_rows)


def evidence_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    keys: torch.Tensor,
    values: torch.Tensor,
    queries: torch.Tensor,
    label_bias: torch.Tensor | None,
    outputs: torch.Tensor | None,
    *,
    labels: torch.Tensor,
    temperature: float,
    blocks: Blocks,
    loss_pair: LossPair,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Sum of the loss over all texts and labels, and its gradients by all inputs before `labels` where `needed`.

    Queries and output rows are shared by all texts, so a chunk of labels against the tokens of a block of texts is two
    matrix products and a softmax, and its gradients are four more products. With g the derivative by a logit, that by
    the evidence is g a, and that by the score before the softmax is g a (e - sum_t a e).

    Args:
        keys, values: Of the tokens, in single or half precision; softmax, loss and gradients are in single at least.
        queries, outputs: Tables of the labels; without outputs these are the queries.
        labels: Padded ids of the positive labels.
        blocks: How many labels at a time, and which texts.
    """
    low, high, backward = precisions
    keys = keys / temperature
    gradients = [
        torch.zeros_like(value, dtype=high) if wanted else None
        for value, wanted in zip((keys, values, queries, label_bias, outputs), needed, strict=True)
    ]
    by_keys, by_values, by_queries, by_bias, by_outputs = gradients
    if outputs is None:
        outputs, by_outputs = queries, by_queries
    most = blocks.num_labels * max((texts.stop - texts.start) * tokens for texts, tokens, _ in blocks.texts)
    buffers = keys.new_empty((3, most), dtype=high)
    total = keys.new_zeros((), dtype=high)
    for start in range(0, len(queries), blocks.num_labels):
        chunk = slice(start, start + blocks.num_labels)
        query, output = queries[chunk], outputs[chunk]  # (labels of the chunk, key), (…, value)
        for texts, tokens, padding in blocks.texts:
            key = keys[texts, :tokens].view(-1, keys.shape[2])  # (tokens of the block, key)
            value = values[texts, :tokens].view(-1, values.shape[2])  # (tokens of the block, value)
            # Each (labels of the chunk, tokens of the block), and the same by text.
            weights, evidence, shares = buffers[:, : len(query) * len(key)].view(3, len(query), -1)
            weights_of, shares_of = (matrix.unflatten(1, (-1, tokens)) for matrix in (weights, shares))
            add_product(shares, query.to(low), key.T, fresh=True)
            if padding is not None:
                shares_of.masked_fill_(padding, torch.finfo(high).min)
            torch.softmax(shares_of, dim=-1, out=weights_of)
            add_product(evidence, output.to(low), value.T, fresh=True)
            torch.mul(weights, evidence, out=shares)
            sums = shares_of.sum(dim=-1)  # (labels of the chunk, texts of the block)
            logits = sums.T if label_bias is None else sums.T + label_bias[chunk]
            loss, by_logits = loss_pair(logits, labels[texts], start)
            total += loss
            if not any(needed):
                continue
            if by_bias is not None:
                by_bias[chunk] += by_logits.sum(dim=0)
            by_logits = by_logits.T.unsqueeze(-1)  # (labels of the chunk, texts of the block, 1)
            shares_of.addcmul_(weights_of, sums.unsqueeze(-1), value=-1).mul_(by_logits)
            weights_of.mul_(by_logits)
            by_scores, by_evidence = shares.to(backward), weights.to(backward)
            if by_outputs is not None:
                add_product(by_outputs[chunk], by_evidence, value.to(backward))
            if by_queries is not None:
                add_product(by_queries[chunk], by_scores, key.to(backward))
            if by_values is not None:
                add_product(by_values[texts, :tokens].view(value.shape), by_evidence.T, output.to(backward))
            if by_keys is not None:
                add_product(by_keys[texts, :tokens].view(key.shape), by_scores.T, query.to(backward))
    if by_keys is not None:
        by_keys.div_(temperature)
    return total, gradients
