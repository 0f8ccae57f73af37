"""A copy of a model without its memory of training texts."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from huggingface_hub import save_torch_state_dict
from safetensors.torch import load_file

from .published_files import published_files, regular_file, weight_files
from .run_files import CARD_FILE

_MEMORIES = ("memory", "dense")
LEFT_OUT = (
    "Memories of training texts are left out. The other weights of the blend were fitted together with them, so the "
    "scores of the copy are no probabilities: download it, run `glocal-xml calibrate COPY FILE`, and publish that."
)


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
