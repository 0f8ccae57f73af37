"""Several checkpoints or prediction files as one."""

from .checkpoints import ensemble_top_k, run_ensemble
from .files import run_file_ensemble

__all__ = ["ensemble_top_k", "run_ensemble", "run_file_ensemble"]
