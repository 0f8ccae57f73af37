"""
Label-word attention: labels read the words of a text. As in the GlocalXML paper one MLP scores what each of them read;
or each word speaks for the label or against it (evidence).
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .fused_loss import Precisions, add_product, at_least_float, finite, plan_blocks, reading_loss
from .label_scores import LabelScores, masked_softmax, pieces
from .linear_head import IdentityStart, LabelTable, Projection, read_table

# A run of labels, or ids of chosen ones.
Labels = slice | Tensor
ALL = slice(None)


class AttentionHead(nn.Module):
    """
    The local branch of GlocalXML (eq. 3-6): label embeddings are queries over the token states of a text, and one MLP
    shared by all labels turns the weighted sum of the values into a logit. Without projections, an attention expert
    of ME-XML (eq. 2-4): the token states themselves are keys and values.

    The weights of a label sum to one, so the first layer of the MLP commutes with the weighted sum. Tokens are
    therefore projected to the width of the MLP once, and no vector of the hidden size is ever made per label. The
    parameters stay the paper's.

    Args:
        hidden_size, num_labels, chunk_bytes, bias, table: As in [`LinearHead`], of token states.
        mlp_sizes: Widths of the hidden layers of the MLP.
        temperature: Divides the scores before the softmax.
        projections: Whether keys and values are linear maps of the token states.
        key_size: Size of keys and label embeddings, where it is not that of the token states.
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

    def forward(self, hidden_states: Tensor, mask: Tensor) -> "AttentionScores":
        """The scores of all labels, from token states, (texts, tokens, hidden), and the mask of the real ones."""
        # Keys and values, folded through the first layer of the MLP: (texts, tokens, key), (texts, tokens, mlp).
        values = self.mlp_hidden(finite(self.value(hidden_states)))
        return AttentionScores(self, self.key(hidden_states), values, mask)


class WordScores(LabelScores):
    """
    Scores of labels that read the tokens of a text: what heads with label-word attention have in common.

    Keys and values of the tokens are of shape (texts, tokens, size); in the mask, (texts, tokens), the real ones come
    first. A subclass says how many bytes one label takes for one text, defines `sums`, and adds what reads the tokens
    for the loss ([`reading_loss`]) and its parameters.
    """

    def __init__(self, head: nn.Module, keys: Tensor, values: Tensor, mask: Tensor, bytes_per_score: int):
        # In one piece: the tokens of all texts are viewed as one matrix. Under autocast token states may come in
        # single precision, and no projection turns them into half.
        self.keys = finite(keys.to(values.dtype) / head.temperature).contiguous()
        self.values, self.mask, self.table = finite(values).contiguous(), mask, read_table(head)
        self.num_texts, self.num_labels = keys.shape[0], self.table.weight.shape[0]
        self.blocks = plan_blocks(self.num_labels, bytes_per_score, head.chunk_bytes, mask)
        self.run_size = self.blocks.num_labels
        self.compute_loss = partial(reading_loss, blocks=self.blocks)
        self.loss_inputs = (self.keys, self.values, self.table.weight, self.table.bias)

    def of(self, labels: Labels) -> Tensor:
        if isinstance(labels, Tensor) and labels.dim() == 2:
            # In pieces: rows are gathered for each text.
            parts = [self.sums(ids, self.attention(ids)) for ids in pieces(labels, self.run_size // self.num_texts)]
            return self.table.add_bias(torch.cat(parts, dim=1), labels)
        queries, parts = self.table.rows(labels).to(self.keys.dtype), []
        for texts, tokens, padding in self.blocks.texts:
            keys = self.keys[texts, :tokens]
            scores = at_least_float(queries @ keys.flatten(0, 1).T).unflatten(1, keys.shape[:2]).transpose(0, 1)
            weights = masked_softmax(scores, None if padding is None else padding.unsqueeze(1))
            parts.append(self.sums(labels, weights, texts, tokens))
        return self.table.add_bias(torch.cat(parts), labels)

    def attention(self, label_ids: Tensor) -> Tensor:
        """Weights with which labels, (texts, chosen), read the tokens: (texts, chosen, tokens); rows sum to one."""
        queries = self.table.rows(label_ids).to(self.keys.dtype)  # (texts, chosen, key)
        return masked_softmax(at_least_float(queries @ self.keys.transpose(1, 2)), ~self.mask.unsqueeze(1))

    def sums(self, labels: Labels, weights: Tensor, texts: slice = ALL, tokens: int | None = None) -> Tensor:
        """Logits without bias, (texts, labels), from the weights with which labels read, (texts, labels, tokens)."""
        raise NotImplementedError


class AttentionScores(WordScores):
    """What labels read of each text, turned into a logit by the further layers of an MLP."""

    def __init__(self, head: AttentionHead, keys: Tensor, values: Tensor, mask: Tensor):
        self.layers = [*head.mlp_further, head.mlp_output]
        # Scores, weights and their gradients; what was read, its gradient and a copy, in all layers.
        widths = values.shape[2] + sum(layer.out_features for layer in self.layers)
        super().__init__(head, keys, values, mask, 4 * (3 * keys.shape[1] + 3 * widths))
        self.compute_loss = partial(self.compute_loss, make_reader=mlp_reader)
        self.loss_inputs += tuple(parameter for layer in self.layers for parameter in (layer.weight, layer.bias))

    def sums(self, labels: Labels, weights: Tensor, texts: slice = ALL, tokens: int | None = None) -> Tensor:
        read = weights.to(self.values.dtype) @ self.values[texts, :tokens]  # (texts, labels, mlp)
        for layer in self.layers:
            # In place: what was read is the largest thing here, and needed no more.
            read = finite(layer(torch.relu_(read)))
        return at_least_float(read.squeeze(-1))


def mlp_reader(
    precisions: Precisions, _: int, parameters: Sequence[Tensor], gradients: Sequence[Tensor | None]
) -> Callable[..., Any]:
    """
    The reader ([`reading_loss`]) that sums values up by their weights and passes the sum through the layers of an MLP
    after its first, whose weights and biases come after the queries.
    """
    low, high, backward = precisions
    # Weight, bias and the sums of their gradients, of each layer.
    layers = list(zip(parameters[1::2], parameters[2::2], gradients[1::2], gradients[2::2], strict=True))

    def read(chunk: slice, weights: Tensor, value: Tensor, buffer: Tensor) -> tuple[Tensor, Callable]:
        words = weights.transpose(0, 1).to(low) @ value  # (texts of the block, labels of the chunk, mlp)
        # Inputs of the layers, after the ReLU, whose derivative is 0 where they are. Last, the logits.
        states = [at_least_float(words)]
        for weight, bias, _, _ in layers:
            # What half precision cannot hold becomes the largest that it can.
            inner = states[-1].clamp_(0, torch.finfo(low).max)
            states.append(at_least_float(inner.to(low) @ weight.to(low).T).add_(bias))
        logits = states.pop().squeeze(-1)

        def way_back(by_logits: Tensor, by_value: Tensor | None) -> None:
            by_state, after = by_logits.unsqueeze(-1), logits.unsqueeze(-1)
            for state, (weight, bias, by_weight, by_bias) in zip(reversed(states), reversed(layers), strict=True):
                flat = by_state.flatten(0, 1)
                if by_bias is not None:
                    by_bias += flat.sum(dim=0)
                # The product of a state and the derivative by it; the layer is linear in the state.
                product = ((after - bias) * by_state).sum(dim=-1)  # (texts of the block, labels of the chunk)
                flat = flat.to(backward)
                if by_weight is not None:
                    add_product(by_weight, flat.T, state.flatten(0, 1).to(backward))
                by_state = (flat @ weight.to(backward)).to(state.dtype).view(state.shape)
                # 0 where the ReLU is.
                by_state, after = by_state.mul_(state.sign()), state
            if by_value is not None:
                add_product(by_value, weights.permute(1, 2, 0).to(backward), by_state.to(backward))
            # Derivative of the softmax: the mean of `by_weights` under the weights of a label, which it subtracts,
            # is the product of what was read, the first state, and the derivative by it.
            by_weights = by_state.to(backward) @ value.to(backward).transpose(1, 2)  # (texts, labels, tokens)
            buffer.copy_(by_weights.transpose(0, 1)).sub_(product.T.unsqueeze(-1)).mul_(weights)

        return logits, way_back

    return read


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
        self.compute_loss = partial(self.compute_loss, make_reader=evidence_reader)
        # Tied rows have their gradient with the queries.
        self.loss_inputs += (None if head.label_outputs is None else self.outputs.weight,)

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
