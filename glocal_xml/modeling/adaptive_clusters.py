"""Adaptive probabilistic label clusters: an output layer that computes rare labels only for texts that need them."""

import math
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import torch
from torch import Tensor, nn

from .encoder import PADDING_LABEL
from .fused_loss import LossAndGradients, Precisions, binary_cross_entropy_pair, chunk_size, fused_loss
from .label_scores import LabelScores, Ranking, TopLabels, check_label_counts, log_odds_of, product_logits
from .linear_head import LabelTable, LinearScores, Projection, linear_loss

ALL_TEXTS = slice(None)


class AdaptiveLabelClusters(nn.Module):
    """
    The output layer of *Pretrained Generalized Autoregressive Model with Adaptive Probabilistic Label Clusters for
    Extreme Multi-label Text Classification* (Ye et al., [arXiv:2007.02439](https://arxiv.org/abs/2007.02439)), section
    3.3. It takes the features of any model that gives one vector per text:

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
        tail_norm: Whether layer norm and ReLU stand between the two layers of a tail, as in the authors' code; not so
            in the paper, whose eq. 6 counts no parameters of them.
        bias: Whether labels and roots have a bias each; the paper has none. `start_label_bias` starts them.
    """

    starts_unknown = True

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
        self.roots = LabelTable(hidden_size, len(widths), bias)
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
    def start_label_bias(self, log_odds: Tensor) -> None:
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
            # Within the tail: p / P(any).
            tail.label_embeddings.start_biases(log_odds_of(nn.functional.logsigmoid(odds) - log_any))

    @torch.no_grad()
    def set_label_counts(self, label_counts: Sequence[int] | Tensor) -> None:
        """Puts labels into clusters by falling count of training texts, the lower id first on a tie; only once."""
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

    def forward(self, hidden: Tensor) -> "ClusterScores":
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


def cluster_sizes(num_labels: int, proportions: Sequence[float]) -> list[int]:
    """Number of labels of the head and of each tail cluster, by the share of the labels that each holds."""
    shares = list(proportions)
    if len(shares) < 2:
        raise ValueError(f"Label clusters are a head and at least a tail, got {shares}: take a linear classifier.")
    # Not `<= 0`, which lets NaN pass.
    if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"The proportions of label clusters must be above 0 and sum to 1, got {shares} with the sum "
            f"{sum(shares):g}: give the last cluster what is left over, as in 0.33, 0.33, 0.34."
        )
    # Halves go up, unlike in `round`, so that two labels in halves are one and one.
    cuts = [0, *(math.floor(share * num_labels + 0.5) for share in accumulate(shares[:-1])), num_labels]
    sizes = [stop - start for start, stop in zip(cuts[:-1], cuts[1:], strict=True)]
    if min(sizes) < 1:
        raise ValueError(
            f"With `num_labels` {num_labels} the proportions {shares} make clusters of the sizes {sizes}, but each "
            "needs at least one label: use fewer clusters, more even ones, or a linear classifier."
        )
    return sizes


def tail_widths(hidden_size: int, decay: float, num_tails: int) -> list[int]:
    """Width floor(d / q^i) of the layer before tail i, of 1 to `num_tails` (section 3.3 of the APLC-XLNet paper)."""
    if not decay >= 1:
        raise ValueError(f"The decay of label clusters must be at least 1, got {decay}: 1 keeps all tails full width.")
    widths = [math.floor(hidden_size / decay**i) for i in range(1, num_tails + 1)]
    if widths[-1] < 1:
        raise ValueError(
            f"A decay of {decay} leaves no width for some tail clusters of a hidden size of {hidden_size}, {widths}: "
            "use a smaller decay, or fewer clusters."
        )
    return widths


class TailCluster(nn.Module):
    """Embeddings of the labels of a tail, and the layer that narrows the vector of a text to their width."""

    def __init__(self, hidden_size: int, width: int, num_labels: int, norm: bool, bias: bool):
        super().__init__()
        self.projection = Projection(hidden_size, width, bias=False)
        self.norm = nn.LayerNorm(width) if norm else None
        self.label_embeddings = LabelTable(width, num_labels, bias)

    def forward(self, hidden: Tensor) -> Tensor:
        narrowed = self.projection(hidden)  # (texts, width)
        if self.norm is None:
            return narrowed
        # Under autocast the norm is in single precision, which would make the product over labels so too.
        return nn.functional.relu(self.norm(narrowed)).to(narrowed.dtype)


class ClusterScores(LabelScores):
    """Scores of labels in clusters, from vectors of texts, (texts, hidden)."""

    def __init__(self, layer: AdaptiveLabelClusters, hidden: Tensor):
        self.layer, self.hidden, self.clusters = layer, hidden, layer.runs
        # Kept, since hooks that bring buffers take them away after the call of the layer.
        self.label_places, self.label_order = layer.label_places, layer.label_order  # (labels,) each
        self.num_texts, self.num_labels = hidden.shape[0], layer.num_labels
        per_label = 4 * (6 * hidden.shape[0] + 2 * hidden.shape[1])
        self.run_size = chunk_size(self.num_labels, per_label, layer.chunk_bytes, hidden.device)
        precision = torch.promote_types(hidden.dtype, torch.float32)
        # A root counts in every label of its tail, and there are few of them.
        with torch.autocast(hidden.device.type, enabled=False):
            roots = layer.roots.read()
            bias = None if roots.bias is None else roots.bias.to(precision)
            self.roots = nn.functional.linear(hidden.to(precision), roots.weight.to(precision), bias)  # (texts, tails)

    def of(self, labels: slice | Tensor) -> Tensor:
        places, logits = self.label_places[labels], None
        # Every label in every cluster, and the right one kept: which are inside is not read back from the device.
        for number, run in enumerate(self.clusters):
            scores = OneCluster(self, number).of((places - run.start).clamp(0, run.stop - run.start - 1))
            logits = scores if logits is None else torch.where(_inside(places, run), scores, logits)
        return logits

    def all(self) -> Tensor:
        parts = [OneCluster(self, number).run(0, size) for number, size in enumerate(self.layer.sizes)]
        return torch.cat(parts, dim=1)[:, self.label_places]

    # Which clusters are computed depends on the labels; compiled models call it as it is.
    @torch.compiler.disable
    def loss(self, labels: Tensor) -> Tensor:
        """The loss of the paper, from ids of the labels of each text, each once, padded with -100."""
        roots, sizes = self.roots, self.layer.sizes
        places = self.label_places[labels.clamp(min=0)].masked_fill(labels < 0, PADDING_LABEL)  # (texts, positives)
        visited = torch.stack([_inside(places, run).any(dim=1) for run in self.clusters[1:]], dim=1)  # (texts, tails)
        terms = sizes[0] + torch.where(visited, torch.tensor(sizes[1:]).to(roots.device), 1).sum(dim=1)  # (texts,)
        # What is left of the mean is `scale`, applied last: the gradients of single labels would be tiny.
        text_weights, scale = self.num_labels / terms.to(roots.dtype), 1 / (self.num_texts * self.num_labels)
        unvisited = nn.functional.softplus(roots).masked_fill(visited, 0).sum(dim=1)  # (texts,)
        loss = (unvisited * text_weights).sum() * scale
        for number, texts in [(0, ALL_TEXTS), *self._texts_of_tails(visited)]:
            cluster, run = OneCluster(self, number, texts), self.clusters[number]
            # Rows of the cluster at which labels stand; padding where they stand elsewhere.
            rows = (places[texts] - run.start).masked_fill(~_inside(places[texts], run), PADDING_LABEL)
            compute = partial(tail_loss, labels=rows, text_weights=text_weights[texts], chunk_size=cluster.run_size)
            loss = loss + fused_loss(compute, (*cluster.loss_inputs, cluster.roots), scale)
        return loss

    @torch.no_grad()
    def top_k(self, k: int) -> Ranking:
        """
        The `k` best labels of each text, best first, lower id on a tie.

        Exact: a tail is skipped for texts whose root is below their k-th best logit of the head, and which no label of
        the tail can reach therefore.
        """
        k = min(k, self.num_labels)
        if torch.compiler.is_exporting():
            # A program computes the same for all texts.
            return TopLabels(k).update(self.all(), 0).ranking(self.num_texts)
        best = self._updated(TopLabels(k), 0)
        # Fewer labels than k in the head: lower than any other.
        best.pad()
        kth = best.result()[0][:, -1:]  # (texts, 1)
        # Not `>=`, so that NaN is not hidden; in the precision of the ranking, so that ties are not lost.
        for cluster, texts in self._texts_of_tails(~(self.roots.float() < kth)):
            best.keys[texts] = self._updated(TopLabels(k, best.keys[texts]), cluster, texts).keys
        return best.ranking(self.num_texts)

    def _updated(self, best: TopLabels, cluster: int, texts: Tensor | slice = ALL_TEXTS) -> TopLabels:
        """A ranking with the labels of one cluster added to it."""
        scores, label_ids = OneCluster(self, cluster, texts), self.label_order[self.clusters[cluster]]
        for start, stop in scores.runs():
            best.update(scores.run(start, stop), label_ids[start:stop])
        return best

    def _texts_of_tails(self, wanted: Tensor) -> list[tuple[int, Tensor]]:
        """Each tail that some texts want, and these, from a mask of shape (texts, tails); reads back once."""
        columns = zip(*wanted.tolist(), strict=True)
        texts = [[text for text, is_wanted in enumerate(column) if is_wanted] for column in columns]
        return [(tail + 1, torch.tensor(ids).to(wanted.device)) for tail, ids in enumerate(texts) if ids]


class OneCluster(LinearScores):
    """Scores of the labels of the head, 0, or of a tail times its root; for all texts or those with given numbers."""

    def __init__(self, scores: ClusterScores, number: int, texts: Tensor | slice = ALL_TEXTS):
        layer, hidden = scores.layer, scores.hidden[texts]
        owner, self.roots = layer, None
        if number:
            owner, self.roots = layer.tails[number - 1], scores.roots[texts, number - 1 : number]  # (texts, 1)
            hidden = owner(hidden)  # (texts, width of the tail)
        # Two matrices more than elsewhere: logits of products and their derivatives.
        super().__init__(owner, hidden, layer.chunk_bytes, matrices=6)

    def of(self, labels: slice | Tensor) -> Tensor:
        logits = super().of(labels)
        return logits if self.roots is None else product_logits(self.roots, logits)


def _inside(places: Tensor, run: slice) -> Tensor:
    return (places >= run.start) & (places < run.stop)


def tail_loss(
    precisions: Precisions,
    needed: tuple[bool, ...],
    *inputs: Tensor | None,
    labels: Tensor,
    text_weights: Tensor,
    chunk_size: int,
) -> LossAndGradients:
    """
    Cross-entropy of the product probabilities, summed over the labels of a tail and over texts by their weight, and
    its gradients by the inputs where `needed`: those of [`linear_loss`], and root logits, (texts, 1), in single
    precision at least; without roots the cross-entropy of the labels of the head.
    """
    roots = inputs[-1]
    by_roots = torch.zeros_like(roots) if needed[-1] else None
    softplus_roots = None if roots is None else nn.functional.softplus(-roots)  # (texts, 1)

    def loss_pair(tails: Tensor, labels: Tensor, first_label: int) -> tuple[Tensor, Tensor]:
        if roots is None:
            return binary_cross_entropy_pair(tails, labels, first_label, text_weights)
        logits = product_logits(roots, tails)  # (texts, labels of the chunk)
        loss, by_logits = binary_cross_entropy_pair(logits, labels, first_label, text_weights)
        # With u = exp(-root) and v = exp(-tail), the derivative of a product by its tail is (v + uv) / (u + v + uv).
        # That by its root, (u + uv) / (u + v + uv), is u / (u + v + uv) plus sigmoid(-root) times the former.
        by_tails = (softplus_roots - tails).add_(logits).exp_().mul_(by_logits)
        if by_roots is not None:
            by_roots.add_(logits.sub_(roots).exp_().mul_(by_logits).sum(dim=1, keepdim=True))
            by_roots.addcmul_(torch.sigmoid(-roots), by_tails.sum(dim=1, keepdim=True))
        return loss, by_tails

    inputs, options = inputs[:-1], {"labels": labels, "chunk_size": chunk_size, "loss_pair": loss_pair}
    total, gradients = linear_loss(precisions, needed[:-1], *inputs, **options)
    return total, [*gradients, by_roots]
