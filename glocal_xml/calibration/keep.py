"""Keeping a calibration with the model."""

import json
import os
from pathlib import Path
from typing import Any

from glocal_xml.atomic_file import write_atomically

_CONFIG_FILE = "config.json"


def keep_calibration(folder: str | os.PathLike, calibration: dict[str, Any] | None) -> None:
    """
    Writes a calibration into the configuration of a saved model, whole or not at all; nothing else is touched.

    Args:
        folder: Folder of the model. One on the Hub has to be downloaded first.
        calibration: As `fit_calibration` returns it, or `None` to remove what is there.
    """
    path = Path(folder, _CONFIG_FILE)
    if not path.is_file():
        raise ValueError(f"{folder} is no folder of a model, since it has no {_CONFIG_FILE}; download a model first.")
    config = json.loads(path.read_text(encoding="utf-8"))
    config["calibration"] = calibration
    write_atomically(path, json.dumps(config, indent=2, sort_keys=True) + "\n")
