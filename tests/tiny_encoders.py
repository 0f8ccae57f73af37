"""Tiny encoders of each kind, and the words of their tokenizer."""

from transformers import (
    BartConfig,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    GPT2Config,
    LEDConfig,
    LongformerConfig,
    ModernBertConfig,
    MPNetConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    T5Config,
    XLNetConfig,
)

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


def papers_encoder(name, layers):
    """The configuration of a tiny encoder in the place of one of the papers', with as many positions."""
    config = ENCODER_CONFIGS[name.split("-")[0]]()
    config.num_hidden_layers = layers
    # XLNet has no limit.
    if config.model_type != "xlnet":
        config.max_position_embeddings = 514
    return config


# Each a function, since a model keeps the configuration object it was built from.
ENCODER_CONFIGS = {name: lambda make=make: without_dropout(make()) for name, make in _CONFIGS.items()}
# Those with three layers that can all be read.
LAYERED_ENCODERS = sorted(ENCODER_CONFIGS.keys() - {"word_lstm"})

_SIZES = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
_CAUSAL = {**_SIZES, "num_key_value_heads": 1, "head_dim": 8, "max_position_embeddings": 64, "pad_token_id": 0}
_FURTHER = {
    "deberta_v2": lambda: DebertaV2Config(
        **_SIZES, relative_attention=True, position_buckets=8, pos_att_type=["p2c", "c2p"], position_biased_input=False
    ),
    "electra": lambda: ElectraConfig(**_SIZES, embedding_size=12),
    "mpnet": lambda: MPNetConfig(**_SIZES, max_position_embeddings=66),
    "longformer": lambda: LongformerConfig(**_SIZES, max_position_embeddings=66, attention_window=4, pad_token_id=1),
    "led": lambda: LEDConfig(
        vocab_size=VOCABULARY_SIZE,
        d_model=16,
        encoder_layers=3,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        attention_window=4,
        max_encoder_position_embeddings=64,
    ),
    "qwen2": lambda: Qwen2Config(**_CAUSAL),
    "qwen3": lambda: Qwen3Config(**_CAUSAL),
    "gpt2": lambda: GPT2Config(
        vocab_size=VOCABULARY_SIZE,
        n_embd=16,
        n_layer=3,
        n_head=2,
        n_positions=64,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
    ),
    "t5": lambda: T5Config(
        vocab_size=VOCABULARY_SIZE, d_model=16, d_kv=8, d_ff=32, num_layers=3, num_decoder_layers=1, num_heads=2
    ),
    "bart": lambda: BartConfig(
        vocab_size=VOCABULARY_SIZE,
        d_model=16,
        encoder_layers=3,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
    ),
}
# Tried with one family: decoders, encoders with a decoder, and others with ways of their own.
FURTHER_ENCODER_CONFIGS = {name: lambda make=make: without_dropout(make()) for name, make in _FURTHER.items()}
