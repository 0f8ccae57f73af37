"""The label tree of a run: built from the training texts or from label names, or read from a file."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm.auto import tqdm
from transformers import AutoModel

from glocal_xml.data import LabelSpace, LabelTree, build_label_tree, label_features_from_texts
from glocal_xml.data.label_features import label_features_from_embeddings
from glocal_xml.modeling.encoder import position_limit
from glocal_xml.trained_model import plain_model_errors
from glocal_xml.training.arguments import ModelArguments, XMTCTrainingArguments

from .prepare import encoder_path, encoder_tokenizer
from .word_encoder import WORD_ENCODER

logger = logging.getLogger(__name__)

TREE_FILE = "label_tree.npz"
FEATURES = ("texts", "names", "text_embeddings")
_TREE_OPTIONS = ("features", "cluster_size", "height", "branching", "seed")
_EMBEDDED_TOKENS = 128
_EMBEDDED_AT_A_TIME = 64


def tree_of_run(
    model_args: ModelArguments,
    args: XMTCTrainingArguments,
    texts: dict[str, Any],
    label_space: LabelSpace,
    *,
    resume: bool,
) -> LabelTree | None:
    """
    The label tree that a run asks for, if any: read from a file, or built by the first process and kept in the folder
    of the run, where the others read it, and so does a run that resumes.
    """
    wanted, path = model_args.label_tree, Path(args.output_dir, TREE_FILE)
    if wanted is None:
        return None
    with args.main_process_first(desc="building the label tree"):
        if isinstance(wanted, str):
            path = Path(wanted)
        elif args.process_index == 0 and not (resume and path.is_file()):
            path.parent.mkdir(parents=True, exist_ok=True)
            _build(wanted, texts, label_space, model_args.encoder, not args.disable_tqdm).save(path)
        tree = LabelTree.load(path)
    if tree.num_labels != label_space.num_labels:
        raise ValueError(
            f"The label tree has {tree.num_labels} labels, the data {label_space.num_labels}: build one of these."
        )
    logger.info("label tree: levels of %s nodes over %d labels", tree.level_sizes, tree.num_labels)
    return tree


def _build(
    options: dict[str, Any], texts: dict[str, Any], label_space: LabelSpace, encoder: str, show_progress: bool
) -> LabelTree:
    if unknown := sorted(set(options) - set(_TREE_OPTIONS)):
        raise ValueError(f"`label_tree` has no options {unknown}; it has {', '.join(_TREE_OPTIONS)}, or is a file.")
    train, num_labels = texts["train"], label_space.num_labels
    source = options.get("features", "texts")
    if source not in FEATURES:
        raise ValueError(f"The features of `label_tree` must be one of {', '.join(FEATURES)}, got {source!r}.")
    if source != "names" and not hasattr(train, "__len__"):
        raise ValueError(
            "A label tree is built from all training texts, and a stream is read only once: build it in a run without "
            f"`--streaming`, and pass its {TREE_FILE} as `--label_tree`."
        )
    if source == "names":
        features = embed(label_space.names, encoder, show_progress)
    elif source == "texts":
        features = label_features_from_texts(train["text"], train["labels"], num_labels, show_progress=show_progress)
    else:
        embeddings = embed(train["text"], encoder, show_progress)
        features = label_features_from_embeddings(embeddings, train["labels"], num_labels)
    options = {name: value for name, value in options.items() if name != "features"}
    return build_label_tree(features, show_progress=show_progress, **options)


@torch.no_grad()
def embed(texts: list[str], encoder: str, show_progress: bool) -> np.ndarray:
    """Mean token states of the last layer of a pretrained encoder, of shape (texts, hidden)."""
    if encoder == WORD_ENCODER:
        raise ValueError(
            f"{WORD_ENCODER} has learned nothing to embed label names or texts by: build the label tree with the "
            "features `texts`, or pass the label_tree.npz of a run with another encoder."
        )
    tokenizer = encoder_tokenizer(encoder)
    with plain_model_errors(encoder):
        model = AutoModel.from_pretrained(encoder_path(encoder), dtype=torch.float32).eval()
    longest = min(_EMBEDDED_TOKENS, position_limit(model) or _EMBEDDED_TOKENS)
    options = {"padding": True, "truncation": True, "max_length": longest, "return_tensors": "pt"}
    rows = []
    for start in tqdm(range(0, len(texts), _EMBEDDED_AT_A_TIME), desc="embedding", disable=not show_progress):
        batch = tokenizer(list(texts[start : start + _EMBEDDED_AT_A_TIME]), **options)
        mask = batch["attention_mask"].unsqueeze(-1)  # (texts, tokens, 1)
        states = model(**batch).last_hidden_state  # (texts, tokens, hidden)
        rows.append(((states * mask).sum(dim=1) / mask.sum(dim=1)).numpy())
    return np.concatenate(rows)
