"""What experts are fitted on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from transformers import PreTrainedTokenizerBase

from .name_texts import name_texts
from .token_rows import whole_text_ids


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
        """
        Args:
            texts: The training texts.
            labels: Label ids of each.
            tokenizer: The tokenizer of the model.
            label_names: Names of all labels, to be texts of their own where they are words; `None` for no such texts.
            descriptions: Names in words by label, where the names of the label space are codes.
        """
        rows = whole_text_ids(texts, tokenizer)
        names = ([], []) if label_names is None else name_texts(label_names, tokenizer, rows, descriptions)
        return cls(rows, [list(ids) for ids in labels], *names)

    def with_texts(self, other: "ExpertTexts") -> "ExpertTexts":
        """These texts and others."""
        return ExpertTexts(self.rows + other.rows, self.labels + other.labels, self.name_rows, self.name_labels)
