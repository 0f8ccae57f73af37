"""Label-word attention: every label reads the words of a text and is scored by what it read."""

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import torch
from torch import nn

from .fused_loss import fused_loss
from .label_attention_loss import attention_loss
from .label_candidates import Candidates
from .label_scorer import LabelScorer
from .label_shards import own_rows, shared_linear
from .label_table import candidate_rows, label_biases, label_rows, make_label_table, readable_weight
from .losses import LossPair


class LabelAttention(LabelScorer):
    """
    The local branch of GlocalXML (eq. 3-6): label embeddings are queries over the token states of a text, and one MLP
    shared by all labels turns the weighted sum of the values into a logit. Without projections, an attention expert
    of ME-XML (eq. 2-4): the token states themselves are keys and values.

    The weights of a label sum to one, so the first layer of the MLP commutes with the weighted sum. Tokens are
    therefore projected to the width of the MLP once (`features`), and no vector of the hidden size is ever made per
    label. The parameters stay the paper's. Labels are gone over in chunks, and the loss makes its gradients on the way
    (`label_attention_loss.py`): beyond parameters and gradients, memory does not grow with the number of labels.
    The code is the same on every device and was checked on the CPU only.

    Args:
        hidden_size: Size of the token states.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
        mlp_size: Width of the (first) hidden layer of the MLP.
        temperature: Divides the scores before the softmax.
        bias: Whether each label has a bias; the paper has none.
        projections: Whether keys and values are linear maps of the token states.
        label_size: Size of the label embeddings, and of the keys, where it is not that of the token states.
        sparse: Whether the gradient of the label table holds the rows of the candidates alone.
        further_sizes: Widths of hidden layers after the first.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int,
        mlp_size: int,
        temperature: float = 1.0,
        bias: bool = False,
        projections: bool = True,
        label_size: int | None = None,
        sparse: bool = False,
        further_sizes: Sequence[int] = (),
    ):
        super().__init__(num_labels, chunk_bytes)
        self.temperature = temperature
        label_size = hidden_size if label_size is None else label_size
        # A bias of the keys would shift all scores of a label alike and vanish in the softmax.
        self.key = nn.Linear(hidden_size, label_size, bias=False) if projections else nn.Identity()
        self.value = nn.Linear(hidden_size, hidden_size) if projections else nn.Identity()
        self.label_embeddings = make_label_table(num_labels, label_size, bias, sparse)
        self.mlp_hidden = nn.Linear(hidden_size, mlp_size)
        sizes = (mlp_size, *further_sizes)
        self.mlp_further = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(sizes))
        self.mlp_output = nn.Linear(sizes[-1], 1)

    @property
    def label_bias(self) -> torch.Tensor | None:
        """Added to the score of a label; the table keeps it beside what the label reads by."""
        return self.label_embeddings.bias

    def features(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys, values folded through the first layer of the MLP, and the mask of the real tokens."""
        keys = self.key(hidden_states)  # (texts, tokens, label size)
        values = self.mlp_hidden(self.value(hidden_states))  # (texts, tokens, mlp)
        # Under autocast token states may come in single precision, and no projection turns them into half.
        return keys.to(values.dtype), values, attention_mask.bool()

    def attention(
        self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor], label_ids: slice | torch.Tensor
    ) -> torch.Tensor:
        """Weights with which labels read the tokens of their text: (texts, labels, tokens), each row sums to one."""
        return self.shard.collect(partial(self._own_attention, features), label_ids)

    def _own_attention(
        self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor], label_ids: slice | torch.Tensor
    ) -> torch.Tensor:
        keys, _, mask = features
        # (labels, label size) or (texts, chosen, label size)
        queries = label_rows(self.label_embeddings, label_ids).to(keys.dtype)
        scores = queries @ keys.transpose(1, 2) / self.temperature  # (texts, labels, tokens)
        scores = scores.masked_fill(~mask.unsqueeze(1), torch.finfo(scores.dtype).min)
        return _softmax(scores)

    def own_logits(
        self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor], label_ids: slice | torch.Tensor
    ) -> torch.Tensor:
        # Text by text is for a known number of texts of known lengths, which an exported program does not have.
        if isinstance(label_ids, slice) and not torch.compiler.is_exporting():
            queries = label_rows(self.label_embeddings, label_ids)  # (labels, label size)
            # Text by text: less memory, which stays in the cache, and no work on padding.
            logits = torch.stack([self._scores(_read(queries, *text)) for text in self._texts(features)])
        else:
            values = features[1]
            read = self._own_attention(features, label_ids).to(values.dtype) @ values  # (texts, chosen, mlp)
            logits = self._scores(read)
        bias = label_biases(self.label_embeddings, label_ids)
        return logits if bias is None else logits + bias

    def candidate_logits(
        self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor], candidates: Candidates
    ) -> torch.Tensor:
        rows = candidate_rows(self.label_embeddings, candidates)
        # Text by text: no padding among tokens nor labels, and no query is copied.
        scores = [
            self._scores(_read(queries, keys, values))
            for queries, (keys, values) in zip(rows, self._texts(features), strict=True)
        ]
        logits, bias = torch.cat(scores), label_biases(self.label_embeddings, candidates.ids)  # (chosen,)
        return logits if bias is None else logits + bias

    def own_loss(
        self,
        features: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        labels: torch.Tensor,
        loss_pair: LossPair,
    ) -> torch.Tensor:
        keys, values, mask = features
        compute = partial(
            attention_loss,
            mask=mask,
            labels=labels,
            temperature=self.temperature,
            chunk_size=self.chunk_size(features),
            loss_pair=loss_pair,
        )
        inputs = (
            keys,
            values,
            readable_weight(self.label_embeddings, "label_embeddings"),
            *self.shard.shared((readable_weight(self.mlp_output, "mlp_output"), self.mlp_output.bias)),
            own_rows(self.label_bias),
            *self.shard.shared(tuple(self._further_parameters())),
        )
        return fused_loss(compute, inputs, 1 / (labels.shape[0] * self.num_labels))

    def _texts(
        self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Keys by temperature, and values, of the real tokens of one text after the other."""
        keys, values, mask = features
        lengths = mask.sum(dim=1).tolist()
        return zip((keys[mask] / self.temperature).split(lengths), values[mask].split(lengths), strict=True)

    def _scores(self, read: torch.Tensor) -> torch.Tensor:
        """What labels read, folded through the first layer of the MLP, to one score each."""
        for layer in self.mlp_further:
            read = shared_linear(layer, torch.relu_(read), self.shard)
        # In place: what was read is the largest thing here, and needed no more.
        return shared_linear(self.mlp_output, torch.relu_(read), self.shard).squeeze(-1)

    def _further_parameters(self) -> Iterator[torch.Tensor]:
        for layer in self.mlp_further:
            yield readable_weight(layer, "mlp_further")
            yield layer.bias

    def bytes_per_label(self, features: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> int:
        _, tokens, hidden_size = features[0].shape
        further = sum(layer.out_features for layer in self.mlp_further)
        # Scores and weights of one text; what was read, its gradient and a copy, in all layers; the label's embedding.
        return 4 * (2 * tokens + 3 * (features[1].shape[2] + further) + hidden_size)


def _read(queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """What labels read in one text, of shape (labels, mlp)."""
    return _softmax(queries.to(keys.dtype) @ keys.T).to(values.dtype) @ values


def _softmax(scores: torch.Tensor) -> torch.Tensor:
    """Over the tokens, in single precision at least."""
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
