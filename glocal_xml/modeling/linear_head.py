"""Tables with one embedding per label, and the head that compares them with one vector per text."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from .fused_loss import LossAndGradients, LossPair, Precisions, add_product, at_least_float, chunk_size
from .label_scores import LabelScores, pieces


class LabelTable(nn.Linear):
    """
    One embedding per label, with or without a bias each; heads read rows of it.

    A linear layer, since tensor parallelism splits those over processes: each then holds a run of the labels.
    """

    def __init__(self, size: int, num_labels: int, bias: bool = False):
        super().__init__(size, num_labels, bias=bias)

    def forward(self) -> "LabelRows":
        return LabelRows(own_part(self.weight), own_part(self.bias))

    def read(self) -> "LabelRows":
        """The rows of all labels that this process holds."""
        # Called, so that hooks bring weights that are kept elsewhere; tensor parallelism has a `forward` of its own.
        return LabelTable.forward(self) if hasattr(self.weight, "to_local") else self()

    @torch.no_grad()
    def start_biases(self, log_odds: Tensor) -> None:
        """Starts the bias of every label at its log-odds, of shape (labels,)."""
        self.read().bias.copy_(log_odds)


@dataclass
class LabelRows:
    """What a label table holds now, for all labels or for chosen ones of any shape."""

    weight: Tensor  # (labels, size)
    bias: Tensor | None  # (labels,)

    def rows(self, label_ids: slice | Tensor) -> Tensor:
        return self.weight[label_ids]

    def biases(self, label_ids: slice | Tensor) -> Tensor | None:
        return None if self.bias is None else self.bias[label_ids]

    def add_bias(self, logits: Tensor, label_ids: slice | Tensor) -> Tensor:
        return logits if self.bias is None else logits + self.biases(label_ids)


class Projection(nn.Linear):
    """A linear layer that starts with Xavier weights: with 0.02 throughout, attention stays flat for an epoch."""


class IdentityStart(nn.Linear):
    """A linear layer that starts as the identity: it passes on what the encoder knows from the first step."""


def own_part(parameter: Tensor | None) -> Tensor | None:
    """A parameter, or the part of it that this process holds where labels are split over processes."""
    if parameter is None or not hasattr(parameter, "to_local"):
        return parameter
    if parameter.device_mesh.mesh_dim_names != ("tp",):
        raise ValueError("A label table is sharded otherwise than by `tp_size`: leave heads out of other sharding.")
    return parameter.to_local()


def read_table(head: nn.Module, name: str = "label_embeddings") -> LabelRows:
    """The rows of a label table of a head; refuses what adapters, quantisation or sharding put in its place."""
    table = getattr(head, name)
    # FSDP takes the weights of what it wraps away after each call, and scores are computed later.
    is_wrapped = any(hasattr(module, "reshard") for module in head.modules())
    if is_wrapped or not hasattr(table, "read") or not table.weight.is_floating_point():
        raise ValueError(
            f"`{name}` is {type(table).__name__} in {type(head).__name__}; heads need plain tables of floats: leave "
            "them out of adapters, quantisation and sharding of their own; shard layers of the encoder and the model."
        )
    return table.read()


def check_loaded(module: nn.Module) -> None:
    """Refuses buffers that are kept elsewhere: what reads them is no call that would bring them."""
    if any(buffer.is_meta and type(buffer) is Tensor for buffer in module.buffers()):
        raise ValueError(f"The buffers of {type(module).__name__} are offloaded: offload without `offload_buffers`.")


class LinearHead(nn.Module):
    """
    Scores a label by the dot product of its embedding with the document embedding (GlocalXML eq. 2).

    Args:
        hidden_size: Size of the document embedding.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take; by device when left out.
        bias: Whether each label has a bias; the paper has none.
        table: The class of the label table.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int | None = None,
        bias: bool = False,
        table: type[nn.Module] = LabelTable,
    ):
        super().__init__()
        self.chunk_bytes = chunk_bytes
        self.label_embeddings = table(hidden_size, num_labels, bias)

    def forward(self, document_embedding: Tensor) -> "LinearScores":
        """The scores of all labels, from document embeddings of shape (texts, hidden)."""
        return LinearScores(self, document_embedding, self.chunk_bytes)


class LinearScores(LabelScores):
    """
    Dot products of document embeddings, of shape (texts, hidden), with the label embeddings of a head.

    A chunk of labels takes so many matrices of the size of its logits: these, softplus, sigmoid and a copy.
    """

    def __init__(self, head: nn.Module, document_embedding: Tensor, chunk_bytes: int | None, matrices: int = 4):
        self.document_embedding = document_embedding
        self.table = read_table(head)
        self.num_texts, self.num_labels = document_embedding.shape[0], self.table.weight.shape[0]
        # With the label's embedding and its gradient, which should stay in the cache.
        per_label = 4 * (matrices * self.num_texts + 2 * document_embedding.shape[1])
        self.run_size = chunk_size(self.num_labels, per_label, chunk_bytes, document_embedding.device)
        self.compute_loss = partial(linear_loss, chunk_size=self.run_size)
        self.loss_inputs = (document_embedding, self.table.weight, self.table.bias)

    def of(self, labels: slice | Tensor) -> Tensor:
        documents, parts = self.document_embedding, []
        if isinstance(labels, slice) or labels.dim() == 1:
            logits = nn.functional.linear(documents, self.table.rows(labels).to(documents.dtype))
            return self.table.add_bias(at_least_float(logits), labels)
        # In pieces: rows are gathered for each text.
        for ids in pieces(labels, self.run_size // self.num_texts):
            embeddings = self.table.rows(ids).to(documents.dtype)  # (texts, chosen, hidden)
            parts.append((embeddings @ documents.unsqueeze(-1)).squeeze(-1))
        return self.table.add_bias(at_least_float(torch.cat(parts, dim=1)), labels)


def linear_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    document_embedding: Tensor,
    label_embeddings: Tensor,
    label_bias: Tensor | None,
    *,
    labels: Tensor,
    chunk_size: int,
    loss_pair: LossPair,
) -> LossAndGradients:
    """Sum of the loss over all texts and labels, and its gradients by the first three inputs where `needed`."""
    low, high, backward = precisions
    inputs = (document_embedding, label_embeddings, label_bias)
    gradients = [torch.empty_like(x, dtype=high) if wanted else None for x, wanted in zip(inputs, needed, strict=True)]
    by_document, by_embeddings, by_bias = gradients
    total = document_embedding.new_zeros((), dtype=high)
    for start in range(0, len(label_embeddings), chunk_size):
        chunk = slice(start, start + chunk_size)
        embeddings = label_embeddings[chunk]  # (labels of the chunk, hidden)
        logits = at_least_float(document_embedding @ embeddings.to(low).T)  # (texts, labels of the chunk)
        if label_bias is not None:
            logits += label_bias[chunk]
        loss, by_logits = loss_pair(logits, labels, start)
        total += loss
        if by_bias is not None:
            torch.sum(by_logits, dim=0, out=by_bias[chunk])
        by_logits = by_logits.to(backward)
        if by_document is not None:
            add_product(by_document, by_logits, embeddings.to(backward), fresh=start == 0)
        if by_embeddings is not None:
            add_product(by_embeddings[chunk], by_logits.T, document_embedding.to(backward), fresh=True)
    return total, gradients
