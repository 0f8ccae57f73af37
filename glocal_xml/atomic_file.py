"""Writing a file so that readers see either the old content or the new one, never a part of it."""

import os
import uuid
from pathlib import Path


def write_atomically(path: str | os.PathLike, content: str | bytes) -> None:
    """Writes bytes, or text as UTF-8 with its line ends unchanged, replacing the file in one step."""
    path = Path(path)
    # A plain open, unlike the tempfile module, leaves the permissions to the user's umask.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with open(temporary, "xb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
