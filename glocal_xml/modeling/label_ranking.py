"""The best labels of each text from scores that arrive chunk by chunk."""

import torch


class RunningTopK:
    """
    Keeps the `top_k` best labels of each text while chunks of scores pass by; equal scores rank the lower id first.

    Chunks must arrive in the order of the labels.
    """

    def __init__(self, top_k: int):
        self.top_k = top_k
        self.scores: torch.Tensor | None = None  # (texts, at most top_k)
        self.ids: torch.Tensor | None = None  # (texts, at most top_k)

    def update(self, scores: torch.Tensor, first_label: int) -> None:
        """Takes the scores of a run of labels, of shape (texts, labels of the run)."""
        scores, ids = best_columns(scores, self.top_k)
        ids = ids + first_label
        if self.scores is not None:
            scores = torch.cat([self.scores, scores], dim=1)
            ids = torch.cat([self.ids, ids], dim=1)
            # Equal scores keep their order, and what came before has lower ids.
            scores, order = scores.sort(dim=1, descending=True, stable=True)
            scores, ids = scores[:, : self.top_k], ids.gather(1, order[:, : self.top_k])
        self.scores, self.ids = scores.contiguous(), ids


def best_columns(scores: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `top_k` best of each row, best first, and their columns; of equal scores the lower column comes first."""
    if top_k < scores.shape[1]:
        best, columns = scores.topk(top_k, dim=1)
        # `topk` chooses freely among scores that equal the last it takes; NaN compares false and is caught here too.
        if (scores >= best[:, -1:]).sum(dim=1).eq(top_k).all():
            columns = columns.sort(dim=1).values
            best, order = scores.gather(1, columns).sort(dim=1, descending=True, stable=True)
            return best, columns.gather(1, order)
    best, order = scores.sort(dim=1, descending=True, stable=True)
    return best[:, :top_k], order[:, :top_k]
