"""The word encoder of a run: its tokenizer from the training texts, its vectors from a file or at random."""

import logging
from collections.abc import Iterable
from typing import Any

import torch
from transformers import PreTrainedTokenizerFast

from glocal_xml.data import load_word_vectors, train_word_tokenizer
from glocal_xml.data.words import vocabulary
from glocal_xml.loading.start_model import make_config
from glocal_xml.modeling import WordLSTMConfig, WordLSTMModel

logger = logging.getLogger(__name__)

# The `--encoder` that is made in the run rather than loaded.
WORD_ENCODER = WordLSTMConfig.model_type
_TOKENIZER_OPTIONS = ("max_words", "min_texts")
_SIZES = ("embedding_size", "lstm_size", "num_hidden_layers", "embedding_dropout", "output_dropout")


def check_word_options(options: dict[str, Any]) -> None:
    """Refuses `--encoder_options` that the word encoder does not have."""
    known = ("vectors", *_TOKENIZER_OPTIONS, *_SIZES)
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"{WORD_ENCODER} has no options {unknown}; it has {', '.join(known)}.")
    if "vectors" in options and "embedding_size" in options:
        raise ValueError("`vectors` have a size of their own: leave out `embedding_size`, which is for random ones.")


def make_word_tokenizer(texts: Iterable[str], options: dict[str, Any]) -> PreTrainedTokenizerFast:
    """A tokenizer of the words of the training texts."""
    options = {name: value for name, value in options.items() if name in _TOKENIZER_OPTIONS}
    tokenizer = train_word_tokenizer(texts, **options)
    logger.info("%s: a vocabulary of %d words", WORD_ENCODER, len(tokenizer))
    return tokenizer


def make_word_encoder(tokenizer: PreTrainedTokenizerFast, options: dict[str, Any]) -> WordLSTMModel:
    """An encoder for the words of a tokenizer, with pretrained vectors where `options` name a file of them."""
    sizes = {name: value for name, value in options.items() if name in _SIZES}
    vectors = None
    if "vectors" in options:
        vectors, found = load_word_vectors(options["vectors"], vocabulary(tokenizer))
        sizes["embedding_size"] = vectors.shape[1]
        logger.info("%s: vectors of size %d for %d of them", WORD_ENCODER, vectors.shape[1], found)
    config = make_config(WordLSTMConfig, sizes, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
    encoder = WordLSTMModel(config)
    if vectors is not None:
        with torch.no_grad():
            encoder.embeddings.weight.copy_(torch.from_numpy(vectors))
    return encoder
