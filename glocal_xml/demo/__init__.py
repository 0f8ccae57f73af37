"""A web page for a trained model: the labels of a text, the reasons for them, and whole files tagged."""

from collections.abc import Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from glocal_xml.data import read_text_rows

if TYPE_CHECKING:
    from gradio import Blocks

__all__ = ["build_page", "example_texts"]

# Of long texts a visitor could not see at a glance what they are about.
_EXAMPLES_READ, _LONGEST_EXAMPLE = 500, 1000


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


def example_texts(model: str, number: int = 3) -> list[str]:
    """At most so many test texts of the run that trained a model; none where it has no predictions, as on the Hub."""
    path = Path(model, "predictions.jsonl")
    if not path.is_file():
        return []
    try:
        texts = [row["text"].strip() for row in islice(read_text_rows(path), _EXAMPLES_READ)]
    except (ValueError, OSError):
        # The page does not depend on them.
        return []
    texts = list(dict.fromkeys(text for text in texts if text and len(text) <= _LONGEST_EXAMPLE))
    # Neighbours in a file are often alike.
    return texts[:: max(1, len(texts) // number)][:number]
