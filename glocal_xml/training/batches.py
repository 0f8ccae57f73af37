"""What batches hold: texts of similar length, or texts in windows, and the best labels of these."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import LengthGroupedSampler

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import XMTCOutput, XMTCPreTrainedModel
from glocal_xml.modeling.text_windows import best_of_windows

from .rankings import rankings

WINDOW_COUNTS = "window_counts"


class GroupedByLength(Sampler):
    """
    Texts of similar length one after the other, in an order that follows from the seed and the epoch. That of
    Transformers follows from random numbers that were drawn before, so that a resumed run would go on with other
    batches.
    """

    def __init__(self, sampler: LengthGroupedSampler, seed: int):
        self.sampler, self.seed, self.epoch = sampler, seed, 0
        sampler.generator = torch.Generator()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[int]:
        self.sampler.generator.manual_seed(self.seed + self.epoch)
        return iter(self.sampler)


class WindowCollator(XMTCCollator):
    """Batches of texts, or of the windows of texts with the number of those of each."""

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if not rows or "windows" not in rows[0]:
            return super().__call__(rows)
        batch = super().__call__([window for row in rows for window in row["windows"]])
        counts = torch.tensor([len(row["windows"]) for row in rows])
        if all("text_ids" in row for row in rows):
            # Experts read the whole text in each of its windows.
            batch["text_ids"] = self.padded_ids([row["text_ids"] for row in rows]).repeat_interleave(counts, dim=0)
        labels = {} if "labels" not in rows[0] else {"labels": self.padded_ids([row["labels"] for row in rows])}
        # Trainer counts texts by what comes first.
        return labels | {WINDOW_COUNTS: counts} | batch


def rank_windows(
    model: XMTCPreTrainedModel, inputs: dict[str, torch.Tensor], score: str, top_k: int
) -> dict[str, torch.Tensor]:
    """The best labels of each text of a batch of windows, final and per branch, and the final scores."""
    fields = {name: values for name, values in inputs.items() if name not in ("labels", WINDOW_COUNTS)}
    best = best_of_windows(model, fields, inputs[WINDOW_COUNTS].tolist(), score, top_k)
    branch_ids = best.branch_ids if len(model.branch_names) > 1 else None
    return rankings(model, XMTCOutput(top_k_ids=best.ids, top_k_scores=best.scores, branch_top_k_ids=branch_ids))
