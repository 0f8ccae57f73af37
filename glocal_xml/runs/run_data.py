"""The data of a run: its texts, their tokens and their labels."""

import logging
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments

from .prepare import load_texts, load_tokenizer
from .repeated_texts import warn_of_repeated_texts
from .run_folder import check_same_labels
from .token_columns import tokens_of_run, with_whole_texts

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

    def tokenize_whole_texts(self, args: XMTCTrainingArguments) -> None:
        """Adds the ids of all tokens of each text: the encoder reads its start, experts count all of them."""
        with args.main_process_first(desc="tokenising"):
            self.texts = {name: with_whole_texts(part, self.tokenizer) for name, part in self.texts.items()}

    def tokenize(self, data_args: DataArguments, args: XMTCTrainingArguments) -> None:
        """Makes the tokens of all parts."""
        with args.main_process_first(desc="tokenising"):
            self.tokens = {
                name: tokens_of_run(part, self.tokenizer, data_args, training=name == "train")
                for name, part in self.texts.items()
            }


def load_data(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    *,
    checkpoint: str | None = None,
) -> RunData:
    """
    Reads and tokenises the texts of a run that trains a new model; the first process reads, the others use what it
    cached. With `args.blend`, and nothing said of validation, a part of the training texts is held out. Labels that
    are not those of the `checkpoint` to resume from are refused.
    """
    data = read_data(model_args, data_args, args, checkpoint=checkpoint)
    if model_args.experts:
        data.tokenize_whole_texts(args)
    data.tokenize(data_args, args)
    return data


def read_data(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: XMTCTrainingArguments,
    known: LabelSpace | None = None,
    train_rows: Dataset | None = None,
    *,
    training: bool = True,
    checkpoint: str | None = None,
) -> RunData:
    """As [`load_data`], not tokenised; with the labels of a trained model, or with training texts in memory."""
    with args.main_process_first(desc="reading"):
        texts, label_space = load_texts(data_args, known, args.seed, train_rows, training and args.blend)
        if training and not data_args.streaming:
            warn_of_repeated_texts(texts)
        if checkpoint is not None:
            check_same_labels(checkpoint, label_space.names)
        tokenizer = load_tokenizer(model_args, data_args.max_length, texts)
    logger.info("labels: %s", label_space.describe())
    return RunData(texts, {}, label_space, tokenizer)
