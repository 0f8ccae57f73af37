"""Model folders of which one file was changed: the model is refused, or its predictions are well-formed."""

import json
import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from fuzz_files import Broken, Target, refused
from hypothesis import strategies as st
from safetensors.torch import load_file
from tiny_runs import KINDS, Workshop
from transformers.utils import logging

from glocal_xml.trained_model import open_pipeline

TEXT = "apple dog moon"
_NUMBERS = st.sampled_from([-1, 0, 1, 2, 3, 7, 9, 10**6, 10**12, 2**63, 0.0, -0.5, 1e-30, 1e30, 1e308])
_SETTINGS = st.one_of(
    _NUMBERS,
    st.sampled_from([math.nan, math.inf, -math.inf, None, True, False, "", "x", "x" * 3000, [], {}, [1], {"a": 1}]),
    st.lists(_NUMBERS, max_size=3),
)


def _leaves(value: Any, way: tuple = ()) -> list[tuple]:
    """The ways to all values of nested dictionaries and lists."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(leaf for name, item in items for leaf in _leaves(item, (*way, name)))]


def _replaced(value: Any, way: tuple, new: Any) -> Any:
    if not way:
        return new
    changed = dict(value) if isinstance(value, dict) else list(value)
    changed[way[0]] = _replaced(value[way[0]], way[1:], new)
    return changed


def _json_files(whole: bytes) -> st.SearchStrategy[bytes]:
    """A JSON file of which one value is another one, or missing, or whose text is damaged."""
    value = json.loads(whole)
    ways = _leaves(value)
    changed = st.tuples(st.sampled_from(ways), _SETTINGS).map(
        lambda drawn: json.dumps(_replaced(value, *drawn)).encode()
    )
    top = st.sampled_from(list(value))
    less = top.map(lambda name: json.dumps({key: item for key, item in value.items() if key != name}).encode())
    return st.one_of(changed, changed, changed, less, _damaged(whole))


def _damaged(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes that are cut off, replaced, inserted or repeated."""
    place = st.integers(0, len(whole))
    return st.one_of(
        place.map(lambda end: whole[:end]),
        st.tuples(place, st.binary(max_size=9), st.integers(0, 9)).map(
            lambda drawn: whole[: drawn[0]] + drawn[1] + whole[drawn[0] + drawn[2] :]
        ),
        st.sampled_from([b"", b"{}", b"[]", b"null", b"[" * 10**5, b"\xff\xfe", whole * 2]),
    )


def _weights(whole: bytes) -> st.SearchStrategy[bytes]:
    """Weights with another header, without an end, or with numbers that are none."""
    length = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def with_header(value: Any) -> bytes:
        text = json.dumps(value).encode()
        return struct.pack("<Q", len(text)) + text + data

    def with_number(drawn: tuple[str, float]) -> bytes:
        start = 8 + length + header[drawn[0]]["data_offsets"][0]
        return whole[:start] + struct.pack("<f", drawn[1]) + whole[start + 4 :]

    names = [name for name in header if name != "__metadata__"]
    floats = [name for name in names if header[name]["dtype"] == "F32"]
    integers = [name for name in names if header[name]["dtype"] in ("I32", "I64")]
    offsets = st.integers(0, 8 + length - 1)
    return st.one_of(
        st.tuples(st.sampled_from(_leaves(header)), _SETTINGS).map(
            lambda drawn: with_header(_replaced(header, *drawn))
        ),
        st.sampled_from(names).map(
            lambda name: with_header({key: value for key, value in header.items() if key != name})
        ),
        st.tuples(st.sampled_from(floats), st.sampled_from([math.nan, math.inf, -math.inf])).map(with_number),
        # Tables of experts and trees point somewhere; here they point elsewhere.
        st.tuples(st.sampled_from(integers or floats), st.floats(width=32, allow_nan=False)).map(with_number),
        st.tuples(offsets, st.integers(1, 255)).map(
            lambda drawn: whole[: drawn[0]] + bytes([whole[drawn[0]] ^ drawn[1]]) + whole[drawn[0] + 1 :]
        ),
        st.integers(0, len(whole) - 1).map(lambda end: whole[:end]),
        st.binary(min_size=1, max_size=9).map(lambda more: whole + more),
    )


def _check(folder: Path, name: str) -> Callable[[Path, bytes], str]:
    whole = (folder / name).read_bytes()

    def check(path: Path, content: bytes) -> str:
        (folder / name).write_bytes(content)
        try:
            found: list[dict[str, Any]] = []
            outcome = refused(lambda: found.extend(open_pipeline(str(folder))(TEXT, top_k=3)), folder)
            if outcome == "used":
                _check_predictions(found, (folder / "labels.txt").read_text(encoding="utf-8").split("\n")[:-1])
            return outcome
        finally:
            (folder / name).write_bytes(whole)

    return check


def _check_predictions(found: list[dict[str, Any]], names: list[str]) -> None:
    labels, scores = [item["label"] for item in found], [item["score"] for item in found]
    if len(found) != 3 or len(set(labels)) != 3 or not set(labels) <= set(names):
        raise Broken(f"labels {labels} of {names}")
    if not all(0 <= score <= 1 for score in scores) or scores != sorted(scores, reverse=True):
        raise Broken(f"scores {scores}")


def model_targets(folder: Path) -> dict[str, Target]:
    """Files of a model with a tree, and of one with experts and blend."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    workshop = Workshop(folder / "workshop")
    found = {}
    for kind, name in (("Trainer, tree", "tree"), ("Trainer, experts and blend", "experts")):
        model = folder / f"{name} model"
        if any(workshop.run(KINDS[kind], model).codes):
            raise RuntimeError(f"no model {name}")
        torch.manual_seed(0)
        load_file(model / "model.safetensors")
        for file, strategy in (
            ("config.json", _json_files),
            ("model.safetensors", _weights),
            ("labels.txt", _damaged),
        ):
            found[f"model with {name}, {file}"] = Target(
                strategy((model / file).read_bytes()), file, _check(model, file), is_damaged=False
            )
    for file in ("tokenizer.json", "tokenizer_config.json"):
        found[f"model with experts, {file}"] = Target(
            _json_files((model / file).read_bytes()), file, _check(model, file), is_damaged=False
        )
    return found
