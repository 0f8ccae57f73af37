"""Memory and time of a run before it starts."""

from .estimate import Estimate, estimate_run
from .planned_model import planned_config
from .workload import Workload

__all__ = ["Estimate", "Workload", "estimate_run", "planned_config"]
