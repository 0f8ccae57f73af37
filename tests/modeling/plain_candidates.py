"""Label trees the plain way: text by text, with every node and label scored and Python lists for the rest."""

import torch


def make_tree(num_labels, level_sizes, seed=0):
    """Where the children of each node start, and the order of the labels: shared out evenly, labels at random."""
    sizes = [*level_sizes, num_labels]
    starts = [
        [round(i * below / above) for i in range(above + 1)] for above, below in zip(sizes, sizes[1:], strict=False)
    ]
    order = torch.randperm(num_labels, generator=torch.Generator().manual_seed(seed))
    # Within a cluster labels stand in the order of their ids.
    order = [sorted(order[first:last].tolist()) for first, last in zip(starts[-1], starts[-1][1:], strict=False)]
    return [torch.tensor(level) for level in starts], torch.tensor([label for ids in order for label in ids])


def children_of(tree, level, node):
    starts = tree.child_starts(level).tolist()
    places = range(starts[node], starts[node + 1])
    return [tree.label_order[i].item() for i in places] if level == len(tree.level_sizes) - 1 else list(places)


def leads_to(tree, level, node, labels):
    if level == len(tree.level_sizes):
        return node in labels
    return any(leads_to(tree, level + 1, child, labels) for child in children_of(tree, level, node))


def plain_candidates(model, scores, labels=None, beam=None):
    """
    For each text: (logits, targets) of the nodes that count at each level, candidate labels, probability of their way.

    `scores` is what the model gives for the texts, `model(..., output_scores=True).scores`; read are the scores of all
    nodes of its levels alone.
    """
    tree = model.label_tree
    beam = model.config.training_beam if beam is None else beam
    of_levels = [level.all() for level in scores.levels.values()]
    result = []
    for text in range(scores.num_texts):
        nodes, ways = list(range(tree.level_sizes[0])), {}
        terms = []
        for level, logits in enumerate(of_levels):
            true = [labels is not None and leads_to(tree, level, node, labels[text]) for node in nodes]
            terms.append((logits[text, nodes], torch.tensor(true, dtype=logits.dtype)))
            ways = {node: ways.get(node, 1.0) * logits[text, node].sigmoid().item() for node in nodes}
            ranked = sorted(zip(nodes, true, strict=True), key=lambda pair: (not pair[1], -ways[pair[0]]))
            chosen = [node for node, _ in ranked[: max(beam, sum(true))]]
            below = {child: ways[node] for node in chosen for child in children_of(tree, level, node)}
            nodes, ways = list(below), below
        result.append((terms, nodes, ways))
    return result


def plain_candidate_loss(model, scores, labels, of_labels):
    """Loss of the levels and, by `of_labels(text, candidates, targets)`, of the candidates; means over texts."""
    total = 0.0
    trained = model.trained_levels() if hasattr(model, "trained_levels") else range(len(scores.levels))
    for text, (terms, candidates, _) in enumerate(plain_candidates(model, scores, labels)):
        for level in set(range(len(terms))) & set(trained):
            logits, target = terms[level]
            total = total + torch.nn.functional.binary_cross_entropy_with_logits(logits, target)
        target = torch.tensor([label in labels[text] for label in candidates], dtype=terms[0][0].dtype)
        total = total + of_labels(text, candidates, target)
    return total / len(labels)
