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
        ids = torch.arange(first_label, first_label + scores.shape[1], device=scores.device).expand_as(scores)
        if self.scores is not None:
            scores = torch.cat([self.scores, scores], dim=1)
            ids = torch.cat([self.ids, ids], dim=1)
        # A stable sort, unlike `topk`, promises the order of equal scores; earlier columns have lower ids.
        self.scores, order = scores.sort(dim=1, descending=True, stable=True)
        self.scores = self.scores[:, : self.top_k].contiguous()
        self.ids = ids.gather(1, order[:, : self.top_k])
