"""Texts to hold out, half of them without near-duplicates among those that stay."""

from collections.abc import Iterator, Sequence

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

# Cosine from which two texts are near-duplicates. More of them than `_MANY` are a kind of text to which new texts
# belong as well: these are held out one by one.
_SIMILAR, _MANY = 0.6, 20
# The start of a text tells, and words of a tenth of the texts do not.
_CHARACTERS, _COMMON = 1500, 0.1
_BATCH = 512


def texts_to_hold_out(texts: Sequence[str], size: int, seed: int) -> np.ndarray:
    """
    The numbers of random texts to hold out, ascending. Half of them are held out with all of their near-duplicates,
    such as descriptions of variants of a product: new texts may have near-duplicates in training, or none.

    Args:
        texts: All texts.
        size: How many to hold out; fewer than there are.
        seed: Decides which.
    """
    random = np.random.default_rng(seed)
    order, held_out = random.permutation(len(texts)), np.zeros(len(texts), dtype=bool)
    for group in _groups(texts, order):
        # A group is met as often as it has texts.
        if held_out.sum() + len(group) <= size / 2 and not held_out[group].any() and random.random() * len(group) < 1:
            held_out[group] = True
        if held_out.sum() + 1 > size / 2:
            break
    singles = order[~held_out[order]]
    held_out[singles[: size - held_out.sum()]] = True
    return np.flatnonzero(held_out)


def _groups(texts: Sequence[str], order: np.ndarray) -> Iterator[np.ndarray]:
    """Each text with its near-duplicates, in the given order."""
    vectorizer = TfidfVectorizer(sublinear_tf=True, min_df=2, max_df=_COMMON, dtype=np.float32)
    try:
        vectors = vectorizer.fit_transform(text[:_CHARACTERS] for text in texts)
    except ValueError:
        # No word is in two texts, or all are in most.
        yield from order[:, None]
        return
    others = vectors.T.tocsr()
    for start in range(0, len(order), _BATCH):
        batch = order[start : start + _BATCH]
        similar = vectors[batch] @ others >= _SIMILAR
        for row, text in enumerate(batch):
            group = similar.indices[similar.indptr[row] : similar.indptr[row + 1]]
            yield group if 2 <= len(group) <= _MANY else np.array([text])
