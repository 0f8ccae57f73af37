"""Adaptive probabilistic label clusters: an output layer that computes rare labels only for texts that need them."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import nn

from .adaptive_clusters_loss import tail_loss
from .cluster_sizes import cluster_sizes, tail_widths
from .fused_loss import fused_loss
from .input_checks import PADDING_LABEL, check_label_counts, check_labels
from .label_classifier import classifier_loss
from .label_ranking import RunningTopK
from .label_scorer import LabelScorer, label_chunks
from .label_table import readable_weight
from .losses import binary_cross_entropy_pair
from .probabilities import product_logits


class AdaptiveLabelClusters(LabelScorer):
    """
    The output layer of *Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification* (Ye et al., [arXiv:2007.02439](https://arxiv.org/abs/2007.02439)), section
    3.3. It goes on top of any model that gives one vector per text:

    ```py
    layer = AdaptiveLabelClusters(768, 500_000, proportions=[0.25, 0.25, 0.25, 0.25])
    layer.set_label_counts(counts)  # training texts of each label
    loss = layer.loss((hidden,), labels)  # hidden (texts, 768); labels: ids of each text, padded with -100
    logits, ids = layer.top_k((hidden,), 10)  # the exact ten best labels of each text
    ```

    Frequent labels form the head, the others tail clusters of falling frequency and width. A label of the head has the
    probability sigmoid(label), one of a tail sigmoid(root of the tail) * sigmoid(label) (eq. 2).

    The loss of a text is the mean cross-entropy over all labels of the head, all labels of the tails that hold one of
    its positives, and one term per other tail, which pushes its root down and which eq. 5 leaves out; then the mean
    over texts. A tail is computed for the texts that need it alone, and not at all if none does: its parameters then
    have no gradient. The loss is the paper's: `loss_pair` of the base class is not used.

    Args:
        hidden_size: Size of the vector of a text, d of the paper.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take.
        proportions: Share of the labels that the head and each tail hold.
        decay: Factor q by which the width falls from cluster to cluster.
        bias: Whether labels and roots have a bias each; the paper has none. `start_label_bias` starts them.
        tail_norm: Whether layer norm and ReLU stand between the two layers of a tail, as in the authors' code; the
            paper has neither, and without them the parameters are as many as eq. 6 says.
    """

    has_one_table = False

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int = 8 * 2**20,
        proportions: Sequence[float] = (0.5, 0.5),
        decay: float = 2,
        tail_norm: bool = True,
        bias: bool = False,
    ):
        super().__init__(num_labels, chunk_bytes)
        self.sizes = cluster_sizes(num_labels, proportions)
        # Places of the labels of each cluster.
        self.runs = [slice(stop - size, stop) for size, stop in zip(self.sizes, accumulate(self.sizes), strict=True)]
        widths = tail_widths(hidden_size, decay, len(self.sizes) - 1)
        # Together the paper's linear layer of |V_h| + K outputs.
        self.label_embeddings = nn.Linear(hidden_size, self.sizes[0], bias=bias)
        self.roots = nn.Linear(hidden_size, len(widths), bias=bias)
        self.tails = nn.ModuleList(
            TailCluster(hidden_size, width, size, tail_norm, bias)
            for width, size in zip(widths, self.sizes[1:], strict=True)
        )
        # Where each label stands when the labels are put cluster by cluster, and which label stands there. Saved with
        # the weights, which mean nothing without them; 0 as sizes until they are known.
        self.register_buffer("label_places", torch.zeros(num_labels, dtype=torch.long))
        self.register_buffer("label_order", torch.zeros(num_labels, dtype=torch.long))
        self.register_buffer("cluster_sizes", torch.zeros(len(self.sizes), dtype=torch.long))

    @property
    def is_clustered(self) -> bool:
        """Whether it is known which labels each cluster holds."""
        return self.cluster_sizes.tolist() == self.sizes

    @property
    def label_bias(self) -> torch.Tensor | None:
        """That of the labels of the head; tails have theirs."""
        return self.label_embeddings.bias

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """
        Starts all biases so that every label has its log-odds, of shape (labels,), before anything is learned.

        The root of a tail starts at the probability that a text has any of its labels, as if these were independent.
        """
        by_cluster = log_odds.to(self.label_order.device).double()[self.label_order].split(self.sizes)
        self.label_bias.copy_(by_cluster[0])
        for i, (tail, odds) in enumerate(zip(self.tails, by_cluster[1:], strict=True)):
            log_none = nn.functional.logsigmoid(-odds).sum()
            log_any = torch.log(-torch.expm1(log_none))
            self.roots.bias[i] = log_any - log_none
            # Within the tail: p / P(any), just below one where a tail has a single label.
            log_within = (nn.functional.logsigmoid(odds) - log_any).clamp(max=-1e-6)
            tail.label_embeddings.bias.copy_(log_within - torch.log(-torch.expm1(log_within)))

    @torch.no_grad()
    def set_label_counts(self, label_counts: Sequence[int] | torch.Tensor) -> None:
        """
        Puts labels into clusters by falling count, of equal counts the lower id first. To be called once, before use.

        Args:
            label_counts: In how many training texts each label occurs.
        """
        counts = check_label_counts(label_counts, self.num_labels).to(self.label_order.device)
        by_count = counts.argsort(descending=True, stable=True)
        # By id within a cluster, so that a ranking of its labels puts the lower id first on a tie.
        order = torch.cat([ids.sort().values for ids in by_count.split(self.sizes)])
        if self.is_clustered and not torch.equal(order, self.label_order):
            raise ValueError(
                "The labels are in clusters already, and other counts would give trained weights to other labels: "
                "build a new layer."
            )
        self.label_order.copy_(order)
        self.label_places.copy_(order.argsort())
        self.cluster_sizes.copy_(torch.tensor(self.sizes))

    def own_logits(self, features: tuple[torch.Tensor], label_ids: slice | torch.Tensor) -> torch.Tensor:
        hidden, roots = self._with_roots(features)
        places = self.label_places[label_ids]  # (labels,) or (texts, chosen)
        logits = roots.new_empty((len(hidden), places.shape[-1]))
        for cluster, run in enumerate(self.runs):
            inside = _inside(places, run)
            if not inside.any():
                continue
            rows = places[inside] - run.start  # (labels of the cluster,)
            embeddings, bias = self._embeddings(cluster)[rows], self._bias(cluster, rows)
            narrowed = self._narrowed(cluster, hidden)  # (texts, width)
            if isinstance(label_ids, slice):
                scores = nn.functional.linear(narrowed, embeddings, bias)  # (texts, labels of the cluster)
                logits[:, inside] = self._with_root(cluster, scores, roots)
            else:
                texts = inside.nonzero()[:, 0]
                scores = (narrowed[texts] * embeddings.to(narrowed.dtype)).sum(dim=1, keepdim=True)
                scores = scores if bias is None else scores + bias.unsqueeze(1)
                logits[inside] = self._with_root(cluster, scores, roots[texts]).squeeze(1)
        return logits

    def loss(self, features: tuple[torch.Tensor], labels: torch.Tensor) -> torch.Tensor:
        hidden, roots = self._with_roots(features)
        labels = check_labels(labels, self.num_labels, len(hidden))
        places = self.label_places[labels.clamp(min=0)].masked_fill(labels < 0, PADDING_LABEL)  # (texts, positives)
        visited = torch.stack([_inside(places, run).any(dim=1) for run in self.runs[1:]], dim=1)  # (texts, tails)
        tail_sizes = torch.tensor(self.sizes[1:], device=hidden.device)
        terms = self.sizes[0] + torch.where(visited, tail_sizes, 1).sum(dim=1)  # (texts,)
        # What is left of the mean is `scale`, applied last: the gradients of single labels would be tiny.
        text_weights, scale = self.num_labels / terms.to(roots.dtype), 1 / (len(hidden) * self.num_labels)

        compute = partial(
            classifier_loss,
            labels=_rows(places, self.runs[0]),
            chunk_size=self._chunk_size(*hidden.shape),
            loss_pair=partial(binary_cross_entropy_pair, text_weights=text_weights),
        )
        loss = fused_loss(compute, (hidden, self._embeddings(0), self.label_bias), scale)
        unvisited = nn.functional.softplus(roots).masked_fill(visited, 0).sum(dim=1)  # (texts,)
        loss = loss + (unvisited * text_weights).sum() * scale
        for cluster, run in enumerate(self.runs[1:], start=1):
            texts = visited[:, cluster - 1].nonzero().squeeze(1)  # (texts of the tail,)
            if len(texts) == 0:
                continue
            narrowed = self._narrowed(cluster, hidden[texts])  # (texts of the tail, width)
            compute = partial(
                tail_loss,
                labels=_rows(places[texts], run),
                text_weights=text_weights[texts],
                chunk_size=self._chunk_size(*narrowed.shape),
            )
            bias = self.tails[cluster - 1].label_embeddings.bias
            inputs = (narrowed, self._embeddings(cluster), bias, roots[texts, cluster - 1 : cluster])
            loss = loss + fused_loss(compute, inputs, scale)
        return loss

    @torch.no_grad()
    def top_k(self, features: tuple[torch.Tensor], k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """
        The `k` best labels of each text, best first, lower id on a tie: their logits and ids, of shape (texts, k).

        Exact: a tail is skipped for texts whose root is below their k-th best logit so far, and which no label of the
        tail can reach therefore.
        """
        if k < 1:
            raise ValueError(f"`k` must be at least 1, got {k}.")
        hidden, roots = self._with_roots(features)
        k = min(k, self.num_labels)
        best = roots.new_full((len(hidden), k), -torch.inf)
        ids = self.label_order.new_full((len(hidden), k), self.num_labels)
        for cluster, run in enumerate(self.runs):
            # Not `>=`, so that NaN is not hidden.
            wanted = ~(roots[:, cluster - 1] < best[:, -1]) if cluster else torch.ones_like(best[:, 0], dtype=bool)
            texts = wanted.nonzero().squeeze(1)  # (texts of the cluster,)
            if len(texts) == 0:
                continue
            scores, columns = self._cluster_top_k(cluster, hidden[texts], roots[texts], k)
            found, by_id = torch.cat([ids[texts], self.label_order[run][columns]], dim=1).sort(dim=1)
            scores = torch.cat([best[texts], scores], dim=1).gather(1, by_id)  # (texts of the cluster, at most 2 k)
            scores, by_score = scores.sort(dim=1, descending=True, stable=True)
            best[texts], ids[texts] = scores[:, :k], found.gather(1, by_score)[:, :k]
        return best, ids

    def _cluster_top_k(
        self, cluster: int, hidden: torch.Tensor, roots: torch.Tensor, k: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and columns of the best labels of one cluster."""
        narrowed, embeddings = self._narrowed(cluster, hidden), self._embeddings(cluster)
        ranking = RunningTopK(k)
        for chunk in label_chunks(len(embeddings), self._chunk_size(*narrowed.shape)):
            # (texts of the cluster, labels of the chunk)
            scores = nn.functional.linear(narrowed, embeddings[chunk], self._bias(cluster, chunk))
            ranking.update(self._with_root(cluster, scores, roots), chunk.start)
        return ranking.scores, ranking.ids

    def bytes_per_label(self, features: tuple[torch.Tensor]) -> int:
        return _bytes_per_label(*features[0].shape)

    def _chunk_size(self, texts: int, width: int) -> int:
        """Labels of a chunk in a cluster of this width and for this many texts."""
        return max(1, self.chunk_bytes // _bytes_per_label(texts, width))

    def _with_roots(self, features: tuple[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors of the texts and the root logits of the tails, (texts, tails), in single precision at least."""
        if not self.is_clustered:
            raise ValueError(
                "It is not known which labels are frequent: call `set_label_counts(label_space.counts)` once on a new "
                "model; saved weights hold the answer, for clusters of the same sizes."
            )
        if not isinstance(features, tuple) or features[0].dim() != 2 or len(features[0]) == 0:
            raise ValueError("Pass `(hidden,)`, a tuple of one tensor of shape (texts, hidden size) with some texts.")
        (hidden,) = features  # (texts, hidden)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        # A root counts in every label of its tail, and there are few of them.
        with torch.autocast(hidden.device.type, enabled=False):
            weight, bias = readable_weight(self.roots, "roots").to(precision), self.roots.bias
            bias = None if bias is None else bias.to(precision)
            return hidden, nn.functional.linear(hidden.to(precision), weight, bias)

    def _with_root(self, cluster: int, scores: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        """Logits of labels of a cluster, from their scores within it, (texts, labels), and the roots of the texts."""
        scores = scores.to(roots.dtype)
        return product_logits(roots[:, cluster - 1 : cluster], scores) if cluster else scores

    def _narrowed(self, cluster: int, hidden: torch.Tensor) -> torch.Tensor:
        """What the labels of a cluster are compared with, of shape (texts, width of the cluster)."""
        return self.tails[cluster - 1](hidden) if cluster else hidden

    def _embeddings(self, cluster: int) -> torch.Tensor:
        owner = self.tails[cluster - 1] if cluster else self
        return readable_weight(owner.label_embeddings, "label_embeddings")  # (labels of the cluster, width)

    def _bias(self, cluster: int, rows: slice | torch.Tensor) -> torch.Tensor | None:
        owner = self.tails[cluster - 1] if cluster else self
        bias = owner.label_embeddings.bias  # (labels of the cluster,)
        return None if bias is None else bias[rows]


class TailCluster(nn.Module):
    """Embeddings of the labels of a tail, and the layer that narrows the vector of a text to their width."""

    def __init__(self, hidden_size: int, width: int, num_labels: int, norm: bool, bias: bool):
        super().__init__()
        self.projection = nn.Linear(hidden_size, width, bias=False)
        self.norm = nn.LayerNorm(width) if norm else None
        self.label_embeddings = nn.Linear(width, num_labels, bias=bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        narrowed = self.projection(hidden)  # (texts, width)
        if self.norm is None:
            return narrowed
        # Under autocast the norm is in single precision, which would make the product over labels so too.
        return nn.functional.relu(self.norm(narrowed)).to(narrowed.dtype)


def _inside(places: torch.Tensor, run: slice) -> torch.Tensor:
    return (places >= run.start) & (places < run.stop)


def _rows(places: torch.Tensor, run: slice) -> torch.Tensor:
    """Rows of a cluster at which labels stand, of the shape of `places`; padding where they stand elsewhere."""
    return (places - run.start).masked_fill(~_inside(places, run), PADDING_LABEL)


def _bytes_per_label(texts: int, width: int) -> int:
    # Scores, product logits, softplus, derivatives and a copy; the label's embedding and its gradient.
    return 4 * (6 * texts + 2 * width)
