"""A model without an encoder: the lexical expert, the memory of training texts, and their blend."""

from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from .configuration_text_experts import TextExpertsConfig
from .encoder import PADDING_LABEL, checked_mask
from .experts import Blend
from .modeling_base import XMTCPreTrainedModel


class TextExpertsForMultiLabel(XMTCPreTrainedModel):
    """
    Experts alone: [`LexicalExpert`], [`MemoryExpert`] or both. They are fitted in seconds to minutes
    (`glocal_xml.experts.fit_experts`), read the whole text, and have nothing to train by gradient descent.
    """

    config_class = TextExpertsConfig
    base_model_prefix = ""
    blend_class = Blend
    _supports_sdpa = _supports_flash_attn = _supports_flex_attn = _supports_attention_backend = False

    def __init__(self, config: TextExpertsConfig):
        super().__init__(config)
        # Where the model is, and in which precision: it has no parameter that would tell.
        self.register_buffer("anchor", torch.zeros(1), persistent=False)
        self.post_init()

    @property
    def device(self) -> torch.device:
        return self.anchor.device

    @property
    def dtype(self) -> torch.dtype:
        return self.anchor.dtype

    def branch_heads(self) -> dict[str, nn.Module]:
        return {}

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        raise ValueError("This model has no encoder, and so no token embeddings.")

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None, text_ids=None, **answering):
        """Arguments as in [`XMTCPreTrainedModel`]; labels are ignored, since there is no loss."""
        if not self.text_experts():
            raise ValueError("This model has no expert yet: call `glocal_xml.experts.fit_experts` first.")
        mask = checked_mask(input_ids, attention_mask)
        texts = SimpleNamespace(token_ids=input_ids.masked_fill(mask.eq(0), PADDING_LABEL), recorded={})
        return self.answer(None, {}, texts, text_ids, **answering)
