"""The best labels of texts that are read in windows, from what the heads read of each window."""

from typing import TYPE_CHECKING

import torch

from .chosen_labels import chosen_logits
from .label_ranking import best_columns
from .modeling_output import XMTCOutput
from .probabilities import mean_probability_logits

if TYPE_CHECKING:
    from .modeling_base import Features, XMTCPreTrainedModel

# How the scores of windows make that of their text.
WINDOW_SCORES = ("max", "mean")
# Windows that go through the encoder together: more would only take memory.
_WINDOWS_AT_ONCE = 32


def window_features(model: "XMTCPreTrainedModel", fields: dict[str, torch.Tensor]) -> "Features":
    """What the heads read of windows, from their token fields, (windows, tokens)."""
    if len(fields["input_ids"]) <= _WINDOWS_AT_ONCE:
        return model.text_features(**fields)
    parts = zip(*(values.split(_WINDOWS_AT_ONCE) for values in fields.values()), strict=True)
    features = [model.text_features(**dict(zip(fields, part, strict=True))) for part in parts]
    return {
        name: tuple(torch.cat(values) for values in zip(*(part[name] for part in features), strict=True))
        for name in features[0]
    }


def best_of_windows(
    model: "XMTCPreTrainedModel", features: "Features", best: XMTCOutput, counts: list[int], score: str
) -> tuple[XMTCOutput, torch.Tensor]:
    """
    The best labels of texts, among those that are the best of a window or of one of its branches: all of them are
    scored on each window.

    Args:
        model: The model.
        features: What its heads read of the windows.
        best: The best labels of each window (`scan_labels`), as many as are wanted of a text.
        counts: How many windows each text has, one after the other.
        score: Whether the `"max"` or the `"mean"` over windows is the score of a text.

    Returns:
        Best labels and scores of each text, those of branches too, and with what probability the branches take part in
        the scores, (texts, top_k, branches).
    """
    names, top_k = list(model.branch_heads()), best.top_k_ids.shape[1]
    found = torch.cat([best.top_k_ids, *(best.branch_top_k_ids or {}).values()], dim=1)
    texts, first = [], 0
    for ids in found.split(counts):
        rows = slice(first, first + len(ids))
        first = rows.stop
        label_ids = ids.unique()  # in order
        of_text = {name: tuple(value[rows] for value in values) for name, values in features.items()}
        logits = chosen_logits(model, of_text, label_ids)
        final = mean_probability_logits(list(logits.values())).sigmoid()  # (windows, labels)
        branches = torch.stack(list(logits.values()), dim=-1).sigmoid()  # (windows, labels, branches)
        if score == "mean":
            final, shares = final.mean(dim=0), branches.mean(dim=0)
            alone = shares
        else:
            # The branches of the same window, whose mean the score is.
            final, window = final.max(dim=0)
            shares = branches[window, torch.arange(len(window), device=window.device)]
            alone = branches.amax(dim=0)
        scores, columns = best_columns(final.unsqueeze(0), top_k)
        own = [label_ids[best_columns(alone[:, i].unsqueeze(0), top_k)[1][0]] for i in range(len(names))]
        texts.append((label_ids[columns[0]], scores[0], shares[columns[0]], torch.stack(own)))
    ids, scores, shares, own = (torch.stack(values) for values in zip(*texts, strict=True))
    output = XMTCOutput(
        top_k_ids=ids,
        top_k_scores=scores,
        branch_top_k_ids={name: own[:, i] for i, name in enumerate(names)} if len(names) > 1 else None,
    )
    return output, shares
