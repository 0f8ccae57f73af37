"""Configuration of the word encoder."""

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig
from transformers.configuration_utils import PreTrainedConfig

from .configuration_base import check_dropout, check_least


@strict
class WordLSTMConfig(PreTrainedConfig):
    """
    Configuration of [`WordLSTMModel`]; the defaults are those of AttentionXML for small label spaces
    ([You et al. 2019](https://arxiv.org/abs/1811.01727)), from which LightAttention takes its encoder.

    Args:
        vocab_size: Number of words, those for padding and for unknown words included.
        embedding_size: Size of the word vectors.
        lstm_size: Size of the states of each direction; the token states are twice as wide.
        num_hidden_layers: Number of LSTM layers, each in both directions.
        embedding_dropout, output_dropout: Dropout on the word vectors, and on the token states.
        pad_token_id: Word whose vector is zero and stays so.
    """

    model_type = "word_lstm"

    vocab_size: int = 500_000
    embedding_size: int = 300
    lstm_size: int = 256
    num_hidden_layers: int = 1
    embedding_dropout: float | int = 0.2
    output_dropout: float | int = 0.5
    pad_token_id: int | None = 0

    @property
    def hidden_size(self) -> int:
        return 2 * self.lstm_size

    def validate_sizes(self):
        check_least(self, 1, "vocab_size", "embedding_size", "lstm_size", "num_hidden_layers")
        check_dropout(self, "embedding_dropout", "output_dropout")


# Here rather than with the families, so that it also happens where a checkpoint brings this file along.
AutoConfig.register(WordLSTMConfig.model_type, WordLSTMConfig, exist_ok=True)
