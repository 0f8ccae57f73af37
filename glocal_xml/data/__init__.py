"""From files and datasets to batches: readers, the label space, datasets and the collator."""

from .collator import XMTCCollator
from .dataset import load_hub_dataset, load_xmtc_dataset, split_validation, tokenize
from .label_space import BAND_LIMITS, LABEL_SPACE_FILES, LabelSpace
from .readers import FILE_FORMATS, detect_format, read_rows
from .repository_formats import read_label_map, read_sparse
from .rows import BadRow, BadRows

__all__ = [
    "BAND_LIMITS",
    "FILE_FORMATS",
    "LABEL_SPACE_FILES",
    "BadRow",
    "BadRows",
    "LabelSpace",
    "XMTCCollator",
    "detect_format",
    "load_hub_dataset",
    "load_xmtc_dataset",
    "read_label_map",
    "read_rows",
    "read_sparse",
    "split_validation",
    "tokenize",
]
