"""Several processes: what launchers do on a CPU, and what cannot be trained by more than one."""

import logging
import os
from typing import Any

from glocal_xml.modeling import XMTCConfig

logger = logging.getLogger(__name__)


def check_sharding(asked: dict[str, Any]) -> None:
    """
    Refuses libraries as arguments of Trainer, given by their names. Of a configuration of `accelerate launch`, which
    may be shared with other machines, says that every process holds the whole model.
    """
    for name, argument in asked.items():
        if argument:
            raise ValueError(f"`{name.lower()}` is for accelerators, and this run is on a CPU: leave it out.")
        is_configured = os.environ.get(f"ACCELERATE_USE_{name.upper()}") == "true"
        if is_configured and int(os.environ.get("RANK", 0)) == 0:
            logger.warning(
                "The configuration asks for %s, which Accelerate has for accelerators alone: on CPUs every process "
                "holds the whole model.",
                name,
            )


def check_together(number: int) -> None:
    """Refuses processes that a launcher started but of which each would train alone, and write to the same folder."""
    started = int(os.environ.get("WORLD_SIZE", 1))
    if started != number:
        raise ValueError(
            f"{started} processes were started, but {number} would train together, since no accelerators were found: "
            "pass `--use_cpu true`, or set ACCELERATE_USE_CPU=true."
        )


def check_processes(config: XMTCConfig, processes: int) -> None:
    """Refuses levels of a label tree that are trained one after the other by several processes."""
    if processes > 1 and getattr(config, "level_epochs", None):
        raise ValueError(
            f"`level_epochs` with {processes} processes: data parallelism wants a gradient of every sparse table at "
            "every step, and levels that are not yet trained have none. Train in one process, or all levels jointly "
            "(`level_epochs` 0)."
        )
