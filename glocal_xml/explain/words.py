"""Words of a text with their places, and the values of tokens brought to them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from tokenizers import Regex, pre_tokenizers

# Scripts that put no spaces between words: each character stands alone there.
_ALONE = r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
_LETTER = rf"(?:(?![{_ALONE}])[\p{{L}}\p{{M}}\p{{N}}])"
# `\X` is a character as a reader sees it, such as an emoji with all that belongs to it.
_WORD = rf"{_LETTER}+(?:['’]{_LETTER}+)*|(?![\s\p{{Cc}}\p{{Cf}}])\X"
_SPLITTER = pre_tokenizers.Split(Regex(_WORD), "removed", invert=True)


@dataclass(frozen=True)
class Word:
    """
    One occurrence of a word.

    Args:
        text: The word as it stands in the text.
        start: Where it starts, in characters.
        end: Where it ends; `text[start:end]` of the whole text is the word.
    """

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
    The words that tokens cover, to which values of tokens are brought.

    Args:
        text: The text.
        token_spans: Where each token starts and ends in it, in characters; equal numbers for special tokens.

    Attributes:
        words: The words in the order of the text.
        wordless: The tokens that cover no word: special ones, blanks.
    """

    def __init__(self, text: str, token_spans: Sequence[tuple[int, int]]):
        words = split_words(text)
        word_at: list[int | None] = [None] * len(text)
        for number, word in enumerate(words):
            word_at[word.start : word.end] = [number] * (word.end - word.start)
        self._number = len(token_spans)
        self._tokens, places, self._shares, self.wordless = [], [], [], []
        for token, (start, end) in enumerate(token_spans):
            numbers = word_at[start:end]
            if numbers and numbers[0] is not None and numbers[0] == numbers[-1]:
                # Within one word, as most are: counting takes long where there are many.
                covered = Counter({numbers[0]: len(numbers)})
            else:
                covered = Counter(number for number in numbers if number is not None)
            if not covered:
                self.wordless.append(token)
            for number, characters in covered.items():
                self._tokens.append(token)
                places.append(number)
                self._shares.append(characters / covered.total())
        read = sorted(set(places))
        columns = {number: column for column, number in enumerate(read)}
        self._columns = [columns[number] for number in places]
        self.words = [words[number] for number in read]

    def sums(self, values: torch.Tensor) -> torch.Tensor:
        """
        Values of tokens, of shape (labels, tokens), summed over each word, (labels, words). What belongs to a token
        that covers several words is shared out by their characters in it. Tokens beyond those given have none.
        """
        values = torch.nn.functional.pad(values, (0, self._number - values.shape[1]))
        return values.new_zeros(len(values), len(self.words)).index_add(
            1,
            torch.tensor(self._columns, dtype=torch.long, device=values.device),
            values[:, self._tokens] * values.new_tensor(self._shares),
        )
