"""What is checked of a checkpoint: its sizes before anything is allocated, its numbers and tables after loading."""

import copy
import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import isfinite, isnan, prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from transformers import PreTrainedModel
from transformers.utils import CONFIG_NAME, SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, cached_file

from glocal_xml.modeling.adaptive_clusters import AdaptiveLabelClusters
from glocal_xml.modeling.configuration_base import LABELS_FILE, hub_options, read_file
from glocal_xml.modeling.experts import DenseMemory, LexicalExpert, MemoryExpert, TextMemory
from glocal_xml.modeling.label_tree import CandidateTree
from glocal_xml.modeling.token_counts import SparseTable, TextCounter

# Beyond those that a file holds, since a model may make some itself.
_FURTHER_TENSORS, _FURTHER_NUMBERS = 1000, 2**20
# Weights are replaced before the configuration when a blend is fitted.
_MAY_BE_FURTHER = {"log_frequencies"}
_ATTENTION = (None, "eager", "sdpa", "flash_attention_2", "flash_attention_3", "flex_attention")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

Shapes = dict[str, list[int]]


def check_sizes(
    model_class: type[PreTrainedModel], name_or_path: str | os.PathLike | None, options: Mapping[str, Any]
) -> None:
    """
    Compares the sizes that a configuration asks for with those of the weights, of which only the headers are read;
    options are those of `from_pretrained`.
    """
    if name_or_path is None:
        return
    _check_names(name_or_path, options)
    _check_ways(name_or_path, options)
    config = options.get("config")
    if not isinstance(config, model_class.config_class):
        config = model_class.config_class.from_pretrained(name_or_path, **options)
    for name, number in _fractions(config.to_dict()):
        # Limits of encoders may be infinite.
        if isnan(number) or not (isfinite(number) or name.startswith("encoder.")):
            raise ValueError(f"`{name}` of config.json is {number}: restore the file")
    shapes = _saved_shapes(name_or_path, hub_options(options))
    if shapes is None or options.get("ignore_mismatched_sizes"):
        return
    with _few_tensors(10 * len(shapes) + _FURTHER_TENSORS), torch.random.fork_rng([]), torch.device("meta"):
        planned = model_class(copy.deepcopy(config)).state_dict()
    for name, tensor in planned.items():
        if name in shapes and shapes[name] != list(tensor.shape):
            raise ValueError(
                f"config.json and the weights do not belong together: {name} has the shape {shapes[name]} in "
                f"{SAFE_WEIGHTS_NAME}, and config.json makes it {list(tensor.shape)}; where another `num_labels` is "
                "meant, `ignore_mismatched_sizes=True` makes new heads"
            )
    wanted, saved = sum(tensor.numel() for tensor in planned.values()), sum(map(prod, shapes.values()))
    if wanted > 2 * saved + _FURTHER_NUMBERS:
        raise ValueError(
            f"config.json and the weights do not belong together: it describes {wanted:,} numbers, the files hold "
            f"{saved:,}"
        )


def _check_names(name_or_path: str | os.PathLike, options: Mapping[str, Any]) -> None:
    """Refuses a file of label names that was cut off, is no text or has a name twice."""
    try:
        text = read_file(name_or_path, LABELS_FILE, dict(options))
    except UnicodeDecodeError as error:
        raise ValueError(f"{LABELS_FILE} is no UTF-8 text ({error}): copy the whole file again") from error
    if text and not text.endswith("\n"):
        raise ValueError(f"{LABELS_FILE} ends within a name, without a line end: copy the whole file again")
    names = [] if text is None else text.split("\n")[:-1]
    if len(set(names)) != len(names):
        raise ValueError(f"A label name occurs twice in {LABELS_FILE}: give every label a name of its own")


def _check_ways(name_or_path: str | os.PathLike, options: Mapping[str, Any]) -> None:
    """Refuses a config.json that asks for code of others, or for packed weights where they are not."""
    try:
        fields = json.loads(read_file(name_or_path, CONFIG_NAME, dict(options)) or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{CONFIG_NAME} is damaged ({error})") from error
    for part in (fields, fields.get("encoder") if isinstance(fields, dict) else None):
        for name, value in part.items() if isinstance(part, dict) else ():
            # A name with a slash is a kernel on the Hub, which Transformers would fetch and run.
            if name.lstrip("_").startswith("attn_implementation") and value not in _ATTENTION:
                raise ValueError(f"`{name}` of {CONFIG_NAME} is {value!r}: remove it")
            if name == "quantization_config" and value is not None:
                shapes = _saved_shapes(name_or_path, hub_options(options)) or {}
                # bitsandbytes keeps its scales beside each weight that it has packed.
                if not any(tensor.endswith(".SCB") for tensor in shapes):
                    raise ValueError(f"`{name}` of {CONFIG_NAME} is {value!r}, but the weights are plain: remove it")


def _fractions(value: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number with a fraction in the fields of a configuration, with the way to it."""
    if isinstance(value, float):
        yield name, value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _fractions(item, f"{name}.{key}" if name else str(key))


def _saved_shapes(name_or_path: str | os.PathLike, place: dict[str, Any]) -> Shapes | None:
    """The shape of each tensor in the files of a model; `None` where it has no such files."""
    if (found := _find_file(name_or_path, SAFE_WEIGHTS_NAME, place)) is not None:
        return _header(found)
    if (index := _find_file(name_or_path, SAFE_WEIGHTS_INDEX_NAME, place)) is None:
        return None
    try:
        names = sorted(set(json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME} is damaged ({error})") from error
    shapes: Shapes = {}
    for name in names:
        if not isinstance(name, str) or os.path.basename(name) != name:
            raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME} names {name!r}, which is no file beside it")
        if (path := _find_file(name_or_path, name, place)) is None:
            raise ValueError(f"{name} is missing")
        shapes |= _header(path)
    return shapes


def _find_file(name_or_path: str | os.PathLike, name: str, place: dict[str, Any]) -> str | None:
    quiet = {"_raise_exceptions_for_missing_entries": False, "_raise_exceptions_for_connection_errors": False}
    return cached_file(name_or_path, name, **quiet, **place)


def _header(path: str) -> Shapes:
    try:
        with safe_open(path, "pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.offset_keys()}
    except SafetensorError as error:
        raise ValueError(f"{os.path.basename(path)} is cut off, damaged or no file of weights ({error})") from error


@contextmanager
def _few_tensors(limit: int) -> Iterator[None]:
    """Stops a model from making more parts than the limit: a million layers would take minutes even without memory."""
    left, thread = limit, threading.get_ident()

    def count(*_: Any) -> None:
        nonlocal left
        left -= threading.get_ident() == thread
        if left < 0:
            raise ValueError(f"config.json describes more than {limit} tensors and layers, far more than the weights")

    with (
        hooks.register_module_parameter_registration_hook(count),
        hooks.register_module_buffer_registration_hook(count),
        hooks.register_module_module_registration_hook(count),
    ):
        yield


def check_loaded_model(
    names: list[str] | None, model: PreTrainedModel, report: Mapping[str, Any], options: Mapping[str, Any]
) -> list[str] | None:
    """
    Refuses what was loaded where tensors or names were missing, numbers are not finite or tables point nowhere;
    returns the names of labels that fit the model.

    Report and options are those of `from_pretrained`; with `ignore_mismatched_sizes` a part of the model may be new.
    """
    check_finite(model)
    if options.get("ignore_mismatched_sizes"):
        if model.is_blended and any(not name.startswith("encoder.") for name, *_ in report["mismatched_keys"]):
            raise ValueError(
                "experts and blend of this model were fitted for other labels: pass `lexical=None, memory=None, "
                "dense=None, blend=None` too, to train the rest of it, or fit a new model"
            )
        # Names of other labels are of no use.
        return names if names is not None and len(names) == model.config.num_labels else None
    if names is None and model.config.has_label_names:
        raise ValueError(f"{LABELS_FILE} with the names of the labels is missing: copy the whole folder again")
    missing = sorted(report["missing_keys"])
    if missing and set(missing) >= {name for name in model.state_dict() if not name.startswith("encoder.")}:
        raise ValueError("the weights are those of an encoder alone: start a model around it with `from_encoder`")
    if missing:
        raise ValueError(
            f"the weights lack {len(missing)} tensors of the model, such as {missing[0]}, which would be random: "
            "copy the whole folder again"
        )
    further = sorted(set(report["unexpected_keys"]) - _MAY_BE_FURTHER)
    if further:
        raise ValueError(f"config.json has no place for {len(further)} tensors, such as {further[0]}: restore it")
    for name, module in model.named_modules():
        check = _TABLE_CHECKS.get(type(module))
        if check is not None and not any(buffer.is_meta for buffer in module.buffers()) and not check(module):
            raise ValueError(f"the tables of {name} in the weights are damaged: copy the whole folder again")
    return names


@torch.no_grad()
def check_finite(model: nn.Module) -> None:
    """Refuses weights that are not finite, with which every score would be meaningless."""
    for name, tensor in model.state_dict().items():
        tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        if tensor.dtype not in _FLOATS or not tensor.numel() or tensor.is_meta:
            continue
        if not all(bool(bound.isfinite()) for bound in torch.aminmax(tensor)):
            raise ValueError(f"the weights {name} hold numbers that are not finite")


def _rises(starts: Tensor, end: int, least: int = 0) -> bool:
    return bool(starts[0] == 0 and starts[-1] == end and (starts.diff() >= least).all())


def _lies_in(numbers: Tensor, limit: int) -> bool:
    return not len(numbers) or bool(numbers.min() >= 0 and numbers.max() < limit)


def _is_order(numbers: Tensor) -> bool:
    return torch.equal(numbers.sort().values, torch.arange(len(numbers), device=numbers.device))


def _check_tree(tree: CandidateTree) -> bool:
    starts = [tree.child_starts(level) for level in range(len(tree.level_sizes))]
    if not any(bool(run.any()) for run in starts):
        # Not set yet, which is said when it is used.
        return True
    below = [*tree.level_sizes[1:], tree.num_labels]
    if not all(_rises(run, number, 1) for run, number in zip(starts, below, strict=True)):
        return False
    clusters = torch.arange(tree.level_sizes[-1], device=starts[-1].device).repeat_interleave(starts[-1].diff())
    return _is_order(tree.label_order) and torch.equal(tree.label_clusters[tree.label_order], clusters)


def _check_clusters(head: AdaptiveLabelClusters) -> bool:
    if not bool(head.cluster_sizes.any()):
        return True
    if not (_is_order(head.label_order) and _lies_in(head.label_places, len(head.label_places))):
        return False
    places = torch.arange(len(head.label_order), device=head.label_order.device)
    return torch.equal(head.label_places[head.label_order], places)


def _check_lexical(expert: LexicalExpert) -> bool:
    sizes = [len(getattr(expert, f"biases_{level}")) for level in range(len(expert.tables))]
    return all(_lies_in(getattr(expert, f"parents_{level}"), sizes[level - 1]) for level in range(1, len(sizes)))


def _check_memory(memory: TextMemory) -> bool:
    return _rises(memory.label_starts, len(memory.label_ids)) and _lies_in(memory.label_ids, memory.num_labels)


_TABLE_CHECKS = {
    SparseTable: lambda table: _rises(table.starts, len(table.rows)) and _lies_in(table.rows, table.num_rows),
    TextCounter: lambda counter: (
        _lies_in(counter.pair_keys, counter.tokens**2) and bool((counter.pair_keys.diff() > 0).all())
    ),
    LexicalExpert: _check_lexical,
    MemoryExpert: _check_memory,
    DenseMemory: _check_memory,
    CandidateTree: _check_tree,
    AdaptiveLabelClusters: _check_clusters,
}
