"""Tiny encoders of each kind, and the words of their tokenizer."""

from transformers import BertConfig, DistilBertConfig, ModernBertConfig, RobertaConfig, XLNetConfig

from glocal_xml.modeling import WordLSTMConfig

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
