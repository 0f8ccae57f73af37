"""A web page for a trained model: labels of a text, the words behind them, and whole files tagged."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradio import Blocks

__all__ = ["build_page"]


def build_page(model: str) -> "Blocks":
    """
    The page of a trained model; `.launch()` serves it.

    Args:
        model: Folder or Hub id of the model.
    """
    if find_spec("gradio") is None:
        raise ValueError("The page needs gradio; get it with `pip install glocal-xml[demo]`.")
    from .page import TaggingPage

    return TaggingPage(model)
