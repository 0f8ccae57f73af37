"""Tiny encoders, a tokenizer and data, all made in code: no test needs a network."""

import json
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertTokenizerFast,
    DistilBertConfig,
    ModernBertConfig,
    RobertaConfig,
    XLNetConfig,
)

from glocal_xml.modeling import WordLSTMConfig

# Tiny models gain nothing from more threads, and lose much where cores are shared.
torch.set_num_threads(1)

WORDS = [
    *("apple", "banana", "cherry", "dog", "elephant", "fox", "green", "house", "ice"),
    *("jungle", "kite", "lemon", "moon", "night", "ocean", "paper", "queen"),
]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY_SIZE = 64


def without_dropout(config):
    """Contracts compare runs exactly, in training mode too."""
    for name, value in config.to_dict().items():
        if "dropout" in name and isinstance(value, float):
            setattr(config, name, 0.0)
    return config


_CONFIGS = {
    "bert": lambda: BertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    ),
    "roberta": lambda: RobertaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=66,
    ),
    "xlnet": lambda: XLNetConfig(vocab_size=VOCABULARY_SIZE, d_model=16, n_layer=3, n_head=2, d_inner=32),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=VOCABULARY_SIZE, dim=16, n_layers=3, n_heads=2, hidden_dim=32, max_position_embeddings=64
    ),
    "modernbert": lambda: ModernBertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=3,
        cls_token_id=2,
        sep_token_id=3,
    ),
    "word_lstm": lambda: WordLSTMConfig(vocab_size=VOCABULARY_SIZE, embedding_size=12, lstm_size=8),
}


# Each a function, since a model keeps the configuration object it was built from.
ENCODER_CONFIGS = {name: lambda make=make: without_dropout(make()) for name, make in _CONFIGS.items()}
# Those with three layers that can all be read.
LAYERED_ENCODERS = sorted(ENCODER_CONFIGS.keys() - {"word_lstm"})


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


@pytest.fixture(params=sorted(ENCODER_CONFIGS))
def encoder_config(request):
    """The configuration of a tiny encoder, of each kind in turn."""
    return ENCODER_CONFIGS[request.param]()


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A word-level BERT tokenizer over a handful of words."""
    folder = tmp_path_factory.mktemp("tokenizer")
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *WORDS, *"abcdefghij"]) + "\n", encoding="utf-8")
    return BertTokenizerFast(vocab=str(folder / "vocab.txt"), model_max_length=64)


@pytest.fixture(scope="session")
def encoder_folder(tokenizer, tmp_path_factory):
    """A tiny random BERT on disk with its tokenizer, to start models from."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    AutoModel.from_config(ENCODER_CONFIGS["bert"]()).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="session")
def text_file(tmp_path_factory):
    """Writes texts that name their labels: easy to learn, so that a run can be seen to work."""

    def write(name: str, number: int, first: int = 0) -> str:
        path = tmp_path_factory.mktemp("data") / name
        rows = []
        for i in range(first, first + number):
            words = [WORDS[i % 8], WORDS[(3 * i + 1) % 8], WORDS[8 + i % 9]]
            rows.append({"text": " ".join(words), "labels": sorted({f"is {word}" for word in words[:2]})})
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        return str(path)

    return write
