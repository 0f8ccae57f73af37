"""What each token of a text adds to the scores of the lexical expert."""

from functools import reduce

import torch
from torch import Tensor

from glocal_xml.modeling import LexicalExpert
from glocal_xml.modeling.label_scores import product_logits


@torch.no_grad()
def lexical_contributions(expert: LexicalExpert, label_ids: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
    """
    What each token of one text adds to the logits of labels, (labels, tokens), and what is there without any token,
    (labels,); together they sum to the logits. A pair counts half for each of its tokens.

    With a tree the logit is no sum of margins. It is reached from that without tokens by one step for each level, and
    each step is shared out as the tokens share in the margin of its level.
    """
    nodes, margins = label_ids, []
    for level in range(len(expert.tables) - 1, -1, -1):
        biases, shares = getattr(expert, f"biases_{level}")[nodes], _shares(expert, level, nodes, token_ids)
        margins.append((expert.scale(level) * biases, expert.scale(level) * shares))
        nodes = getattr(expert, f"parents_{level}")[nodes] if level else nodes
    reached = [biases for biases, _ in margins]
    start = logit = reduce(product_logits, reached)
    total = torch.zeros_like(margins[0][1])
    for level, (biases, shares) in enumerate(margins):
        rise = shares.sum(dim=1)
        reached[level] = biases + rise
        next_logit = reduce(product_logits, reached)
        total, logit = total + shares * slope(logit, next_logit, rise), next_logit
    return total, start


def slope(start: Tensor, end: Tensor, rise: Tensor) -> Tensor:
    """By how much a logit rises with the sum of what tokens add, from end to end, (labels, 1)."""
    return torch.where(rise.abs() > 1e-12, (end - start) / rise, 0.0).unsqueeze(1)


def _shares(expert: LexicalExpert, level: int, rows: Tensor, token_ids: Tensor) -> Tensor:
    """What each token adds to the margins of nodes of a level, of shape (nodes, tokens)."""
    features, values = expert.counter(token_ids[None])
    which, entry_rows, products = expert.tables[level].entries(features[0], values[0])
    of_feature = products.new_zeros(len(rows), features.shape[1])
    for i, row in enumerate(rows.tolist()):
        mine = entry_rows == row
        of_feature[i].index_add_(0, which[mine], products[mine])
    # Each occurrence of a feature has an equal part of it.
    kinds = expert.counter.features(token_ids[None])[0].view(-1, len(token_ids))
    singles, *further = (_of_occurrences(found, features[0], values[0], of_feature) for found in kinds)
    if len(expert.counter.pair_keys):
        halves = further.pop(0) / 2
        singles += halves
        singles[:, 1:] += halves[:, :-1]
    # What remains are the first tokens, which count twice.
    return sum(further, singles)


def _of_occurrences(found: Tensor, features: Tensor, values: Tensor, of_feature: Tensor) -> Tensor:
    kept = values.nonzero()[:, 0]
    shares = of_feature.new_zeros(len(of_feature), len(found))
    if len(kept):
        # Distinct features are in order; a table of tokens and features would not fit for a book.
        places = torch.searchsorted(features[kept], found).clamp(max=len(kept) - 1)
        is_known = features[kept][places] == found
        places = kept[places[is_known]]
        shares[:, is_known] = of_feature[:, places] / torch.bincount(places)[places]
    return shares
