"""Scores as honest probabilities: a temperature, and the threshold that goes with it, fitted on texts held out."""

from typing import Any

import torch

F_KINDS = ("micro", "macro", "samples")


def calibrated(probabilities: torch.Tensor, temperature: float) -> torch.Tensor:
    """Probabilities whose log-odds are divided by a temperature (Guo et al., arXiv:1706.04599); no rank changes."""
    return (probabilities.logit() / temperature).sigmoid()


def check_calibration(calibration: dict[str, Any] | None) -> None:
    """Refuses a calibration that cannot be applied."""
    if calibration is None:
        return
    missing = [name for name in ("temperature", "threshold", "f") if name not in calibration]
    if missing:
        raise ValueError(f"`calibration` lacks {', '.join(missing)}: {calibration}; `glocal-xml calibrate` fits it.")
    temperature, threshold, kind = (calibration[name] for name in ("temperature", "threshold", "f"))
    if not _is_number(temperature) or not 0 < temperature < float("inf"):
        raise ValueError(f"`calibration`: the temperature must be above 0, got {temperature!r}.")
    if not _is_number(threshold) or not 0 <= threshold <= 1:
        raise ValueError(f"`calibration`: the threshold must lie in 0 to 1, got {threshold!r}.")
    if kind not in F_KINDS:
        raise ValueError(f"`calibration`: `f` must be one of {', '.join(F_KINDS)}, got {kind!r}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
