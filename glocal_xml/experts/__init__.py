"""Experts that are fitted rather than trained by gradient descent, and the blend of all branches of a model."""

from .dense import Embedded, add_to_dense, embed, text_embeddings
from .fit import fit_experts
from .fit_blend import MIN_TEXTS, blend_pairs, fit_blend, fixed_blend, log_frequencies
from .lexical import fit_lexical, lexical_with_labels
from .memory import add_to_memory, fit_memory, memory_with_labels, remove_from_memory, texts_in_memory
from .remember import learn_texts, remember
from .texts import ExpertTexts, name_texts

__all__ = [
    "MIN_TEXTS",
    "Embedded",
    "ExpertTexts",
    "add_to_dense",
    "add_to_memory",
    "blend_pairs",
    "embed",
    "fit_blend",
    "fit_experts",
    "fit_lexical",
    "fit_memory",
    "fixed_blend",
    "learn_texts",
    "lexical_with_labels",
    "log_frequencies",
    "memory_with_labels",
    "name_texts",
    "remember",
    "remove_from_memory",
    "text_embeddings",
    "texts_in_memory",
]
