"""Texts to try a model with, from the test texts of its run."""

from itertools import islice
from pathlib import Path

from glocal_xml.data import read_text_rows

_FILE = "predictions.jsonl"
# Of long texts a visitor could not see at a glance what they are about.
_ROWS_READ, _LONGEST = 500, 1000


def example_texts(model: str, number: int = 3) -> list[str]:
    """
    Test texts of the run that trained a model; none where its folder has no predictions, as on the Hub.

    Args:
        model: Folder or Hub id of the model.
        number: How many texts to return at most.
    """
    path = Path(model, _FILE)
    if not path.is_file():
        return []
    try:
        texts = [row["text"].strip() for row in islice(read_text_rows(path), _ROWS_READ)]
    except (ValueError, OSError):
        # The page does not depend on them.
        return []
    texts = list(dict.fromkeys(text for text in texts if text and len(text) <= _LONGEST))
    # Neighbours in a file are often alike.
    return texts[:: max(1, len(texts) // number)][:number]
