"""Fitting the experts of a model on its training texts."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel

from .lexical import fit_lexical
from .memory import fit_memory
from .name_texts import name_texts
from .token_rows import whole_text_ids

logger = logging.getLogger(__name__)

LEXICAL, MEMORY = "lexical", "memory"
EXPERTS = (LEXICAL, MEMORY)


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


def fit_experts(
    model: XMTCPreTrainedModel,
    texts: ExpertTexts,
    tokenizer: PreTrainedTokenizerBase,
    experts: Sequence[str] = EXPERTS,
    *,
    workers: int = -1,
    show_progress: bool = True,
    **lexical_options: Any,
) -> None:
    """
    Fits experts on texts and gives them to a model, in place of those it has.

    Args:
        model: The model.
        texts: Training texts.
        tokenizer: The tokenizer of the model.
        experts: Which experts to fit: `"lexical"`, `"memory"`.
        workers: Processes; -1 for one per processor.
        show_progress: Whether to show a bar, on a terminal.
        lexical_options: Further options of [`fit_lexical`].
    """
    rows, labels = texts.rows + texts.name_rows, [*texts.labels, *texts.name_labels]
    data = (rows, labels, model.config.num_labels, len(tokenizer))
    if LEXICAL in experts:
        options = {"workers": workers, "show_progress": show_progress, **lexical_options}
        model.set_expert(LEXICAL, *fit_lexical(*data, num_texts=len(texts.rows), **options))
    if MEMORY in experts:
        model.set_expert(MEMORY, *fit_memory(*data, num_texts=len(texts.rows), ignored=tokenizer.all_special_ids))
