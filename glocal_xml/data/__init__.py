"""From files and datasets to batches: readers, the label space, label trees, datasets and the collator."""

from .collator import XMTCCollator
from .dataset import load_hub_dataset, load_xmtc_dataset, split_validation, tokenize
from .label_features import label_features_from_embeddings, label_features_from_matrix, label_features_from_texts
from .label_space import BAND_LIMITS, LABEL_SPACE_FILES, LabelSpace
from .label_tree import LabelTree, build_label_tree, tree_level_sizes
from .readers import FILE_FORMATS, detect_format, read_rows
from .repository_formats import read_label_map, read_sparse
from .rows import BadRow, BadRows
from .text_rows import ROW_FORMATS, TEXT_FORMATS, read_text_rows, write_rows
from .words import load_word_vectors, train_word_tokenizer

__all__ = [
    "BAND_LIMITS",
    "FILE_FORMATS",
    "LABEL_SPACE_FILES",
    "ROW_FORMATS",
    "TEXT_FORMATS",
    "BadRow",
    "BadRows",
    "LabelSpace",
    "LabelTree",
    "XMTCCollator",
    "build_label_tree",
    "detect_format",
    "label_features_from_embeddings",
    "label_features_from_matrix",
    "label_features_from_texts",
    "load_hub_dataset",
    "load_word_vectors",
    "load_xmtc_dataset",
    "read_label_map",
    "read_rows",
    "read_sparse",
    "read_text_rows",
    "split_validation",
    "tokenize",
    "train_word_tokenizer",
    "tree_level_sizes",
    "write_rows",
]
