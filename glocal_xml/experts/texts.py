"""What experts are fitted on: texts, and names of labels where these are words."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from .token_rows import document_frequencies, whole_text_ids

# Names are words where at least this share of them is made of tokens that occur in texts often enough.
_LEAST_SHARE = 0.5
_LEAST_TEXTS = 2
# Codes are made of digits and single letters, which are tokens of any text.
_LEAST_LETTERS = 3


@dataclass
class ExpertTexts:
    """
    What experts are fitted on.

    Args:
        rows: Ids of all tokens of each text.
        labels: Label ids of each text.
        name_rows: Ids of the tokens of texts that are names of labels.
        name_labels: The label of each of them.
    """

    rows: list[np.ndarray]
    labels: list[list[int]]
    name_rows: list[np.ndarray] = field(default_factory=list)
    name_labels: list[list[int]] = field(default_factory=list)

    @classmethod
    def from_texts(
        cls,
        texts: Sequence[str],
        labels: Sequence[Sequence[int]],
        tokenizer: PreTrainedTokenizerBase,
        label_names: Sequence[str] | None = None,
        descriptions: Mapping[str, Sequence[str]] | None = None,
    ) -> "ExpertTexts":
        """From texts and, where they are given, the names of all labels; `descriptions` are words for labels."""
        rows = whole_text_ids(texts, tokenizer)
        names = ([], []) if label_names is None else name_texts(label_names, tokenizer, rows, descriptions)
        return cls(rows, [list(ids) for ids in labels], *names)

    def with_texts(self, other: "ExpertTexts") -> "ExpertTexts":
        """These texts and others."""
        return ExpertTexts(self.rows + other.rows, self.labels + other.labels, self.name_rows, self.name_labels)


def name_texts(
    names: Sequence[str],
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[np.ndarray],
    descriptions: Mapping[str, Sequence[str]] | None = None,
) -> tuple[list[np.ndarray], list[list[int]]]:
    """
    Token ids of texts that are the names of labels, and the label of each: what is known of labels in words
    (`descriptions`), or the names of the label space, if they are words: if most of them have a word of three letters
    and consist of tokens that occur in the training texts (`rows`). Nothing where they are codes.
    """
    if descriptions is not None:
        pairs = [(label, text) for label, name in enumerate(names) for text in descriptions.get(name, ()) if text]
        if not pairs:
            raise ValueError(
                f"`label_texts_file` names none of the labels: it has {next(iter(descriptions), None)!r} and others, "
                f"the texts have {names[0]!r} and others; write label, tab and name, in this order."
            )
        ids = whole_text_ids([text for _, text in pairs], tokenizer)
        return ids, [[label] for label, _ in pairs]
    readable = [" ".join(re.sub("::|[-_]", " ", name).split()) for name in names]
    ids = whole_text_ids(readable, tokenizer)
    frequencies = document_frequencies(rows, len(tokenizer))
    words = [
        any(len(word) >= _LEAST_LETTERS and word.isalpha() for word in name.split())
        and len(row) > 0
        and frequencies[row].min() >= _LEAST_TEXTS
        for name, row in zip(readable, ids, strict=True)
    ]
    if sum(words) < _LEAST_SHARE * len(names):
        return [], []
    chosen = [label for label, is_word in enumerate(words) if is_word]
    return [ids[label] for label in chosen], [[label] for label in chosen]
