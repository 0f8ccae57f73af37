"""One command in several processes, as `torchrun` and `accelerate launch` start them: texts shared out by turns."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed


@dataclass(frozen=True)
class Processes:
    """Which of how many processes this is; by default it is alone."""

    rank: int = 0
    number: int = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes."""
        return self.rank == 0

    def gathered(self, rows: list[Any]) -> list[list[Any]]:
        """In the first process the rows of each; in the others none."""
        if self.number == 1:
            return [rows]
        everything: list[Any] | None = [None] * self.number if self.is_first else None
        try:
            distributed.gather_object(rows, everything)
        except RuntimeError as error:
            raise ValueError("another process of this command has ended; what it wrote last says why") from error
        return everything or []


@contextmanager
def launched_processes() -> Iterator[Processes]:
    """The processes that a launcher started, from what both launchers leave in the environment."""
    processes = Processes(int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1)))
    if processes.number == 1:
        yield processes
        return
    # Rows are sent, not tensors: the processor does it, whatever the models run on.
    distributed.init_process_group("gloo", rank=processes.rank, world_size=processes.number)
    try:
        yield processes
        # Not after a failure: the others would never come to say goodbye.
        distributed.barrier()
    finally:
        distributed.destroy_process_group()


def own_device() -> str | None:
    """The accelerator of this process, where there are several of both; `None` leaves it to Transformers."""
    found = torch.accelerator.current_accelerator(check_available=True)
    if found is None or "LOCAL_RANK" not in os.environ:
        return None
    return f"{found.type}:{int(os.environ['LOCAL_RANK']) % torch.accelerator.device_count()}"
