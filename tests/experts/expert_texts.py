"""Texts of token ids that tell their labels, for experts to be fitted on."""

import numpy as np

TOKENS = 64
# The ids of the tiny tokenizer start with five special tokens.
FIRST = 5


def texts_that_tell_labels(number, num_labels, seed=0, tokens=TOKENS):
    """
    Rows of ids and label ids: the first token of a text is that of its label, and most have another label later on
    and tokens that say nothing; every third has a token twice.
    """
    random = np.random.default_rng(seed)
    own = tokens - FIRST
    rows, labels = [], []
    for i in range(number):
        chosen = sorted({i % num_labels, int(random.integers(num_labels))})
        said = [FIRST + label % own for label in chosen]
        noise = random.integers(FIRST + own // 2, tokens, size=random.integers(1, 5)).tolist()
        row = [said[0], *noise, *said[1:], *([noise[0]] if i % 3 == 0 else [])]
        rows.append(np.array(row, dtype=np.int32))
        labels.append(chosen)
    return rows, labels
