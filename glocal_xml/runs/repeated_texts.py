"""Texts that occur more than once in the parts of a run, which makes results look better than they are."""

import logging
from typing import Any

from glocal_xml.experts.memory import texts_in_memory
from glocal_xml.modeling import XMTCPreTrainedModel

from .token_columns import whole_rows

logger = logging.getLogger(__name__)

# Test texts that are looked up in the memory of a trained model.
_LOOKED_UP = 500


def warn_of_repeated_texts(parts: dict[str, Any]) -> None:
    """Warns of repeated training texts, and of validation and test texts that are training texts too."""
    if "train" not in parts:
        return
    train = parts["train"]["text"][:]
    known = set(train)
    if len(known) < len(train):
        pairs = {(text, *labels) for text, labels in zip(train, parts["train"]["labels"][:], strict=True)}
        other = len(pairs) - len(known)
        logger.warning(
            "%d of %d training texts are repeated: they count several times%s",
            *(len(train) - len(known), len(train)),
            f"; {other} of them with other labels: give each text once, with all of its labels" if other else "",
        )
    for name in ("validation", "test"):
        texts = parts[name]["text"][:] if name in parts else []
        if repeated := sum(text in known for text in texts):
            logger.warning(
                "%d of %d %s texts are training texts too: results on them are too good; remove them from one of the "
                "two",
                *(repeated, len(texts), name),
            )


def warn_of_known_texts(model: XMTCPreTrainedModel, parts: dict[str, Any]) -> None:
    """Warns of test texts that a trained model has in its memory, which knows their labels."""
    if "test" not in parts or model.memory is None:
        return
    rows = whole_rows(parts["test"].take(_LOOKED_UP))
    if known := int(texts_in_memory(model, rows).sum()):
        logger.warning(
            "%d of %s%d test texts are training texts of the model: results on them are too good; leave them out",
            *(known, "the first " if len(rows) == _LOOKED_UP else "", len(rows)),
        )
