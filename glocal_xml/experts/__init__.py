"""Experts that are fitted rather than trained by gradient descent, and the blend of all branches of a model."""

from .fit import ExpertTexts, fit_experts
from .fit_blend import MIN_TEXTS, blend_pairs, fit_blend, fixed_blend
from .lexical import fit_lexical
from .memory import add_to_memory, fit_memory, remove_from_memory
from .name_texts import name_texts

__all__ = [
    "MIN_TEXTS",
    "ExpertTexts",
    "add_to_memory",
    "blend_pairs",
    "fit_blend",
    "fit_experts",
    "fit_lexical",
    "fit_memory",
    "fixed_blend",
    "name_texts",
    "remove_from_memory",
]
