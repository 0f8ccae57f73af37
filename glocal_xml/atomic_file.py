"""Writing a file so that readers see either the old content or the new one, never a part of it."""

import os
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:
    # Windows, where leftovers stay.
    fcntl = None


@contextmanager
def open_atomically(path: str | os.PathLike) -> Iterator[IO[bytes]]:
    """A file to write bytes to, which takes its place in one step when the block ends, and is gone when it fails."""
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"the folder {path.parent} for {path.name} does not exist; make it first")
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a folder; give the name of a file")
    if path.exists() and not path.is_file():
        # Such as /dev/null, which a file must not replace.
        with open(path, "wb") as file:
            yield file
        return
    remove_leftovers(path.parent, path.name)
    # A plain open, unlike the tempfile module, leaves the permissions to the user's umask.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            if fcntl is not None:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_atomically(path: str | os.PathLike, content: str | bytes | memoryview) -> None:
    """Writes bytes, or text as UTF-8 with its line ends unchanged, replacing the file in one step."""
    with open_atomically(path) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def remove_leftovers(folder: str | os.PathLike, name: str | None = None) -> None:
    """Deletes what killed processes left of a file, by default of any: one that is being written is locked."""
    pattern = re.compile(rf"\.{'.+' if name is None else re.escape(name)}\.[0-9a-f]{{32}}")
    found = [path for path in Path(folder).glob(".*") if pattern.fullmatch(path.name)] if fcntl is not None else []
    for path in found:
        try:
            with open(path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
        except OSError:
            # Locked, a folder, or deleted meanwhile.
            continue
