"""Labels of a trained model added, removed and renamed, without losing what it knows of the others."""

from .edit import edit_labels

__all__ = ["edit_labels"]
