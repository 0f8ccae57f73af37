"""The linear classifier over labels: one embedding per label against one vector per text."""

from functools import partial

import torch
from torch import nn

from .fused_loss import add_product, fused_loss, gradient_dtype
from .label_candidates import Candidates
from .label_scorer import LabelScorer, label_chunks
from .label_shards import own_rows
from .label_table import candidate_rows, label_biases, label_rows, make_label_table, readable_weight
from .losses import LossPair


class LabelClassifier(LabelScorer):
    """
    Scores a label by the dot product of its embedding with the document embedding (GlocalXML eq. 2).

    Args:
        hidden_size: Size of the document embedding.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
        bias: Whether each label has a bias; the paper has none.
        sparse: Whether the gradient of the label table holds the rows of the candidates alone.
    """

    def __init__(self, hidden_size: int, num_labels: int, chunk_bytes: int, bias: bool = False, sparse: bool = False):
        super().__init__(num_labels, chunk_bytes)
        self.label_embeddings = make_label_table(num_labels, hidden_size, bias, sparse)

    @property
    def label_bias(self) -> torch.Tensor | None:
        return self.label_embeddings.bias

    def own_logits(self, features: tuple[torch.Tensor], label_ids: slice | torch.Tensor) -> torch.Tensor:
        (document_embedding,) = features  # (texts, hidden)
        embeddings = label_rows(self.label_embeddings, label_ids)
        bias = label_biases(self.label_embeddings, label_ids)
        if isinstance(label_ids, slice):
            return nn.functional.linear(document_embedding, embeddings, bias)
        chosen = embeddings.to(document_embedding.dtype)  # (texts, chosen, hidden)
        logits = (chosen @ document_embedding.unsqueeze(-1)).squeeze(-1)  # (texts, chosen)
        return logits if bias is None else logits + bias

    def candidate_logits(self, features: tuple[torch.Tensor], candidates: Candidates) -> torch.Tensor:
        (document_embedding,) = features  # (texts, hidden)
        rows = candidate_rows(self.label_embeddings, candidates)
        scores = [row.to(text.dtype) @ text for row, text in zip(rows, document_embedding, strict=True)]
        logits, bias = torch.cat(scores), label_biases(self.label_embeddings, candidates.ids)  # (chosen,)
        return logits if bias is None else logits + bias

    def own_loss(self, features: tuple[torch.Tensor], labels: torch.Tensor, loss_pair: LossPair) -> torch.Tensor:
        compute = partial(classifier_loss, labels=labels, chunk_size=self.chunk_size(features), loss_pair=loss_pair)
        weight = readable_weight(self.label_embeddings, "label_embeddings")
        inputs = (*features, weight, own_rows(self.label_bias))
        return fused_loss(compute, inputs, 1 / (labels.shape[0] * self.num_labels))

    def bytes_per_label(self, features: tuple[torch.Tensor]) -> int:
        texts, hidden_size = features[0].shape
        # Logits, softplus, sigmoid and a copy; the label's embedding and its gradient, which should stay in the cache.
        return 4 * (4 * texts + 2 * hidden_size)


def classifier_loss(
    needed: tuple[bool, ...],
    document_embedding: torch.Tensor,
    label_embeddings: torch.Tensor,
    label_bias: torch.Tensor | None,
    *,
    labels: torch.Tensor,
    chunk_size: int,
    loss_pair: LossPair,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """Sum of the loss over all texts and labels, and its gradients by the first three inputs where `needed`."""
    low = document_embedding.dtype
    high, backward = torch.promote_types(low, torch.float32), gradient_dtype(low)
    inputs = (document_embedding, label_embeddings, label_bias)
    gradients = [torch.empty_like(x, dtype=high) if wanted else None for x, wanted in zip(inputs, needed, strict=True)]
    by_document, by_embeddings, by_bias = gradients
    total = document_embedding.new_zeros((), dtype=high)
    for chunk in label_chunks(len(label_embeddings), chunk_size):
        embeddings = label_embeddings[chunk]  # (labels of the chunk, hidden)
        logits = (document_embedding @ embeddings.to(low).T).to(high)  # (texts, labels of the chunk)
        if label_bias is not None:
            logits += label_bias[chunk]
        loss, by_logits = loss_pair(logits, labels, chunk.start)
        total += loss
        if by_bias is not None:
            torch.sum(by_logits, dim=0, out=by_bias[chunk])
        by_logits = by_logits.to(backward)
        if by_document is not None:
            add_product(by_document, by_logits, embeddings.to(backward), fresh=chunk.start == 0)
        if by_embeddings is not None:
            add_product(by_embeddings[chunk], by_logits.T, document_embedding.to(backward), fresh=True)
    return total, gradients
