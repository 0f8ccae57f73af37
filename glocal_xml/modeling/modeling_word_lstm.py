"""The word encoder: word vectors through a bidirectional LSTM."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from transformers import AutoModel, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput

from .configuration_word_lstm import WordLSTMConfig


class WordLSTMModel(PreTrainedModel):
    """
    The text representation of AttentionXML ([You et al. 2019](https://arxiv.org/abs/1811.01727)) and LightAttention
    (III-D, layers 1 and 2): word vectors, dropout, a bidirectional LSTM with a learned initial state, dropout.

    It only gives its last layer, and works in the precision of its parameters also under autocast: there are CPUs
    without an LSTM in half precision. Checked on the CPU only.
    """

    config_class = WordLSTMConfig
    base_model_prefix = "word_lstm"
    _input_embed_layer = "embeddings"

    def __init__(self, config: WordLSTMConfig):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id)
        self.embedding_dropout = nn.Dropout(config.embedding_dropout)
        self.lstm = nn.LSTM(
            config.embedding_size, config.lstm_size, config.num_hidden_layers, batch_first=True, bidirectional=True
        )
        # Per layer and direction, the same for all texts.
        shape = (2 * config.num_hidden_layers, 1, config.lstm_size)
        self.initial_hidden = nn.Parameter(torch.zeros(shape))
        self.initial_cell = nn.Parameter(torch.zeros(shape))
        self.output_dropout = nn.Dropout(config.output_dropout)
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module):
        super()._init_weights(module)
        if isinstance(module, nn.Embedding) and not getattr(module.weight, "_is_hf_initialized", False):
            # The size that pretrained vectors have; with 0.02 the LSTM would see next to nothing.
            init.uniform_(module.weight, -1.0, 1.0)
            if module.padding_idx is not None:
                init.zeros_(module.weight[module.padding_idx])
        if module is self:
            init.zeros_(self.initial_hidden)
            init.zeros_(self.initial_cell)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | list[int] | None = None,
    ) -> BaseModelOutput:
        """Takes word ids, (texts, words), padded on the right; the states inside the LSTM are not kept."""
        if output_hidden_states:
            last = self.config.num_hidden_layers
            raise ValueError(f"word_lstm only gives its last layer: read layer {last} of it, or take another encoder.")
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask.ne(0).long()
        if (attention_mask.diff(dim=1) > 0).any():
            raise ValueError("word_lstm reads words from the first column on: pad texts on the right.")
        lengths = attention_mask.sum(dim=1)
        if lengths.min() < 1:
            raise ValueError("A text has no word; give an empty text the token for unknown words.")
        vectors = self.embedding_dropout(self.embeddings(input_ids))  # (texts, words, embedding)
        packed = pack_padded_sequence(vectors, lengths.cpu(), batch_first=True, enforce_sorted=False)
        state = tuple(
            initial.expand(-1, len(input_ids), -1).contiguous() for initial in (self.initial_hidden, self.initial_cell)
        )
        with torch.autocast(input_ids.device.type, enabled=False):
            states, _ = self.lstm(packed, state)
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
        return BaseModelOutput(last_hidden_state=self.output_dropout(states))  # (texts, words, 2 * lstm)


AutoModel.register(WordLSTMConfig, WordLSTMModel, exist_ok=True)
