"""From a text of any length to what fits into an encoder: its start, or windows over all of it; and their labels."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .label_scores import MeanProbability, TopLabels

TokenFields = dict[str, list[int]]
# How the scores of windows make that of their text.
WINDOW_SCORES = ("max", "mean")
# Windows that go through the encoder together: more would only take memory.
_WINDOWS_AT_ONCE = 32

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


def all_token_ids(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """The ids of all tokens of each text, special ones left out, however long it is."""
    if not tokenizer.is_fast:
        # Not `verbose`: a length beyond what the encoder reads is no reason to warn.
        return tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
    # Without places and masks, in half the time; truncation and padding may be left from an earlier call.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


class TextStarts:
    """
    What an encoder reads of a text, made of the ids of all of its tokens: experts need these too, and a long text is
    tokenised once. Equal to what the tokenizer gives for the text with `truncation=True`.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        if tokenizer.is_fast:
            # Special tokens stand before and behind a text, whatever it is; not every vocabulary knows the letter.
            words = (word for word in ("a", *tokenizer.get_vocab()) if word not in tokenizer.all_special_tokens)
            text, word = next((text, ids) for text in words if (ids := all_token_ids(tokenizer, [text])[0]))
            self.framed = dict(tokenizer(text))
            ids, self.size = self.framed["input_ids"], len(word)
            self.before = next(i for i in range(len(ids)) if ids[i : i + self.size] == word)
            self.special = len(ids) - self.size

    def __call__(self, token_ids: list[int], max_length: int | None) -> TokenFields:
        """Token fields of at most `max_length` tokens, special ones included."""
        if not self.tokenizer.is_fast:
            return dict(self.tokenizer.prepare_for_model(token_ids, truncation=True, max_length=max_length))
        if max_length is not None and max_length <= self.special:
            raise ValueError(
                f"`max_length` is {max_length}, but {self.special} special tokens are added to a text; give at least "
                f"{self.special + 1}."
            )
        room = len(token_ids) if max_length is None else min(len(token_ids), max_length - self.special)
        first = 0 if self.tokenizer.truncation_side == "right" else len(token_ids) - room
        before, behind, fields = self.before, self.before + self.size, {}
        for name, values in self.framed.items():
            own = token_ids[first : first + room] if name == "input_ids" else values[before : before + 1] * room
            fields[name] = values[:before] + own + values[behind:]
        return fields


def checked_overlap(overlap: int | None, max_length: int) -> int:
    """How many tokens windows share: a quarter of one where it was left open; not more than half."""
    overlap = max_length // 4 if overlap is None else overlap
    if not isinstance(overlap, int) or not 0 <= overlap <= max_length // 2:
        raise ValueError(f"`window_overlap` must be whole, 0 to {max_length // 2}, half a window, got {overlap}.")
    return overlap


def text_windows(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int, overlap: int) -> list[TokenFields]:
    """
    Tokens of windows that together cover a text, each of at most `max_length`, special ones included.

    Windows start and end between words, so that every word is whole in one of them, unless it is longer than a window.
    Each shares at most `overlap` tokens with the one before.
    """
    if not tokenizer.is_fast:
        raise ValueError(f"Windows need a fast tokenizer, to know where words end; got {type(tokenizer).__name__}.")
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
    Runs of at most `size` tokens, as first and end, that cover all tokens and every word that fits whole; a run starts
    with at most `overlap` tokens of the one before. `words` has the word that each token belongs to.
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


@dataclass
class WindowLabels:
    """The best labels of texts that were read in windows."""

    ids: Tensor  # (texts, top_k)
    scores: Tensor  # (texts, top_k), probabilities
    branch_scores: Tensor  # (texts, top_k, branches), with what probability branches take part in the scores
    branch_ids: Tensor  # (texts, branches, top_k), the best labels of each branch on its own


@torch.no_grad()
def best_of_windows(
    model: PreTrainedModel,
    fields: dict[str, Tensor],
    counts: Sequence[int],
    score: str,
    top_k: int,
    candidate_ids: Tensor | None = None,
) -> WindowLabels:
    """
    The best labels of texts, of all or of candidates, (candidates,), from the token fields of their windows, (windows,
    tokens), of which each text has so many (`counts`). The `score` of a text is the `"max"` or `"mean"` over windows.
    What is the best of a window or of one of its branches is scored on all windows. The model must be in evaluation
    mode.
    """
    parts = zip(*(values.split(_WINDOWS_AT_ONCE) for values in fields.values()), strict=True)
    batches = [dict(zip(fields, part, strict=True)) for part in parts]
    scores = [model(**batch, output_logits=False, output_scores=True).scores for batch in batches]
    best = [part.best(top_k, candidate_ids) for part in scores]
    # Of each window and of each of its branches: (windows, labels).
    best = [torch.cat([one.ids, *([] if one.branch_ids is None else one.branch_ids.unbind(1))], dim=1) for one in best]
    found = [ids.unique() for ids in torch.cat(best).split(list(counts))]  # in order, of each text
    # The labels of its text for every window; the last one repeated where others have more.
    most = max(len(ids) for ids in found)
    rows = torch.stack([nn.functional.pad(ids[None], (0, most - len(ids)), "replicate")[0] for ids in found])
    rows = rows.repeat_interleave(torch.tensor(counts, device=rows.device), dim=0).split(_WINDOWS_AT_ONCE)
    parts = [
        torch.stack([branch.chosen(ids) for branch in part.branches.values()])
        for part, ids in zip(scores, rows, strict=True)
    ]
    logits = torch.cat(parts, dim=1)  # (branches, windows, labels)
    texts = [
        _best_of_text(scores[0], ids, of_text[..., : len(ids)], score, top_k)
        for ids, of_text in zip(found, logits.split(list(counts), dim=1), strict=True)
    ]
    return WindowLabels(*(torch.stack(values) for values in zip(*texts, strict=True)))


def _best_of_text(
    scores: MeanProbability, label_ids: Tensor, logits: Tensor, score: str, top_k: int
) -> tuple[Tensor, ...]:
    """The fields of [`WindowLabels`] for one text, from logits of its labels, (branches, windows, labels)."""
    final, branches = scores.combined(list(logits), label_ids).sigmoid(), logits.sigmoid()  # (windows, labels), …
    if score == "mean":
        final, shares = final.mean(dim=0), branches.mean(dim=1)
        alone = shares
    else:
        # The branches of the same window, whose mean the score is.
        final, window = final.max(dim=0)
        shares = branches.gather(1, window.expand(len(branches), 1, -1)).squeeze(1)  # (branches, labels)
        alone = branches.amax(dim=1)
    # Columns, since what the branches bring is wanted too; they are in the order of the ids.
    scores, columns = TopLabels(top_k).update(torch.cat([final[None], alone]), 0).result()
    return label_ids[columns[0]], scores[0], shares[:, columns[0]].T, label_ids[columns[1:]]
