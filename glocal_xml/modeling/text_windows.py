"""From a text of any length to what fits into an encoder: its start, or windows over all of it."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

TokenFields = dict[str, list[int]]

# Tokens of ordinary texts have about five; those of the start of a text are rarely so long that more are needed.
_CHARACTERS_PER_TOKEN = 16


def readable_text(text: str) -> str:
    """The text as a tokenizer can read it: halves of characters are replaced, and an empty text is a space."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    # A tokenizer without special tokens would leave nothing to read.
    return text or " "


def text_start(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None) -> TokenFields:
    """Tokens of a text, cut off after `max_length` of them; no more of a long text is tokenised than is needed."""
    if max_length is None:
        return dict(tokenizer(text))
    characters = _CHARACTERS_PER_TOKEN * max_length
    while characters < len(text) and tokenizer.truncation_side == "right":
        tokens = tokenizer(_whole_words(text, characters), truncation=True, max_length=max_length)
        if len(tokens["input_ids"]) == max_length:
            return dict(tokens)
        # Long stretches of blanks, or of what is one token however long.
        characters *= 8
    return dict(tokenizer(text, truncation=True, max_length=max_length))


def checked_overlap(overlap: int | None, max_length: int) -> int:
    """How many tokens windows share: a quarter of one where it was left open; not more than half."""
    overlap = max_length // 4 if overlap is None else overlap
    if not 0 <= overlap <= max_length // 2:
        raise ValueError(f"`window_overlap` must lie in 0 to {max_length // 2}, half a window, got {overlap}.")
    return overlap


def text_windows(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int, overlap: int) -> list[TokenFields]:
    """
    Tokens of windows that together cover a text. Windows start and end between words, so that every word is whole in
    one of them, unless it is longer than a window.

    Args:
        tokenizer: A fast tokenizer.
        text: The text.
        max_length: Most tokens of a window, special ones included.
        overlap: How many tokens a window shares with the one before, at most: it starts at a word.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"Windows need a fast tokenizer, which knows where words end; got {type(tokenizer).__name__}."
        )
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    size = max_length - tokenizer.num_special_tokens_to_add()
    if size < 1:
        raise ValueError(
            f"Windows of {max_length} tokens have no room beside special ones; give {max_length - size + 1}."
        )
    if len(encoding["input_ids"]) <= size:
        return [dict(tokenizer(text, truncation=True, max_length=max_length))]
    ends = [end for _, end in encoding["offset_mapping"]]
    pieces = [
        # From where the last token ended: some tokenizers tell by the blank before a word that it starts there.
        text[ends[first - 1] if first else 0 : ends[stop - 1]]
        for first, stop in window_runs(encoding.word_ids(0), size, overlap)
    ]
    fields = tokenizer(pieces, truncation=True, max_length=max_length)
    return [{name: values[row] for name, values in fields.items()} for row in range(len(pieces))]


def window_runs(words: Sequence[int | None], size: int, overlap: int) -> list[tuple[int, int]]:
    """
    Runs of at most `size` tokens, as first and end, that cover all tokens and every word that fits whole.

    Args:
        words: The word that each token belongs to.
        size: Most tokens of a run.
        overlap: How many tokens of the run before a run starts with, at most.
    """
    starts = [i == 0 or word is None or word != words[i - 1] for i, word in enumerate(words)] + [True]
    runs, first = [], 0
    while True:
        stop = min(first + size, len(words))
        # Back to the start of a word, unless one word fills the window.
        stop = next((i for i in range(stop, first, -1) if starts[i]), stop)
        runs.append((first, stop))
        if stop == len(words):
            return runs
        # The overlap must leave room for the word that did not fit.
        next_end = next(i for i in range(stop + 1, len(words) + 1) if starts[i])
        earliest = max(stop - overlap, next_end - size, first + 1)
        first = next((i for i in range(earliest, stop) if starts[i]), stop)


def _whole_words(text: str, length: int) -> str:
    """The start of a text, at most so many characters, without the first part of a word; one word as it is."""
    start = text[:length]
    words = start.rsplit(maxsplit=1)
    return start[: start.rindex(words[-1])] if len(words) > 1 else start
