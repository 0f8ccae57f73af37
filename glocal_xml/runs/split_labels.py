"""Training with a label table that is split over processes: how a model is loaded, and a state to resume from."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.distributed.checkpoint as distributed_checkpoint
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from transformers import AutoModel
from transformers.distributed import DistributedConfig

from glocal_xml.json_text import json_text, read_json_object
from glocal_xml.modeling import XMTCPreTrainedModel

_NUMBERS = "numbers.json"
_FLAT = StateDictOptions(flatten_optimizer_state_dict=True)


def check_label_shards(label_shards: int) -> None:
    """Refuses a number of parts that is not the number of processes, before these wait for each other."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    if label_shards < 1 or (label_shards > 1 and label_shards != processes):
        raise ValueError(
            f"`label_shards` is {label_shards}, but {processes} process(es) were started. Each holds one part of the "
            f"labels: start as many, by `torchrun --nproc_per_node {max(label_shards, 2)}`, or leave it at 1."
        )


def is_split(model: nn.Module) -> bool:
    """Whether every process holds a part of the labels of a model."""
    return getattr(model, "is_distributed_loading_by_transformers", False)


def load_split_model(folder: str, label_shards: int) -> XMTCPreTrainedModel:
    """A saved model of which every process reads its part of the labels; anything else is whole everywhere."""
    split = DistributedConfig(tp_size=label_shards, tp_plan="auto")
    return AutoModel.from_pretrained(folder, dtype=torch.float32, distributed_config=split)


@contextmanager
def _plain_errors() -> Iterator[None]:
    """torch gathers errors of all processes, such as full disks, in one that is no `Exception`: raises the first."""
    try:
        yield
    except CheckpointException as error:
        raise next(iter(error.failures.values()))[0] from error


def save_split_state(folder: str, model: XMTCPreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Writes what training continues from, every process its part: tensors as safetensors, numbers as JSON."""
    tensors, numbers = _split_state(model, optimizer)
    with _plain_errors():
        distributed_checkpoint.save(tensors, storage_writer=HuggingFaceStorageWriter(folder, save_distributed=True))
    # Steps are tensors of one number.
    numbers = {name: value.item() if isinstance(value, torch.Tensor) else value for name, value in numbers.items()}
    if torch.distributed.get_rank() == 0:
        Path(folder, _NUMBERS).write_text(json_text(numbers), encoding="utf-8")


def load_split_state(folder: str, model: XMTCPreTrainedModel, optimizer: torch.optim.Optimizer) -> None:
    """Continues from what [`save_split_state`] wrote; the number of processes may be another."""
    tensors, numbers = _split_state(model, optimizer)
    with _plain_errors():
        distributed_checkpoint.load(tensors, storage_reader=HuggingFaceStorageReader(folder))
    saved = read_json_object(Path(folder, _NUMBERS))
    numbers = {
        name: torch.full_like(value, saved[name]) if isinstance(value, torch.Tensor) else saved[name]
        for name, value in numbers.items()
    }
    of_model, of_optimizer = (
        {name.removeprefix(part): value for name, value in (tensors | numbers).items() if name.startswith(part)}
        for part in ("model.", "optimizer.")
    )
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer, options=_FLAT)


def _split_state(
    model: XMTCPreTrainedModel, optimizer: torch.optim.Optimizer
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors of the model and of its optimiser by name, and the single numbers among them."""
    parameters, states = get_state_dict(model, optimizer, options=_FLAT)
    state = {f"model.{name}": value for name, value in parameters.items()}
    state |= {f"optimizer.{name}": value for name, value in states.items()}
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor) and value.dim()}
    numbers = {name: value for name, value in state.items() if name not in tensors}
    return tensors, numbers
