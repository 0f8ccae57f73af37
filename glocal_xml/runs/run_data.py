"""The data of a run: its texts, their tokens and their labels."""

import logging
from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from glocal_xml.data import LabelSpace
from glocal_xml.experts.memory import texts_in_memory
from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments

from .prepare import load_texts, load_tokenizer
from .run_folder import check_same_labels
from .token_columns import tokens_of_run, whole_rows, with_whole_texts

logger = logging.getLogger("glocal_xml")

# Test texts that are looked up in the memory of a trained model.
_LOOKED_UP = 500


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


def warn_of_repeated_texts(parts: dict[str, Any]) -> None:
    """Warns of repeated training texts, and of validation and test texts that are training texts too."""
    if "train" not in parts:
        return
    train = parts["train"]["text"][:]
    known = set(train)
    if len(known) < len(train):
        pairs = {(text, *labels) for text, labels in zip(train, parts["train"]["labels"][:], strict=True)}
        other = len(pairs) - len(known)
        logger.warning(
            "%d of %d training texts are repeated: they count several times%s",
            *(len(train) - len(known), len(train)),
            f"; {other} of them with other labels: give each text once, with all of its labels" if other else "",
        )
    for name in ("validation", "test"):
        texts = parts[name]["text"][:] if name in parts else []
        if repeated := sum(text in known for text in texts):
            logger.warning(
                "%d of %d %s texts are training texts too: results on them are too good; remove them from one of the "
                "two",
                *(repeated, len(texts), name),
            )


def warn_of_known_texts(model: XMTCPreTrainedModel, parts: dict[str, Any]) -> None:
    """Warns of test texts that a trained model has in its memory, which knows their labels."""
    if "test" not in parts or model.memory is None:
        return
    rows = whole_rows(parts["test"].take(_LOOKED_UP))
    if known := int(texts_in_memory(model, rows).sum()):
        logger.warning(
            "%d of %s%d test texts are training texts of the model: results on them are too good; leave them out",
            *(known, "the first " if len(rows) == _LOOKED_UP else "", len(rows)),
        )
