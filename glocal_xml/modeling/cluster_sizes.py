"""Sizes of adaptive label clusters: how many labels each holds, and how wide the layers before the tails are."""

import math
from collections.abc import Sequence
from itertools import accumulate


def cluster_sizes(num_labels: int, proportions: Sequence[float]) -> list[int]:
    """Number of labels of the head and of each tail cluster, by the share of the labels that each holds."""
    shares = list(proportions)
    if len(shares) < 2:
        raise ValueError(f"Label clusters are a head and at least a tail, got {shares}: take a linear classifier.")
    # Not `<= 0`, which lets NaN pass.
    if not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise ValueError(
            f"The proportions of label clusters must be above 0 and sum to 1, got {shares} with the sum "
            f"{sum(shares):g}: give the last cluster what is left over, as in 0.33, 0.33, 0.34."
        )
    # Halves go up, unlike in `round`, so that two labels in halves are one and one.
    cuts = [0, *(math.floor(share * num_labels + 0.5) for share in accumulate(shares[:-1])), num_labels]
    sizes = [stop - start for start, stop in zip(cuts[:-1], cuts[1:], strict=True)]
    if min(sizes) < 1:
        raise ValueError(
            f"With `num_labels` {num_labels} the proportions {shares} make clusters of the sizes {sizes}, but each "
            "needs at least one label: use fewer clusters, more even ones, or a linear classifier."
        )
    return sizes


def tail_widths(hidden_size: int, decay: float, num_tails: int) -> list[int]:
    """Width floor(d / q^i) of the layer before tail i, of 1 to `num_tails` (section 3.3 of the APLC-XLNet paper)."""
    if not decay >= 1:
        raise ValueError(f"The decay of label clusters must be at least 1, got {decay}: 1 keeps all tails full width.")
    widths = [math.floor(hidden_size / decay**i) for i in range(1, num_tails + 1)]
    if widths[-1] < 1:
        raise ValueError(
            f"A decay of {decay} leaves no width for some tail clusters of a hidden size of {hidden_size}, {widths}: "
            "use a smaller decay, or fewer clusters."
        )
    return widths
