"""Texts that a trained model learns without training: by its memories, and new labels in the lexical expert too."""

import logging
from collections.abc import Sequence

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.modeling import XMTCPreTrainedModel

from .dense import add_to_dense
from .fit_blend import log_frequencies
from .lexical import with_first_texts
from .memory import add_to_memory, forget_texts, memories_of
from .texts import ExpertTexts
from .token_rows import whole_text_ids

logger = logging.getLogger(__name__)


def remember(
    model: XMTCPreTrainedModel,
    label_space: LabelSpace,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    labels: Sequence[Sequence[str]],
) -> LabelSpace:
    """
    Adds texts with the names of their labels to the memories of a model, numbered on from the last. Those that the
    memory of words holds already are replaced, so that corrected labels take the place of wrong ones. Labels that had
    no text before get the mean of these texts in the lexical expert, whose word counts most in many a blend, and are
    as frequent as these texts make them; others stay as they were trained.

    Returns:
        The label space with these texts counted.
    """
    if isinstance(texts, str) or len(texts) != len(labels) or any(isinstance(names, str) for names in labels):
        raise ValueError("`texts` must be a list of texts, and `labels` a list of names for each of them.")
    ids = [label_space.encode(names) for names in labels]
    rows = whole_text_ids(texts, tokenizer)
    first = 1 + max([-1, *(n for memory in memories_of(model).values() for n in memory.text_numbers.tolist())])
    numbers = range(first, first + len(rows))
    if model.memory is not None:
        if replaced := forget_texts(model, rows):
            logger.info("%d texts of the memory are replaced: they are among those that are added", replaced)
        add_to_memory(model, rows, ids, numbers)
    if model.dense is not None:
        add_to_dense(model, ExpertTexts(rows, ids), tokenizer, first=first)
    given = np.array([label for row in ids for label in row], dtype=np.int64)
    added = np.bincount(given, minlength=model.config.num_labels)
    counts = np.asarray(label_space.counts) + added
    if model.lexical is not None:
        dtype = model.lexical.counter.weights.dtype
        expert, sizes = with_first_texts(model.lexical, model.config.lexical, rows, ids)
        model.set_expert("lexical", expert.to(dtype), sizes)
    result = LabelSpace(label_space.names, counts.tolist(), label_space.num_texts + len(texts))
    if model.config.blend is not None:
        is_new = torch.from_numpy((np.asarray(label_space.counts) == 0) & (added > 0)).to(model.device)
        frequencies = torch.as_tensor(log_frequencies(result)).to(model.log_frequencies)
        model.set_blend(model.config.blend, torch.where(is_new, frequencies, model.log_frequencies))
    return result


def learn_texts(model: XMTCPreTrainedModel, rows: Sequence[np.ndarray], labels: Sequence[Sequence[int]]) -> int:
    """
    Adds texts, given as the ids of all of their tokens, to the memory of words, with the labels that they have now;
    the lexical expert learns labels that had no text before. Returns how many of the texts the memory held already.
    """
    replaced = forget_texts(model, rows)
    add_to_memory(model, rows, labels)
    if model.lexical is not None:
        model.set_expert("lexical", *with_first_texts(model.lexical, model.config.lexical, rows, labels))
    return replaced
