"""The data of a run: its texts, their tokens and their labels."""

import logging
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments

from .prepare import load_texts, load_tokenizer
from .repeated_texts import warn_of_repeated_texts
from .run_folder import check_same_labels
from .token_columns import with_whole_texts
from .windows import tokens_of_run

logger = logging.getLogger("glocal_xml")


@dataclass
class RunData:
    """
    The data of a run. Its parts are `train`, `validation`, `test` and `predict`, as far as there are files for them.

    Args:
        texts: Datasets by part, with `text` and the ids of its `labels`; where experts count them, also the ids of
            all tokens.
        tokens: Datasets by part, with the token fields of the start of each text, not padded, and `labels`.
        label_space: Names and frequencies of the labels.
        tokenizer: The tokenizer; its `model_max_length` is how many tokens of a text the encoder reads.
    """

    texts: dict[str, Any]
    tokens: dict[str, Any]
    label_space: LabelSpace
    tokenizer: PreTrainedTokenizerBase


def load_data(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    *,
    checkpoint: str | None = None,
) -> RunData:
    """
    Reads and tokenises the texts of a run that trains a new model. With `args.blend`, and nothing said of validation,
    a part of the training texts is held out.

    Args:
        model_args: The encoder, whose tokenizer is used, and the experts.
        data_args: The files and how to read them.
        args: The seed of random parts, and the processes: the first reads, the others use what it cached.
        checkpoint: Where the run resumes; other labels than it has are refused.
    """
    with args.main_process_first(desc="reading"):
        texts, label_space = load_texts(data_args, None, args.seed, holds_out=args.blend)
        tokenizer = load_tokenizer(model_args, data_args.max_length, texts)
        if model_args.experts:
            # The encoder reads the start of a text, experts count all of its tokens.
            texts = {name: with_whole_texts(part, tokenizer) for name, part in texts.items()}
        tokens = {
            name: tokens_of_run(part, tokenizer, data_args, training=name == "train") for name, part in texts.items()
        }
    logger.info("labels: %s", label_space.describe())
    warn_of_repeated_texts(texts)
    if checkpoint is not None:
        check_same_labels(checkpoint, label_space.names)
    return RunData(texts, tokens, label_space, tokenizer)
