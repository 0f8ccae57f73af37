"""Names of the labels beside the weights: `labels.txt`, line i for label i."""

import os
from typing import Any

from transformers.utils import cached_file

LABELS_FILE = "labels.txt"
_HUB_OPTIONS = ("cache_dir", "force_download", "local_files_only", "proxies", "revision", "subfolder", "token")


def check_label_names(names: list[str]) -> None:
    """Refuses names that a line of the file cannot hold."""
    broken = next((name for name in names if "\n" in name or "\r" in name), None)
    if broken is not None:
        raise ValueError(f"The label name {broken!r} contains a line break; {LABELS_FILE} holds one a line.")


def write_label_names(folder: str | os.PathLike, names: list[str]) -> None:
    """Writes the file, whole or not at all."""
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, LABELS_FILE)
    with open(f"{path}.tmp", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(f"{name}\n" for name in names)
    os.replace(f"{path}.tmp", path)


def find_label_names(name_or_path: str | os.PathLike, **options: Any) -> list[str] | None:
    """The names of a checkpoint, in a folder or on the Hub; `None` where it has none."""
    path = cached_file(
        name_or_path,
        LABELS_FILE,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **{name: options[name] for name in _HUB_OPTIONS if options.get(name) is not None},
    )
    if path is None:
        return None
    with open(path, encoding="utf-8", newline="\n") as file:
        return file.read().split("\n")[:-1]
