"""A text as the parts of a model read it: its start by the encoder, all of it by the experts."""

import torch
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import PADDING_LABEL

Spans = list[tuple[int, int]]
# Tokens of the text that cover no word, such as one for a blank.
BETWEEN_WORDS = "between words"


class EncodedText:
    """
    Tokens of one text, of which the encoder reads at most `max_length`, and where they stand in it.

    Attributes:
        inputs, head_inputs: What the model takes, with and without the ids of the whole text that experts read.
        head_spans: Where the tokens that the encoder reads start and end, in characters; none without an encoder.
        text_spans: Where all tokens do.
        is_cut: Whether the encoder reads a part of the text alone.
    """

    def __init__(
        self, model: XMTCPreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None
    ):
        if not tokenizer.is_fast:
            raise ValueError(f"{type(tokenizer).__name__} does not tell where its tokens stand; use its fast variant.")
        self.text = text
        # Not `verbose`: a length beyond what the encoder reads is no reason to warn.
        whole = tokenizer(text, add_special_tokens=False, verbose=False)
        self.text_spans: Spans = whole.encodings[0].offsets or [(0, 0)]
        self.text_ids = torch.tensor([whole["input_ids"] or [PADDING_LABEL]], device=model.device)
        self.head_spans: Spans = []
        self.is_cut, self.head_inputs = False, {"input_ids": self.text_ids}
        if model.encoder is not None:
            special = tokenizer.num_special_tokens_to_add()
            if max_length is not None and not special < max_length < 2**31:
                raise ValueError(f"`max_length` is {max_length}; give a number above {special}, the special tokens.")
            encoding = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
            if not encoding["input_ids"].numel():
                # A tokenizer of words alone makes nothing of an empty text, but an unknown word of a space.
                encoding = tokenizer(" ", return_tensors="pt")
            self._start = encoding.encodings[0]
            self.head_spans, self.is_cut = self._start.offsets, bool(self._start.overflowing)
            self.head_inputs = {name: value.to(model.device) for name, value in encoding.items()}
        self.inputs = {**self.head_inputs, **({"text_ids": self.text_ids} if model.text_experts() else {})}

    def wordless_name(self, token: int) -> str:
        """What a token that covers no word is called; those of the whole text come behind those of the encoder."""
        is_special = token < len(self.head_spans) and self._start.special_tokens_mask[token]
        return self._start.tokens[token] if is_special else BETWEEN_WORDS

    @property
    def encoder_characters(self) -> int:
        """How many characters the encoder reads."""
        spans = [(start, end) for start, end in self.head_spans if end > start]
        return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0
