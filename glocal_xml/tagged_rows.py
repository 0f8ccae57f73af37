"""
Rows with the labels of their texts, as `glocal-xml predict` and the page write them, also by several processes that
`torchrun` or `accelerate launch` start: texts are shared out by turns.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import distributed

# Batches among which texts are sorted by length, so that little is padded; fewer where these are books.
_SORTED_BATCHES, _SORTED_CHARACTERS = 16, 2**24


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


_ALONE = Processes()


def tagged_rows(
    pipe: Callable[..., list[list[dict[str, Any]]]],
    rows: Iterable[dict[str, Any]],
    text_column: str,
    batch_size: int,
    processes: Processes = _ALONE,
    **options: Any,
) -> Iterator[dict[str, Any]]:
    """
    Yields the rows in their order, each with its `predictions`: none for a text with nothing in it.

    Rows are read as they are needed, and the pipeline is called with the options. Several processes read the same rows
    and take turns; the first yields the rows of all. Batches are those of one process, and so are scores, to the last
    digit.
    """
    windows = _windows(rows, batch_size, text_column)
    while turn := list(islice(windows, processes.number)):
        own = turn[processes.rank] if processes.rank < len(turn) else []
        for tagged in processes.gathered(_tagged(pipe, own, text_column, batch_size=batch_size, **options)):
            yield from tagged


def _windows(rows: Iterable[dict[str, Any]], batch_size: int, text_column: str) -> Iterator[list[dict[str, Any]]]:
    """Runs of rows among which texts are sorted by length."""
    window, size, characters = [], batch_size, 0
    for row in rows:
        window.append(row)
        characters += len(row[text_column])
        if len(window) == size or characters > _SORTED_CHARACTERS:
            yield window
            # The first rows come soon, later ones fast.
            window, size, characters = [], min(2 * size, _SORTED_BATCHES * batch_size), 0
    if window:
        yield window


def _tagged(
    pipe: Callable[..., list[list[dict[str, Any]]]], window: list[dict[str, Any]], text_column: str, **options: Any
) -> list[dict[str, Any]]:
    by_length = sorted(range(len(window)), key=lambda i: len(window[i][text_column]))
    texts = [window[i][text_column] for i in by_length]
    found = dict(zip(by_length, pipe(texts, **options) if texts else [], strict=True))
    return [{**row, "predictions": [_rounded(item) for item in found[i]]} for i, row in enumerate(window)]


def spread(row: dict[str, Any], top_k: int, branches: list[str]) -> dict[str, Any]:
    """A row for a spreadsheet: `label_1`, `score_1` and so on, with columns for the scores of branches."""
    cells = {name: value for name, value in row.items() if name != "predictions"}
    for i, item in enumerate([*row["predictions"], *[{}] * top_k][:top_k], start=1):
        cells[f"label_{i}"], cells[f"score_{i}"] = item.get("label"), item.get("score")
        cells |= {f"{branch}_{i}": item.get("branch_scores", {}).get(branch) for branch in branches}
    return cells


def joined(row: dict[str, Any], column: str, delimiter: str) -> dict[str, Any]:
    """A row with the names of its labels in one column, the best first, as training files have them."""
    cells = {name: value for name, value in row.items() if name != "predictions"}
    return {**cells, column: delimiter.join(item["label"] for item in row["predictions"])}


def _rounded(item: dict[str, Any]) -> dict[str, Any]:
    rounded = {**item, "score": round(item["score"], 6)}
    if "branch_scores" in item:
        rounded["branch_scores"] = {name: round(score, 6) for name, score in item["branch_scores"].items()}
    return rounded


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
