"""Label-word attention as in the GlocalXML paper: labels read words, and one MLP scores what each of them read."""

import itertools
from collections.abc import Sequence
from functools import partial

import torch
from torch import nn

from .fused_loss import (
    Blocks,
    LossAndGradients,
    LossPair,
    Precisions,
    add_product,
    at_least_float,
    binary_cross_entropy_pair,
    finite,
    fused_loss,
    plan_blocks,
)
from .label_scores import LabelScores, masked_softmax, pieces, with_bias
from .linear_head import LabelTable, Projection, read_table

# A run of labels, or ids of chosen ones.
Labels = slice | torch.Tensor


class AttentionHead(nn.Module):
    """
    The local branch of GlocalXML (eq. 3-6): label embeddings are queries over the token states of a text, and one MLP
    shared by all labels turns the weighted sum of the values into a logit. Without projections, an attention expert
    of ME-XML (eq. 2-4): the token states themselves are keys and values.

    The weights of a label sum to one, so the first layer of the MLP commutes with the weighted sum. Tokens are
    therefore projected to the width of the MLP once, and no vector of the hidden size is ever made per label. The
    parameters stay the paper's.

    Args:
        hidden_size: Size of the token states.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take; by device when left out.
        mlp_sizes: Widths of the hidden layers of the MLP.
        temperature: Divides the scores before the softmax.
        bias: Whether each label has a bias; the paper has none.
        projections: Whether keys and values are linear maps of the token states.
        key_size: Size of keys and label embeddings, where it is not that of the token states.
        table: The class of the label table.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int | None = None,
        mlp_sizes: Sequence[int] = (256,),
        temperature: float = 1.0,
        bias: bool = False,
        projections: bool = True,
        key_size: int | None = None,
        table: type[nn.Module] = LabelTable,
    ):
        super().__init__()
        self.chunk_bytes, self.temperature = chunk_bytes, temperature
        key_size = key_size or hidden_size
        # A bias of the keys would shift all scores of a label alike and vanish in the softmax.
        self.key = Projection(hidden_size, key_size, bias=False) if projections else nn.Identity()
        self.value = Projection(hidden_size, hidden_size) if projections else nn.Identity()
        self.label_embeddings = table(key_size, num_labels, bias)
        self.mlp_hidden = Projection(hidden_size, mlp_sizes[0])
        self.mlp_further = nn.ModuleList(Projection(*pair) for pair in itertools.pairwise(mlp_sizes))
        self.mlp_output = Projection(mlp_sizes[-1], 1)

    def forward(self, hidden_states: torch.Tensor, mask: torch.Tensor) -> "AttentionScores":
        """The scores of all labels, from token states, (texts, tokens, hidden), and the mask of the real ones."""
        values = self.value(hidden_states)
        if values.dtype == torch.float16:
            values = finite(values)
        # Keys and values, folded through the first layer of the MLP: (texts, tokens, key), (texts, tokens, mlp).
        return AttentionScores(self, self.key(hidden_states), self.mlp_hidden(values), mask)


class WordScores(LabelScores):
    """
    Scores of labels that read the tokens of a text: what heads with label-word attention have in common.

    Args:
        head: The head.
        keys, values: Of the tokens, of shape (texts, tokens, size).
        mask: The real tokens, which come first in every text, of shape (texts, tokens).
        bytes_per_score: Memory that one label takes for one text.
    """

    def __init__(
        self, head: nn.Module, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor, bytes_per_score: int
    ):
        # Under autocast token states may come in single precision, and no projection turns them into half.
        keys = keys.to(values.dtype)
        if values.dtype == torch.float16:
            keys, values = finite(keys), finite(values)
        # In one piece: the tokens of all texts are viewed as one matrix.
        self.keys, self.values, self.mask = keys.contiguous(), values.contiguous(), mask
        self.temperature = head.temperature
        self.table, self.queries, self.bias = read_table(head)  # (labels, key), (labels,)
        self.num_texts, self.num_labels = keys.shape[0], self.queries.shape[0]
        self.blocks = plan_blocks(self.num_labels, bytes_per_score, head.chunk_bytes, mask)
        self.run_size = self.blocks.num_labels

    def run(self, start: int, stop: int) -> torch.Tensor:
        return self._of_all_texts(slice(start, stop))

    def chosen(self, label_ids: torch.Tensor) -> torch.Tensor:
        if label_ids.dim() == 1:
            return self._of_all_texts(label_ids)
        # In pieces: rows are gathered for each text.
        parts = [self.sums(ids, self.attention(ids)) for ids in pieces(label_ids, self.run_size // self.num_texts)]
        return with_bias(torch.cat(parts, dim=1), self.table.biases(label_ids))

    def _of_all_texts(self, labels: Labels) -> torch.Tensor:
        """Logits of labels that are the same in every text, of shape (texts, labels)."""
        queries, logits = self.table.rows(labels).to(self.keys.dtype), []
        for texts, tokens, padding in self.blocks.texts:
            keys = self.keys[texts, :tokens] / self.temperature
            scores = at_least_float(queries @ keys.flatten(0, 1).T).unflatten(1, keys.shape[:2]).transpose(0, 1)
            weights = masked_softmax(scores, None if padding is None else padding.unsqueeze(1))
            logits.append(self.sums(labels, weights, texts, tokens))
        return with_bias(torch.cat(logits), self.table.biases(labels))

    def attention(self, label_ids: torch.Tensor) -> torch.Tensor:
        """Weights with which labels, (texts, chosen), read the tokens: (texts, chosen, tokens); rows sum to one."""
        queries = self.table.rows(label_ids).to(self.keys.dtype)  # (texts, chosen, key)
        scores = at_least_float(queries @ self.keys.transpose(1, 2) / self.temperature)
        return masked_softmax(scores, ~self.mask.unsqueeze(1))

    def sums(
        self,
        labels: Labels,
        weights: torch.Tensor,
        texts: slice = slice(None),
        tokens: int | None = None,
    ) -> torch.Tensor:
        """Logits without bias, (texts, labels), from the weights with which labels read, (texts, labels, tokens)."""
        raise NotImplementedError

    def fused(
        self, compute: LossAndGradients, labels: torch.Tensor, loss_pair: LossPair, *parameters: torch.Tensor | None
    ) -> torch.Tensor:
        """The loss over all labels by a function that makes its gradients too."""
        options = {"labels": labels, "temperature": self.temperature, "blocks": self.blocks, "loss_pair": loss_pair}
        inputs = (self.keys, self.values, self.queries, self.bias, *parameters)
        return fused_loss(partial(compute, **options), inputs, 1 / (self.num_texts * self.num_labels))


class AttentionScores(WordScores):
    """What labels read of each text, turned into a logit by the further layers of an MLP."""

    def __init__(self, head: AttentionHead, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor):
        self.layers = [*head.mlp_further, head.mlp_output]
        # Scores, weights and their gradients; what was read, its gradient and a copy, in all layers.
        widths = values.shape[2] + sum(layer.out_features for layer in self.layers)
        super().__init__(head, keys, values, mask, 4 * (3 * keys.shape[1] + 3 * widths))

    def sums(
        self,
        labels: Labels,
        weights: torch.Tensor,
        texts: slice = slice(None),
        tokens: int | None = None,
    ) -> torch.Tensor:
        read = weights.to(self.values.dtype) @ self.values[texts, :tokens]  # (texts, labels, mlp)
        for layer in self.layers:
            # In place: what was read is the largest thing here, and needed no more.
            read = finite(layer(torch.relu_(read)))
        return at_least_float(read.squeeze(-1))

    def loss(self, labels: torch.Tensor, loss_pair: LossPair = binary_cross_entropy_pair) -> torch.Tensor:
        layers = [parameter for layer in self.layers for parameter in (layer.weight, layer.bias)]
        return self.fused(attention_loss, labels, loss_pair, *layers)


def attention_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    keys: torch.Tensor,
    values: torch.Tensor,
    queries: torch.Tensor,
    label_bias: torch.Tensor | None,
    *layers: torch.Tensor,
    labels: torch.Tensor,
    temperature: float,
    blocks: Blocks,
    loss_pair: LossPair,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Sum of the loss over all texts and labels, and its gradients by all inputs before `labels` where `needed`.

    Args:
        keys, values: Of the tokens, in single or half precision; softmax, loss and gradients are in single at least.
        queries: The label table.
        layers: Weight and bias of each layer of the MLP after the first, the last of which gives the logit.
        labels: Padded ids of the positive labels.
        blocks: How many labels at a time, and which texts.
    """
    low, high, backward = precisions
    keys = keys / temperature
    gradients = [
        torch.zeros_like(value, dtype=high) if wanted else None
        for value, wanted in zip((keys, values, queries, label_bias, *layers), needed, strict=True)
    ]
    by_keys, by_values, by_queries, by_bias, *by_layers = gradients
    mlp = _Layers(layers, by_layers, precisions)
    most = blocks.num_labels * max((texts.stop - texts.start) * tokens for texts, tokens, _ in blocks.texts)
    scores_buffer, weights_buffer = keys.new_empty((2, most), dtype=high)
    total = keys.new_zeros((), dtype=high)
    for start in range(0, len(queries), blocks.num_labels):
        chunk = slice(start, start + blocks.num_labels)
        query = queries[chunk]  # (labels of the chunk, key)
        for texts, tokens, padding in blocks.texts:
            key, value = keys[texts, :tokens], values[texts, :tokens]  # (texts of the block, tokens, …)
            flat, number = key.view(-1, key.shape[2]), len(query) * key.shape[0] * tokens
            # Each (labels of the chunk, tokens of the block), and the same by text.
            scores, weights = (part[:number].view(len(query), -1) for part in (scores_buffer, weights_buffer))
            scores_of, weights_of = (part.unflatten(1, (-1, tokens)) for part in (scores, weights))
            add_product(scores, query.to(low), flat.T, fresh=True)
            if padding is not None:
                scores_of.masked_fill_(padding, torch.finfo(high).min)
            torch.softmax(scores_of, dim=-1, out=weights_of)
            # (texts of the block, labels of the chunk, mlp)
            read = weights_of.transpose(0, 1).to(low) @ value
            if low != high:
                read = at_least_float(read)
            read.clamp_(min=0)
            activations = mlp.forward(read)
            logits = activations.pop().squeeze(-1)  # (texts of the block, labels of the chunk)
            logits = logits if label_bias is None else logits + label_bias[chunk]
            loss, by_logits = loss_pair(logits, labels[texts], start)
            total += loss
            if not any(needed):
                continue
            if by_bias is not None:
                by_bias[chunk] += by_logits.sum(dim=0)
            by_read = mlp.backward(activations, by_logits.unsqueeze(-1))  # (texts of the block, labels, mlp)
            if by_values is not None:
                add_product(by_values[texts, :tokens], weights_of.permute(1, 2, 0).to(backward), by_read.to(backward))
            if by_keys is None and by_queries is None:
                continue
            # Derivative of the softmax: the mean of `by_weights` under the weights of a label, which it subtracts,
            # is the product of `read` and `by_read`.
            mean = (read * by_read).sum(dim=-1).T.unsqueeze(-1)  # (labels of the chunk, texts of the block, 1)
            by_weights = by_read.to(backward) @ value.to(backward).transpose(1, 2)  # (texts, labels, tokens)
            scores_of.copy_(by_weights.transpose(0, 1)).sub_(mean).mul_(weights_of)
            by_scores = scores.to(backward)
            if by_keys is not None:
                add_product(by_keys[texts, :tokens].view(flat.shape), by_scores.T, query.to(backward))
            if by_queries is not None:
                add_product(by_queries[chunk], by_scores, flat.to(backward))
    if by_keys is not None:
        by_keys.div_(temperature)
    return total, gradients


class _Layers:
    """
    Layers of an MLP after its first, with ReLU before each, and the sums of their gradients.

    Activations are those after the ReLU: their sign is its derivative.

    Args:
        parameters: Weight and bias of each layer in turn.
        gradients: Sums to add to, None where not needed.
    """

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        gradients: Sequence[torch.Tensor | None],
        precisions: Precisions,
    ):
        self.weights, self.biases = parameters[::2], parameters[1::2]
        self.by_weights, self.by_biases = gradients[::2], gradients[1::2]
        self.precisions = precisions

    def forward(self, read: torch.Tensor) -> list[torch.Tensor]:
        """Activations from the given one, of shape (texts, labels, mlp), and last the logits, (texts, labels, 1)."""
        activations, low = [read], self.precisions.low
        for weight, bias in zip(self.weights, self.biases, strict=True):
            if len(activations) > 1:
                activations[-1].clamp_(min=0)
            inner = activations[-1]
            if low == torch.float16:
                # What it cannot hold becomes the largest that it can.
                inner = inner.clamp(max=torch.finfo(low).max)
            product = inner.to(low) @ weight.to(low).T
            activations.append((product if low == read.dtype else at_least_float(product)).add_(bias))
        return activations

    def backward(self, activations: list[torch.Tensor], by_output: torch.Tensor) -> torch.Tensor:
        """Adds to the gradients of the layers; from the derivative by their output to that before the first ReLU."""
        for layer in reversed(range(len(self.weights))):
            before, by_weight, by_bias = activations[layer], self.by_weights[layer], self.by_biases[layer]
            flat = by_output.flatten(0, 1)
            if by_bias is not None:
                by_bias += flat.sum(dim=0)
            flat = flat.to(self.precisions.backward)
            if by_weight is not None:
                add_product(by_weight, flat.T, before.flatten(0, 1).to(flat.dtype))
            product = (flat @ self.weights[layer].to(flat.dtype)).to(before.dtype)
            by_output = product.view(before.shape).mul_(before.sign())
        return by_output
