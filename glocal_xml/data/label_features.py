"""Features of labels from their training texts, for `build_label_tree`: sparse TF-IDF sums, or mean embeddings."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import numpy as np
from scipy.sparse import csr_matrix, vstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from tqdm.auto import tqdm

from .label_bisection import largest

# With fewer texts than this, a word of a single text may be all that a label has.
_TEXTS_FOR_RARE_WORDS = 1000
# Products of labels and texts are made in chunks of about this many entries, before equal words are added up.
_CHUNK_ENTRIES = 2**24


def label_features_from_texts(
    texts: Iterable[str],
    label_ids: Sequence[Sequence[int]],
    num_labels: int,
    *,
    max_features: int = 500_000,
    features_per_label: int | None = 500,
    show_progress: bool = True,
) -> csr_matrix:
    """Returns the length-one sum of the TF-IDF rows of each label's texts, float32, sparse throughout.

    TF-IDF is over single words with sublinear frequencies; words of one text are left out from 1,000 texts on.

    Args:
        texts: The training texts, read once.
        label_ids, num_labels: The label ids of each text, and the number of all labels; one without texts gets a row
            of zeros.
        max_features: Most words, the most frequent ones.
        features_per_label: Words kept of a label, see `label_features_from_matrix`.
    """
    min_df = 2 if len(label_ids) >= _TEXTS_FOR_RARE_WORDS else 1
    vectorizer = TfidfVectorizer(min_df=min_df, max_features=max_features, sublinear_tf=True, dtype=np.float32)
    bar = tqdm(texts, "words", len(label_ids), unit=" texts", disable=None if show_progress else True)
    try:
        matrix = vectorizer.fit_transform(bar)
    except ValueError as error:
        raise ValueError(f"no TF-IDF could be made of the texts ({error}); give texts whose words recur") from error
    options = {"features_per_label": features_per_label, "show_progress": show_progress}
    return label_features_from_matrix(matrix, label_ids, num_labels, **options)


def label_features_from_matrix(
    matrix: csr_matrix,
    label_ids: Sequence[Sequence[int]],
    num_labels: int,
    *,
    features_per_label: int | None = 500,
    show_progress: bool = True,
) -> csr_matrix:
    """Returns the length-one sum of the rows of each label's texts, each row taken at length one; float32.

    Args:
        matrix: Sparse features of the texts, one row each, such as `read_sparse` gives.
        label_ids, num_labels: The label ids of each text, and the number of all labels.
        features_per_label: How many of the largest features of a label are kept, which bounds the result by 8 bytes
            times this times labels; None keeps all. Frequent labels lose by it: on debtags rows of 500 features have a
            mean cosine of 0.988 with the whole rows (0.932 at least), and clusters made of either are equally tight.
    """
    if features_per_label is not None and features_per_label < 1:
        raise ValueError(f"features_per_label is {features_per_label}; give at least 1, or None to keep all")
    texts_of_labels = _texts_of_labels(label_ids, num_labels, matrix.shape[0])
    matrix = normalize(csr_matrix(matrix, dtype=np.float32))
    parts = []
    disable = None if show_progress else True
    with tqdm(total=num_labels, desc="label features", unit=" labels", disable=disable) as progress:
        for chunk in _label_chunks(texts_of_labels, matrix):
            rows = texts_of_labels[chunk] @ matrix  # (labels of the chunk, features)
            # In order, as the clustering wants them, and so that of equal features the first are kept.
            rows.sort_indices()
            if features_per_label is not None:
                rows = _strongest(rows, features_per_label)
            parts.append(normalize(rows, copy=False))
            progress.update(rows.shape[0])
    return vstack(parts, format="csr")


def label_features_from_embeddings(
    embeddings: np.ndarray, label_ids: Sequence[Sequence[int]], num_labels: int
) -> np.ndarray:
    """
    Returns the mean embedding of each label's texts, float32, from `embeddings` of shape (texts, size); zeros for a
    label without texts.
    """
    texts_of_labels = _texts_of_labels(label_ids, num_labels, len(embeddings))
    sums = texts_of_labels @ np.asarray(embeddings, dtype=np.float32)  # (labels, size)
    return sums / np.maximum(np.diff(texts_of_labels.indptr), 1, dtype=np.float32)[:, None]


def _texts_of_labels(label_ids: Sequence[Sequence[int]], num_labels: int, num_texts: int) -> csr_matrix:
    """Returns ones where a text has a label, (labels, texts)."""
    if num_labels < 1:
        raise ValueError(f"num_labels is {num_labels}, it must be at least 1; give the number of all labels")
    if len(label_ids) != num_texts:
        raise ValueError(f"there are {num_texts} texts but {len(label_ids)} lists of label ids; give one per text")
    lengths = np.fromiter(map(len, label_ids), dtype=np.int64, count=num_texts)
    labels = np.fromiter(chain.from_iterable(label_ids), dtype=np.int64, count=lengths.sum())
    outside = labels[(labels < 0) | (labels >= num_labels)]
    if len(outside):
        raise ValueError(
            f"label id {outside[0]} is not between 0 and {num_labels - 1}; "
            "leave padding and labels of evaluation data out, or raise num_labels"
        )
    texts = np.repeat(np.arange(num_texts), lengths)
    found = csr_matrix((np.ones(len(labels), dtype=np.float32), (labels, texts)), shape=(num_labels, num_texts))
    # A label that a text names twice counts once.
    found.data[:] = 1
    return found


def _label_chunks(texts_of_labels: csr_matrix, matrix: csr_matrix) -> Iterator[slice]:
    """Yields consecutive labels whose texts have about `_CHUNK_ENTRIES` entries together."""
    entries = np.concatenate([[0], np.cumsum(np.diff(matrix.indptr)[texts_of_labels.indices], dtype=np.int64)])
    ends = entries[texts_of_labels.indptr[1:]]  # (labels,)
    cuts = np.searchsorted(ends, np.arange(_CHUNK_ENTRIES, ends[-1], _CHUNK_ENTRIES), side="right")
    limits = np.unique([0, *cuts, len(ends)])
    yield from map(slice, limits[:-1], limits[1:])


def _strongest(rows: csr_matrix, count: int) -> csr_matrix:
    """Keeps the `count` largest entries of each row."""
    kept = np.ones(rows.nnz, dtype=bool)
    for row in np.flatnonzero(np.diff(rows.indptr) > count):
        entries = slice(rows.indptr[row], rows.indptr[row + 1])
        kept[entries] = largest(rows.data[entries], count)
    starts = np.concatenate([[0], np.cumsum(kept)])[rows.indptr]
    return csr_matrix((rows.data[kept], rows.indices[kept], starts), shape=rows.shape)
