"""Explanations: what speaks for a label or against it, words first, as text, JSON, a page and a figure."""

from .explanation import Explanation, LabelExplanation, SimilarText, Word
from .html_page import html_page
from .label_reading import explain

__all__ = ["Explanation", "LabelExplanation", "SimilarText", "Word", "explain", "html_page"]
