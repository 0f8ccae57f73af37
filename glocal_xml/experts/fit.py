"""Fitting the experts of a model that need no encoder on its training texts."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import LEXICAL, MEMORY

from .lexical import fit_lexical
from .memory import fit_memory
from .texts import ExpertTexts


def fit_experts(
    model: XMTCPreTrainedModel,
    texts: ExpertTexts,
    tokenizer: PreTrainedTokenizerBase,
    experts: Sequence[str] = (LEXICAL, MEMORY),
    **lexical_options: Any,
) -> None:
    """
    Fits experts on texts and gives them to a model, in place of those it has: `"lexical"`, with the options of
    [`fit_lexical`], and `"memory"`. The dense memory, which needs a trained encoder, is fitted by [`add_to_dense`].
    """
    rows, labels = texts.rows + texts.name_rows, [*texts.labels, *texts.name_labels]
    data = (rows, labels, model.config.num_labels, len(tokenizer))
    if LEXICAL in experts:
        model.set_expert(LEXICAL, *fit_lexical(*data, num_texts=len(texts.rows), **lexical_options))
    if MEMORY in experts:
        model.set_expert(MEMORY, *fit_memory(*data, num_texts=len(texts.rows), ignored=tokenizer.all_special_ids))
