"""Adaptive label clusters written as in the paper: probabilities of all labels, and a loop over texts.

Reference of the tests; shares no code with the package, and reads only the weights of a layer.
"""

import torch


def plain_clusters(counts, sizes):
    """Which labels the head and each tail hold, ids ascending."""
    by_count = sorted(range(len(counts)), key=lambda label: (-counts[label], label))
    clusters = []
    for size in sizes:
        clusters.append(sorted(by_count[:size]))
        by_count = by_count[size:]
    return clusters


def product(table, hidden):
    return torch.nn.functional.linear(hidden, table.weight, table.bias)


def plain_probabilities(layer, hidden, counts):
    """Eq. 2 for all labels, (texts, labels), and the probability of each tail, (texts, tails)."""
    clusters = plain_clusters(counts, layer.sizes)
    roots = torch.sigmoid(product(layer.roots, hidden))
    columns = dict(zip(clusters[0], torch.sigmoid(product(layer.label_embeddings, hidden)).T, strict=True))
    for i, (tail, labels) in enumerate(zip(layer.tails, clusters[1:], strict=True)):
        inner = hidden @ tail.projection.weight.T
        if tail.norm is not None:
            centred = inner - inner.mean(dim=1, keepdim=True)
            variance = (centred**2).mean(dim=1, keepdim=True)
            inner = torch.relu(centred / torch.sqrt(variance + tail.norm.eps) * tail.norm.weight + tail.norm.bias)
        joint = roots[:, i : i + 1] * torch.sigmoid(product(tail.label_embeddings, inner))
        columns.update(zip(labels, joint.T, strict=True))
    return torch.stack([columns[label] for label in range(len(counts))], dim=1), roots


def plain_clusters_loss(layer, hidden, labels, counts):
    """Eq. 5 text by text, with one term for each tail that holds no positive."""
    clusters = plain_clusters(counts, layer.sizes)
    probabilities, roots = plain_probabilities(layer, hidden, counts)
    losses = []
    for text, ids in enumerate(labels):
        positives = {int(label) for label in ids if label >= 0}
        terms = []
        for i, cluster in enumerate(clusters):
            if i and not positives & set(cluster):
                terms.append(-torch.log(1 - roots[text, i - 1]))
                continue
            for label in cluster:
                probability = probabilities[text, label]
                terms.append(-torch.log(probability if label in positives else 1 - probability))
        losses.append(torch.stack(terms).mean())
    return torch.stack(losses).mean()
