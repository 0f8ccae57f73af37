"""The linear classifier over labels: one embedding per label against one vector per text."""

import torch
from torch import nn

from .label_scorer import LabelScorer


class LabelClassifier(LabelScorer):
    """
    Scores a label by the dot product of its embedding with the document embedding (GlocalXML eq. 2).

    Args:
        hidden_size: Size of the document embedding.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
        bias: Whether each label has a bias; the paper has none.
    """

    def __init__(self, hidden_size: int, num_labels: int, chunk_bytes: int, bias: bool = False):
        super().__init__(num_labels, chunk_bytes)
        self.label_embeddings = nn.Linear(hidden_size, num_labels, bias=bias)

    @property
    def label_bias(self) -> torch.Tensor | None:
        return self.label_embeddings.bias

    def logits(self, features: tuple[torch.Tensor], label_ids: slice | torch.Tensor) -> torch.Tensor:
        (document_embedding,) = features  # (texts, hidden)
        weight, bias = self.label_embeddings.weight, self.label_embeddings.bias
        if isinstance(label_ids, slice):
            return nn.functional.linear(
                document_embedding, weight[label_ids], None if bias is None else bias[label_ids]
            )
        chosen = weight[label_ids].to(document_embedding.dtype)  # (texts, chosen, hidden)
        logits = (chosen @ document_embedding.unsqueeze(-1)).squeeze(-1)  # (texts, chosen)
        return logits if bias is None else logits + bias[label_ids]

    def bytes_per_label(self, features: tuple[torch.Tensor]) -> int:
        (document_embedding,) = features
        # Logits, their softplus and the gradients of both.
        return 16 * document_embedding.shape[0]
