"""Adaptive probabilistic label clusters: an output layer that computes rare labels only for texts that need them."""

from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import nn

from .cluster_sizes import cluster_sizes, tail_widths
from .encoder import PADDING_LABEL
from .fused_loss import Precisions, at_least_float, binary_cross_entropy_pair, chunk_size, fused_loss
from .label_scores import LabelScores, Ranking, TopLabels, check_label_counts, product_logits, with_bias
from .linear_head import LabelTable, Projection, linear_loss, read_table


class AdaptiveLabelClusters(nn.Module):
    """
    The output layer of *Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification* (Ye et al., [arXiv:2007.02439](https://arxiv.org/abs/2007.02439)), section
    3.3. It goes on top of any model that gives one vector per text:

    ```py
    layer = AdaptiveLabelClusters(768, 500_000, proportions=[0.25, 0.25, 0.25, 0.25])
    layer.set_label_counts(counts)  # training texts of each label
    scores = layer(hidden)  # hidden (texts, 768)
    loss = scores.loss(labels)  # ids of each text, each once, padded with -100
    ranking = scores.top_k(10)  # the exact ten best labels of each text: ranking.ids, ranking.logits
    ```

    Frequent labels form the head, the others tail clusters of falling frequency and width. A label of the head has the
    probability sigmoid(label), one of a tail sigmoid(root of the tail) * sigmoid(label) (eq. 2).

    The loss of a text is the mean cross-entropy over all labels of the head, all labels of the tails that hold one of
    its positives, and one term per other tail, which pushes its root down and which eq. 5 leaves out; then the mean
    over texts. A tail is computed for the texts that need it alone, and not at all if none does: its parameters then
    have no gradient.

    Args:
        hidden_size: Size of the vector of a text, d of the paper.
        num_labels: Number of labels.
        chunk_bytes: Memory that one chunk of labels may take; by device when left out.
        proportions: Share of the labels that the head and each tail hold.
        decay: Factor q by which the width falls from cluster to cluster.
        bias: Whether labels and roots have a bias each; the paper has none. `start_label_bias` starts them.
        tail_norm: Whether layer norm and ReLU stand between the two layers of a tail, as in the authors' code; the
            paper has neither, and without them the parameters are as many as eq. 6 says.
    """

    def __init__(
        self,
        hidden_size: int,
        num_labels: int,
        chunk_bytes: int | None = None,
        proportions: Sequence[float] = (0.5, 0.5),
        decay: float = 2,
        tail_norm: bool = True,
        bias: bool = False,
    ):
        super().__init__()
        self.num_labels, self.chunk_bytes = num_labels, chunk_bytes
        self.sizes = cluster_sizes(num_labels, proportions)
        # Places of the labels of each cluster.
        self.runs = [slice(stop - size, stop) for size, stop in zip(self.sizes, accumulate(self.sizes), strict=True)]
        widths = tail_widths(hidden_size, decay, len(self.sizes) - 1)
        # Together the paper's linear layer of |V_h| + K outputs.
        self.label_embeddings = LabelTable(hidden_size, self.sizes[0], bias)
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
        self._is_clustered = False

    @property
    def is_clustered(self) -> bool:
        """Whether it is known which labels each cluster holds."""
        # Kept once it is true, since asking a device takes time.
        self._is_clustered = self._is_clustered or self.cluster_sizes.tolist() == self.sizes
        return self._is_clustered

    @torch.no_grad()
    def start_label_bias(self, log_odds: torch.Tensor) -> None:
        """
        Starts all biases so that every label has its log-odds, of shape (labels,), before anything is learned.

        The root of a tail starts at the probability that a text has any of its labels, as if these were independent.
        """
        by_cluster = log_odds.to(self.label_order.device).double()[self.label_order].split(self.sizes)
        self.label_embeddings.start_biases(by_cluster[0])
        for i, (tail, odds) in enumerate(zip(self.tails, by_cluster[1:], strict=True)):
            log_none = nn.functional.logsigmoid(-odds).sum()
            log_any = torch.log(-torch.expm1(log_none))
            self.roots.bias[i] = log_any - log_none
            # Within the tail: p / P(any), just below one where a tail has a single label.
            log_within = (nn.functional.logsigmoid(odds) - log_any).clamp(max=-1e-6)
            tail.label_embeddings.start_biases(log_within - torch.log(-torch.expm1(log_within)))

    @torch.no_grad()
    def set_label_counts(self, label_counts: Sequence[int] | torch.Tensor) -> None:
        """
        Puts labels into clusters by falling count, of equal counts the lower id first. To be called once, before use.

        Args:
            label_counts: In how many training texts each label occurs.
        """
        counts = check_label_counts(label_counts, self.num_labels).to(self.label_order.device)
        order = counts.argsort(descending=True, stable=True)
        order = torch.cat([ids.sort().values for ids in order.split(self.sizes)])
        if self.is_clustered and not torch.equal(order, self.label_order):
            raise ValueError(
                "The labels are in clusters already, and other counts would give trained weights to other labels: "
                "build a new layer."
            )
        self.label_order.copy_(order)
        self.label_places.copy_(order.argsort())
        self.cluster_sizes.copy_(torch.tensor(self.sizes))

    def forward(self, hidden: torch.Tensor) -> "ClusterScores":
        """The scores of all labels, from one vector per text, of shape (texts, hidden)."""
        if not self.is_clustered:
            raise ValueError(
                "It is not known which labels are frequent: call `set_label_counts(label_space.counts)` once on a new "
                "model; saved weights hold the answer, for clusters of the same sizes."
            )
        if hidden.dim() != 2 or hidden.shape[0] == 0:
            raise ValueError(
                f"Pass a tensor of shape (texts, hidden size) with at least one text, got {tuple(hidden.shape)}."
            )
        return ClusterScores(self, hidden)


class TailCluster(nn.Module):
    """Embeddings of the labels of a tail, and the layer that narrows the vector of a text to their width."""

    def __init__(self, hidden_size: int, width: int, num_labels: int, norm: bool, bias: bool):
        super().__init__()
        self.projection = Projection(hidden_size, width, bias=False)
        self.norm = nn.LayerNorm(width) if norm else None
        self.label_embeddings = LabelTable(width, num_labels, bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        narrowed = self.projection(hidden)  # (texts, width)
        if self.norm is None:
            return narrowed
        # Under autocast the norm is in single precision, which would make the product over labels so too.
        return nn.functional.relu(self.norm(narrowed)).to(narrowed.dtype)


class ClusterScores(LabelScores):
    """Scores of labels in clusters, from vectors of texts, (texts, hidden)."""

    def __init__(self, layer: AdaptiveLabelClusters, hidden: torch.Tensor):
        self.layer, self.hidden = layer, hidden
        self.num_texts, self.num_labels = hidden.shape[0], layer.num_labels
        self.run_size = self._chunk_size(layer.num_labels, *hidden.shape)
        self.tables = [read_table(owner)[0] for owner in (layer, *layer.tails)]
        self.runs = layer.runs
        precision = torch.promote_types(hidden.dtype, torch.float32)
        # A root counts in every label of its tail, and there are few of them.
        with torch.autocast(hidden.device.type, enabled=False):
            bias = layer.roots.bias
            bias = None if bias is None else bias.to(precision)
            # (texts, tails)
            self.roots = nn.functional.linear(hidden.to(precision), layer.roots.weight.to(precision), bias)

    def run(self, start: int, stop: int) -> torch.Tensor:
        return self._at_places(self.layer.label_places[start:stop])

    def chosen(self, label_ids: torch.Tensor) -> torch.Tensor:
        return self._at_places(self.layer.label_places[label_ids])

    def _at_places(self, places: torch.Tensor) -> torch.Tensor:
        """Logits of labels by where they stand, (labels,) or (texts, chosen)."""
        logits = None
        # Every label in every cluster, and the right one kept: which are inside is not read back from the device.
        for cluster, (run, table) in enumerate(zip(self.runs, self.tables, strict=True)):
            rows = (places - run.start).clamp(0, run.stop - run.start - 1)
            narrowed = self._narrowed(cluster, self.hidden)  # (texts, width)
            embeddings = table.rows(rows).to(narrowed.dtype)
            if places.dim() == 1:
                scores = narrowed @ embeddings.T
            else:
                scores = (embeddings @ narrowed.unsqueeze(-1)).squeeze(-1)
            scores = self._with_root(cluster, with_bias(at_least_float(scores), table.biases(rows)), self.roots)
            logits = scores if logits is None else torch.where(_inside(places, run), scores, logits)
        return logits

    def all(self) -> torch.Tensor:
        parts = []
        for cluster, table in enumerate(self.tables):
            scores = nn.functional.linear(self._narrowed(cluster, self.hidden), table.rows())
            parts.append(self._with_root(cluster, with_bias(at_least_float(scores), table.biases()), self.roots))
        return torch.cat(parts, dim=1)[:, self.layer.label_places]

    def loss(self, labels: torch.Tensor) -> torch.Tensor:
        """The loss of the paper, from ids of the labels of each text, each once, padded with -100."""
        hidden, roots, layer = self.hidden, self.roots, self.layer
        places = layer.label_places[labels.clamp(min=0)].masked_fill(labels < 0, PADDING_LABEL)  # (texts, positives)
        visited = torch.stack([_inside(places, run).any(dim=1) for run in self.runs[1:]], dim=1)  # (texts, tails)
        tail_sizes = torch.tensor(layer.sizes[1:]).to(hidden.device)
        terms = layer.sizes[0] + torch.where(visited, tail_sizes, 1).sum(dim=1)  # (texts,)
        # What is left of the mean is `scale`, applied last: the gradients of single labels would be tiny.
        text_weights, scale = self.num_labels / terms.to(roots.dtype), 1 / (self.num_texts * self.num_labels)

        compute = partial(
            linear_loss,
            labels=_rows(places, self.runs[0]),
            chunk_size=self._chunk_size(layer.sizes[0], *hidden.shape),
            loss_pair=partial(binary_cross_entropy_pair, text_weights=text_weights),
        )
        loss = fused_loss(compute, (hidden, self.tables[0].rows(), self.tables[0].biases()), scale)
        unvisited = nn.functional.softplus(roots).masked_fill(visited, 0).sum(dim=1)  # (texts,)
        loss = loss + (unvisited * text_weights).sum() * scale
        for cluster, texts in self._texts_of_tails(visited):
            narrowed, table = (
                self._narrowed(cluster, hidden[texts]),
                self.tables[cluster],
            )  # (texts of the tail, width)
            compute = partial(
                tail_loss,
                labels=_rows(places[texts], self.runs[cluster]),
                text_weights=text_weights[texts],
                chunk_size=self._chunk_size(layer.sizes[cluster], *narrowed.shape),
            )
            inputs = (narrowed, table.rows(), table.biases(), roots[texts, cluster - 1 : cluster])
            loss = loss + fused_loss(compute, inputs, scale)
        return loss

    @torch.no_grad()
    def top_k(self, k: int) -> Ranking:
        """
        The `k` best labels of each text, best first, lower id on a tie.

        Exact: a tail is skipped for texts whose root is below their k-th best logit of the head, and which no label of
        the tail can reach therefore.
        """
        k = min(k, self.num_labels)
        best = self._updated(TopLabels(k), 0, self.hidden, self.roots)
        # Fewer labels than k in the head: lower than any other.
        best.pad()
        kth = best.result()[0][:, -1:]  # (texts, 1)
        # Not `>=`, so that NaN is not hidden; in the precision of the ranking, so that ties are not lost.
        for cluster, texts in self._texts_of_tails(~(self.roots.float() < kth)):
            found = self._updated(TopLabels(k, best.keys[texts]), cluster, self.hidden[texts], self.roots[texts])
            best.keys[texts] = found.keys
        return Ranking(*best.result())

    def _updated(self, best: TopLabels, cluster: int, hidden: torch.Tensor, roots: torch.Tensor) -> TopLabels:
        """A ranking with the labels of one cluster added to it."""
        narrowed, table, run = self._narrowed(cluster, hidden), self.tables[cluster], self.runs[cluster]
        size = run.stop - run.start
        number = self._chunk_size(size, *narrowed.shape)
        for start in range(0, size, number):
            chunk = slice(start, min(start + number, size))
            scores = at_least_float(nn.functional.linear(narrowed, table.rows(chunk)))
            scores = self._with_root(cluster, with_bias(scores, table.biases(chunk)), roots)
            best.update(scores, self.layer.label_order[run][chunk])
        return best

    def _texts_of_tails(self, wanted: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        """Each tail that some texts want, and these, from a mask of shape (texts, tails); reads back once."""
        columns = zip(*wanted.tolist(), strict=True)
        texts = [[text for text, is_wanted in enumerate(column) if is_wanted] for column in columns]
        return [(tail + 1, torch.tensor(ids).to(wanted.device)) for tail, ids in enumerate(texts) if ids]

    def _narrowed(self, cluster: int, hidden: torch.Tensor) -> torch.Tensor:
        """What the labels of a cluster are compared with, of shape (texts, width of the cluster)."""
        return self.layer.tails[cluster - 1](hidden) if cluster else hidden

    def _with_root(self, cluster: int, scores: torch.Tensor, roots: torch.Tensor) -> torch.Tensor:
        """Logits of labels of a cluster, from their scores within it, (texts, labels), and the roots of the texts."""
        return product_logits(roots[:, cluster - 1 : cluster], scores) if cluster else scores

    def _chunk_size(self, num_labels: int, num_texts: int, width: int) -> int:
        # Scores, product logits, softplus, derivatives and a copy; the label's embedding and its gradient.
        per_label = 4 * (6 * num_texts + 2 * width)
        return chunk_size(num_labels, per_label, self.layer.chunk_bytes, self.hidden.device)


def _inside(places: torch.Tensor, run: slice) -> torch.Tensor:
    return (places >= run.start) & (places < run.stop)


def _rows(places: torch.Tensor, run: slice) -> torch.Tensor:
    """Rows of a cluster at which labels stand, of the shape of `places`; padding where they stand elsewhere."""
    return (places - run.start).masked_fill(~_inside(places, run), PADDING_LABEL)


def tail_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    narrowed: torch.Tensor,
    label_embeddings: torch.Tensor,
    label_bias: torch.Tensor | None,
    roots: torch.Tensor,
    *,
    labels: torch.Tensor,
    text_weights: torch.Tensor,
    chunk_size: int,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Cross-entropy of the product probabilities, summed over the labels of a tail and over texts by their weight, and
    its gradients by the first four inputs where `needed`.

    Args:
        narrowed: The texts that need this tail as its first layer gives them, of shape (texts, width).
        label_embeddings: Those of the labels of this tail, of shape (labels of the tail, width).
        label_bias: One bias per label of this tail, or none.
        roots: Root logits of this tail, of shape (texts, 1), in single precision at least.
        labels: Rows of `label_embeddings` that are positive, padded with -100.
        text_weights: Weight of each text, of shape (texts,).
    """
    softplus_roots = nn.functional.softplus(-roots)  # (texts, 1)
    by_roots = torch.zeros_like(roots) if needed[3] else None

    def loss_pair(tails: torch.Tensor, labels: torch.Tensor, first_label: int) -> tuple[torch.Tensor, torch.Tensor]:
        logits = product_logits(roots, tails)  # (texts, labels of the chunk)
        loss, by_logits = binary_cross_entropy_pair(logits, labels, first_label, text_weights)
        # With u = exp(-root) and v = exp(-tail), the derivative of a product by its tail is (v + uv) / (u + v + uv).
        # That by its root, (u + uv) / (u + v + uv), is u / (u + v + uv) plus sigmoid(-root) times the former.
        by_tails = (softplus_roots - tails).add_(logits).exp_().mul_(by_logits)
        if by_roots is not None:
            by_roots.add_(logits.sub_(roots).exp_().mul_(by_logits).sum(dim=1, keepdim=True))
            by_roots.addcmul_(torch.sigmoid(-roots), by_tails.sum(dim=1, keepdim=True))
        return loss, by_tails

    total, gradients = linear_loss(
        precisions,
        needed[:3],
        narrowed,
        label_embeddings,
        label_bias,
        labels=labels,
        chunk_size=chunk_size,
        loss_pair=loss_pair,
    )
    return total, [*gradients, by_roots]
