"""What of a folder goes to the Hub: weights, code, label space and tokenizer; no texts, no paths, no tokens."""

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import Any

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, save_torch_state_dict
from safetensors.torch import load_file
from transformers.dynamic_module_utils import get_relative_import_files

from glocal_xml.data import LABEL_SPACE_FILES
from glocal_xml.json_text import read_json_object
from glocal_xml.modeling import FAMILIES, TextExpertsConfig

from .run_files import CARD_FILE, RESULTS_FILE

_CONFIG, _WEIGHTS, _INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_SHARDS = "model-[0-9]*-of-[0-9]*.safetensors"
_TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "spm.model", "sentencepiece.bpe.model"),
)
_OTHERS = ("label_tree.npz", *LABEL_SPACE_FILES, *_TOKENIZER)
_PATTERNS = (_CONFIG, "model*.safetensors", _INDEX, RESULTS_FILE, *_OTHERS)
_MEMORIES = ("memory", "dense")
LEFT_OUT = (
    "Memories of training texts are left out. The other weights of the blend were fitted together with them, so the "
    "scores of the copy are no probabilities: download it, run `glocal-xml calibrate COPY FILE`, and publish that."
)

# By name: where a file lies, or what it holds where that differs.
Files = dict[str, Path | bytes]


def commit_operations(
    files: Files, known: Iterable[str], patterns: Iterable[str] = _PATTERNS
) -> list[CommitOperationAdd | CommitOperationDelete]:
    """
    What makes a repository, which holds files of the names `known`, hold these files. Of those, weights and the like
    (`patterns`) that the model no longer has are deleted, since they might be loaded; all else may be somebody's own.
    """
    # Those without a slash are of the first folder alone.
    found = ((name, pattern) for name in known for pattern in patterns if "/" in pattern or "/" not in name)
    ours = {name for name, pattern in found if fnmatch(name, pattern)}
    added = [CommitOperationAdd(name, content) for name, content in files.items()]
    return [*added, *(CommitOperationDelete(name) for name in sorted(ours - files.keys()))]


def weight_files(folder: str | os.PathLike) -> list[str]:
    """The names of the files with weights in the folder of a model, the index of several among them."""
    path = Path(folder)
    if (path / _WEIGHTS).is_file():
        return [_WEIGHTS]
    if (path / _INDEX).is_file():
        shards = read_json_object(path / _INDEX).get("weight_map")
        if not isinstance(shards, dict) or not all(fnmatch(str(name), _SHARDS) for name in shards.values()):
            raise ValueError(f"{path / _INDEX} must have a `weight_map` to files called {_SHARDS}.")
        return [_INDEX, *sorted(set(shards.values()))]
    raise ValueError(f"{folder} has no weights: {_WEIGHTS} is missing; pickled weights are not published.")


def regular_file(folder: str | os.PathLike, name: str) -> Path:
    """The path of a file that lies in a folder itself; what a name or a link leads to elsewhere is refused."""
    path = Path(folder, name)
    if os.path.basename(name) != name or "\\" in name:
        raise ValueError(f"{folder} names {name!r}, which is no file in this folder: it is not published.")
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is a link or no file, and is not published: put the file itself there.")
    if not path.exists():
        raise ValueError(f"{folder} is incomplete: {name} is missing. Save the model again, or train anew.")
    return path


def published_files(folder: str | os.PathLike) -> Files:
    """
    The files of a trained model that go to the Hub.

    Checkpoints, optimiser states, pickled arguments and predictions, which hold texts, stay where they are.
    """
    path = Path(folder)
    config = _read_config(path)
    # A machine's paths concern nobody else.
    files: Files = {_CONFIG: _as_json(json.loads(json.dumps(config), object_hook=_without_path_name))}
    others = [name for name in _OTHERS if os.path.lexists(path / name)]
    for name in (*weight_files(path), *_code(path, config), *others):
        files[name] = regular_file(path, name)
    for name, remedy in {"labels.txt": "model.set_label_names", "tokenizer_config.json": "tokenizer"}.items():
        if name not in files:
            raise ValueError(f"{folder} lacks {name}: save it there by `{remedy}` and `save_pretrained`.")
    if os.path.lexists(path / RESULTS_FILE):
        files[RESULTS_FILE] = _as_json(public_results(read_json_object(regular_file(path, RESULTS_FILE))))
    return dict(sorted(files.items()))


def memory_notice(files: Files) -> str | None:
    """The notice for publishing a model with a memory of training texts; empty for other models."""
    config = json.loads(files[_CONFIG])
    kinds = {"memory": "bags of token ids", "dense": "embeddings"}
    kept = [f"{kind} of {config[name]['texts']:,} training texts" for name, kind in kinds.items() if config.get(name)]
    if not kept:
        return None
    return (
        f"The model holds {', '.join(kept)} (names of labels among them), and their labels. Whoever loads it can read "
        "them. `glocal-xml publish --leave_out_memory` leaves them out."
    )


def public_results(value: Any) -> Any:
    """Results without tokens, and with absolute paths cut to the name of the file."""
    if isinstance(value, dict):
        return {name: public_results(item) for name, item in value.items() if name not in ("token", "hub_token")}
    if isinstance(value, list):
        return [public_results(item) for item in value]
    if isinstance(value, str):
        for path in (PurePosixPath(value), PureWindowsPath(value)):
            if path.is_absolute() or value.startswith("~"):
                return path.name or value
        return re.sub(r"\bhf_[A-Za-z0-9]{8,}", "…", value)
    return value


def _read_config(folder: Path) -> dict[str, Any]:
    try:
        config = read_json_object(regular_file(folder, _CONFIG))
    except (OSError, ValueError) as error:
        raise ValueError(
            f"{folder} is no folder of a trained model: it has no readable {_CONFIG}; give the `--output_dir` of "
            f"`glocal-xml train` ({error})"
        ) from None
    families = [*(family.model_type for family in FAMILIES), TextExpertsConfig.model_type]
    if config.get("model_type") not in families:
        raise ValueError(
            f"{folder} holds a model of type {config.get('model_type')!r}; those of this package are "
            f"{', '.join(families)}."
        )
    if "custom_pipelines" not in config:
        raise ValueError(
            f"{folder} was saved before models had a pipeline: save it again by "
            f"`AutoModel.from_pretrained(folder).save_pretrained(folder)`, with `import glocal_xml` before."
        )
    return config


def _code(folder: Path, config: dict[str, Any]) -> set[str]:
    """The files that the classes of a checkpoint are made of; others that lie there are somebody's own."""
    try:
        classes = list(config.get("auto_map", {}).values())
        classes += [pipeline["impl"] for pipeline in config["custom_pipelines"].values()]
        modules = {name.rpartition("--")[2].split(".")[0] for name in classes}
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{folder / _CONFIG} has an `auto_map` or `custom_pipelines` of another form.") from None
    code = set()
    for name in modules:
        file = regular_file(folder, f"{name}.py")
        try:
            code |= {file.name, *map(os.path.basename, get_relative_import_files(file))}
        except FileNotFoundError as error:
            regular_file(folder, os.path.basename(error.filename))
            raise
    return code


def _without_path_name(config: dict[str, Any]) -> dict[str, Any]:
    is_path = config.get("_name_or_path") != public_results(config.get("_name_or_path"))
    return {name: value for name, value in config.items() if name != "_name_or_path" or not is_path}


def _as_json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode("utf-8")


@contextmanager
def folder_to_publish(folder: str | os.PathLike, leave_out_memory: bool) -> Iterator[Path]:
    """The folder of a model or, while it is needed, that of a copy without memories of texts."""
    if not leave_out_memory:
        yield Path(folder)
        return
    with TemporaryDirectory() as place:
        # Of the same name, by which a card may call it.
        copy = Path(place, Path(folder).resolve().name)
        copy_without_memory(folder, copy)
        yield copy


def copy_without_memory(folder: str | os.PathLike, target: str | os.PathLike) -> None:
    """
    Copies what of a model would be published, without its memory. The weights of the other branches in the blend stay
    as they are; that it is no longer fitted, the number of its texts tells, which is 0.
    """
    folder, target = Path(folder), Path(target)
    files = published_files(folder)
    config = json.loads(files["config.json"])
    if all(config.get(name) is None for name in _MEMORIES):
        raise ValueError(f"{folder} has no memory that could be left out: publish it without `--leave_out_memory`.")
    if config.get("encoder") is None and config.get("lexical") is None:
        raise ValueError(f"The memory is all that {folder} has: without it nothing would be left to publish.")
    config |= dict.fromkeys(_MEMORIES)
    if config.get("blend") is not None:
        weights = {key: x for key, x in config["blend"]["weights"].items() if key.split("_")[0] not in _MEMORIES}
        config["blend"] |= {"weights": weights, "texts": 0}
    target.mkdir(parents=True)
    names = weight_files(folder)
    for name, content in files.items():
        if isinstance(content, bytes):
            (target / name).write_bytes(content)
        elif name not in names:
            shutil.copyfile(content, target / name)
    if os.path.lexists(folder / CARD_FILE):
        shutil.copyfile(regular_file(folder, CARD_FILE), target / CARD_FILE)
    (target / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    shards = [load_file(folder / name) for name in names if name.endswith(".safetensors")]
    kept = {key: x for shard in shards for key, x in shard.items() if key.split(".")[0] not in _MEMORIES}
    # In several files where there were several.
    save_torch_state_dict(kept, target, max_shard_size=max((folder / name).stat().st_size for name in names))
