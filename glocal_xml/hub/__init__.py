"""Publishing: a trained model as a repository on the Hub, and a page for it as a Space."""

from .model_card import card_of_run, render_model_card
from .publish import Published, check_space, model_files, notices, publish, space_files
from .published_files import LEFT_OUT, copy_without_memory, folder_to_publish

__all__ = [
    "LEFT_OUT",
    "Published",
    "card_of_run",
    "check_space",
    "copy_without_memory",
    "folder_to_publish",
    "model_files",
    "notices",
    "publish",
    "render_model_card",
    "space_files",
]
