"""Studies of the papers on any data: layer sweeps, divergences, ablation and band tables, figures."""

from .run import main

__all__ = ["main"]
