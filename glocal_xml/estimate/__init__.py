"""Memory and time of a run before it starts."""

from .estimate import Estimate, estimate_run, in_words
from .planned_model import Workload, planned_config

__all__ = ["Estimate", "Workload", "estimate_run", "in_words", "planned_config"]
