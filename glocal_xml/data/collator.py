"""Batches of token ids with the label ids of each text padded by -100."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from reprlib import repr as shortened
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.utils.rnn import pad_sequence

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_NO_LABEL = -100


@dataclass
class XMTCCollator:
    """Pads tokenised rows to a batch of tensors.

    Args:
        tokenizer: Pads the token fields, on its own padding side.
        pad_to_multiple_of: Rounds the length of the batch up, which suits some hardware.
    """

    tokenizer: "PreTrainedTokenizerBase"
    pad_to_multiple_of: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        """
        Returns the token fields and, where the rows have them, `labels` of shape (texts, most positives) and
        `text_ids`, the ids of all tokens of each text.
        """
        if not rows:
            raise ValueError("the batch has no rows; give at least one")
        if any("input_ids" not in row for row in rows):
            raise ValueError(f"a row has no input_ids, only {sorted(rows[0])}; tokenize the dataset first")
        fields = [name for name in self.tokenizer.model_input_names if all(name in row for row in rows)]
        tokens = {name: [row[name] for row in rows] for name in fields}
        batch = dict(self.tokenizer.pad(tokens, pad_to_multiple_of=self.pad_to_multiple_of, return_tensors="pt"))
        if all("text_ids" in row for row in rows):
            batch["text_ids"] = self.padded_ids([row["text_ids"] for row in rows])
        labelled = sum("labels" in row for row in rows)
        if labelled not in (0, len(rows)):
            raise ValueError(f"{labelled} of {len(rows)} rows have labels; give all of them labels, or none")
        if labelled:
            batch["labels"] = self.padded_ids([row["labels"] for row in rows])
        return batch

    @staticmethod
    def padded_ids(rows: Sequence[Sequence[int]]) -> torch.Tensor:
        """Ids of each text as one tensor, padded by -100."""
        # With a first row that sets the type and gives texts without ids a column, too.
        lists = [torch.tensor([_NO_LABEL]), *map(_whole_numbers, rows)]
        return pad_sequence(lists, batch_first=True, padding_value=_NO_LABEL)[1:]


def _whole_numbers(ids: Any) -> torch.Tensor:
    """The ids of a text; not numbers with a fraction, which a multi-hot row is made of."""
    try:
        found = torch.as_tensor(sorted(ids) if isinstance(ids, set | frozenset) else ids)
    except (TypeError, ValueError, RuntimeError):
        found = torch.empty(0, 0)
    if found.dim() != 1 or (len(found) and (found.is_floating_point() or found.dtype == torch.bool)):
        raise ValueError(
            f"a row has the ids {shortened(ids)}; give a list of whole numbers: `LabelSpace.encode` makes them of "
            "names, and of a multi-hot row they are the places of its ones"
        )
    return found
