"""The experts the plain way: text by text, with dictionaries and dense numpy matrices."""

from collections import Counter

import numpy as np


def plain_row(ids, weights, tokens, pair_keys=(), lead=0):
    """Values of all features of one text, (features,)."""
    known = [0 <= token < tokens and weights[token] != 0 for token in ids]
    counts = Counter(token for token, is_known in zip(ids, known, strict=True) if is_known)
    places = {key: tokens + place for place, key in enumerate(pair_keys)}
    for i in range(len(ids) - 1):
        key = ids[i] * tokens + ids[i + 1]
        if known[i] and known[i + 1] and key in places:
            counts[places[key]] += 1
    firsts = [token for token, is_known in zip(ids, known, strict=True) if is_known][:lead]
    counts.update(tokens + len(places) + token for token in firsts)
    row = np.zeros(len(weights))
    for feature, count in counts.items():
        row[feature] = (1 + np.log(count)) * weights[feature]
    length = np.linalg.norm(row)
    return row / length if length else row


def sigmoid(logits):
    return 1 / (1 + np.exp(-logits))


def logit(probability):
    return np.log(probability) - np.log1p(-probability)


def dense_table(table):
    """A `SparseTable` as a dense matrix, (rows, features)."""
    starts, rows, values = (getattr(table, name).numpy() for name in ("starts", "rows", "values"))
    dense = np.zeros((table.num_rows, len(starts) - 1))
    for feature in range(len(starts) - 1):
        for place in range(starts[feature], starts[feature + 1]):
            dense[rows[place], feature] += values[place]
    return dense


def plain_counter_row(counter, ids):
    weights, pair_keys = counter.weights.double().numpy(), counter.pair_keys.tolist()
    return plain_row(list(ids), weights, counter.tokens, pair_keys, counter.lead)


def plain_lexical_logits(expert, ids):
    """Logits of all labels for one text: the product of the probabilities on the way to each, (labels,)."""
    row = plain_counter_row(expert.counter, ids)
    last = len(expert.tables) - 1
    probabilities = None
    for level, table in enumerate(expert.tables):
        margins = dense_table(table) @ row + getattr(expert, f"biases_{level}").double().numpy()
        own = sigmoid((4.0 if level == last else 3.0) * margins)
        above = 1.0 if probabilities is None else probabilities[getattr(expert, f"parents_{level}").numpy()]
        probabilities = above * own
    return logit(probabilities)


def plain_votes(expert, ids):
    """Logits of the votes of one text, (labels,); of texts that are equally similar the votes must be equal."""
    similarities = dense_table(expert.texts) @ plain_counter_row(expert.counter, ids)
    best = np.argsort(-similarities, kind="stable")[: expert.neighbors]
    weights = similarities[best] ** expert.power
    votes = np.zeros(expert.num_labels)
    for row, weight in zip(best, weights / max(weights.sum(), 1e-12), strict=True):
        votes[expert.labels_of(row)] += weight
    return logit((votes + 0.05) / 1.1)
