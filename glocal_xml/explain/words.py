"""A text as the parts of a model read it, its words with their places, and the values of tokens brought to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.sparse import csr_matrix
from tokenizers import Regex, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import PADDING_LABEL

Spans = list[tuple[int, int]]
# Scripts that put no spaces between words: each character stands alone there.
_ALONE = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LETTER = rf"(?:(?![{_ALONE}])[\p{{L}}\p{{M}}\p{{N}}])"
# `\X` is a character as a reader sees it, such as an emoji with all that belongs to it.
_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)*|(?![\s\p{{Cc}}\p{{Cf}}])\X"
_SPLITTER = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)


@dataclass(frozen=True)
class Word:
    """One occurrence of a word, as it stands in the text: `text[start:end]` of the whole text is the word."""

    text: str
    start: int
    end: int


def split_words(text: str) -> list[Word]:
    """
    The words of a text, the same for every tokenizer: runs of letters, marks and digits with apostrophes inside them.

    Any other character that can be seen is a word of its own (punctuation, an emoji), and so is every character of
    scripts that are written without spaces.
    """
    return [Word(word, start, end) for word, (start, end) in _SPLITTER.pre_tokenize_str(text)]


class ReadWords:
    """
    The words that tokens cover, in the order of the text, to which values of tokens are brought; and those tokens,
    `wordless`, that cover none: special ones, blanks. Spans are in characters, equal numbers for special tokens.
    """

    def __init__(self, text: str, token_spans: Sequence[tuple[int, int]]):
        words = split_words(text)
        starts, ends = np.array(token_spans, dtype=np.int64).reshape(-1, 2).T
        # An empty text may have been read as a blank.
        word_at = np.full(max(len(text), ends.max(initial=0)), -1)
        for number, word in enumerate(words):
            word_at[word.start : word.end] = number
        # The characters of all tokens, one token after the other, as long as they are part of a word.
        tokens = np.repeat(np.arange(len(starts)), ends - starts)
        covered = word_at[np.arange(len(tokens)) - np.repeat(np.cumsum(ends - starts) - ends, ends - starts)]
        tokens, covered = tokens[covered >= 0], covered[covered >= 0]
        of_tokens = np.bincount(tokens, minlength=len(starts))
        self.wordless = np.flatnonzero(of_tokens == 0).tolist()
        # How many characters of a word a token covers, of all that it covers, (tokens, words).
        shares = csr_matrix((np.ones(len(tokens)), (tokens, covered)), shape=(len(starts), len(words)))
        shares.data /= np.repeat(of_tokens, np.diff(shares.indptr))
        read = np.flatnonzero(shares.getnnz(axis=0))
        self.words, self._shares = [words[number] for number in read], shares[:, read]

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """
        Values of tokens, of shape (labels, tokens), summed over each word, (labels, words). What belongs to a token
        that covers several words is shared out by their characters in it. Tokens beyond those given have none.
        """
        return torch.from_numpy((self._shares[: values.shape[1]].T @ values.cpu().numpy().T).T)


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
        return self._start.tokens[token] if is_special else "between words"

    @property
    def encoder_characters(self) -> int:
        """How many characters the encoder reads."""
        spans = [(start, end) for start, end in self.head_spans if end > start]
        return max(end for _, end in spans) - min(start for start, _ in spans) if spans else 0
