"""Texts that occur more than once in the parts of a run, which makes results look better than they are."""

import logging
from typing import Any

logger = logging.getLogger(__name__)


def warn_of_repeated_texts(parts: dict[str, Any]) -> None:
    """Warns of repeated training texts, and of validation and test texts that are training texts too."""
    if "train" not in parts:
        return
    train = parts["train"]["text"][:]
    known = set(train)
    if len(known) < len(train):
        logger.warning(
            "%d of %d training texts are repeated: they count several times", len(train) - len(known), len(train)
        )
    for name in ("validation", "test"):
        if name in parts:
            texts = parts[name]["text"][:]
            repeated = sum(text in known for text in texts)
            if repeated:
                logger.warning(
                    "%d of %d %s texts are training texts too: results on them are too good; remove them from one of "
                    "the two",
                    *(repeated, len(texts), name),
                )
