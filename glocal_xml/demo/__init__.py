"""A web page for a trained model: the labels of a text, the reasons for them, and whole files tagged."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from .examples import example_texts

if TYPE_CHECKING:
    from gradio import Blocks

__all__ = ["build_page", "example_texts"]


def build_page(model: str, examples: Sequence[str] = ()) -> "Blocks":
    """
    The page of a trained model; `.launch()` serves it.

    Args:
        model: Folder or Hub id of the model.
        examples: Texts to try the model with. Everyone who can open the page can read them.
    """
    if find_spec("gradio") is None:
        raise ValueError("The page needs gradio; install it with `pip install glocal-xml[demo]`.")
    from .page import TaggingPage

    return TaggingPage(model, examples)
