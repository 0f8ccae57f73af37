"""Which words speak for a label and which against it, or what it read; with a blend, all that adds to its score."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel

from .blended_logit import (
    LEXICAL,
    LogitParts,
    blended_logit,
    has_evidence,
    label_biases,
    similar_texts,
    tree_paths,
    word_branches,
)
from .explanation import ALL_BRANCHES, ATTENTION, BLEND, CONTRIBUTIONS, Explanation, LabelExplanation, strongest_words
from .words import EncodedText, ReadWords, Word

# A number for every token of the text is kept for each: of a book, fewer labels.
MOST_LABELS, _MOST_NUMBERS = 1000, 2**24


def explain(
    model: XMTCPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    labels: list[str] | None = None,
    top_k: int = 5,
    num_words: int = 5,
    max_length: int | None = None,
    branch: str | None = None,
) -> Explanation:
    """
    Explains the best labels of a text, or given ones.

    With a blend the logit of a label is a weighted sum, and so is its explanation: what each word adds in the branches
    with `attention_scoring="evidence"` and in the lexical expert, what the whole text adds in other heads, what
    similar training texts and the frequency of the label add, and a bias. All sum to the logit of the final score.

    Without a blend one branch is explained. With `attention_scoring="evidence"` every word has a signed contribution
    to the logit of a label in a branch; with special tokens and the bias of the label they sum to that logit (with a
    label tree, to what the label has of its own, given its cluster). With `attention_scoring="mlp"` words have
    attention weights, which tell what a label looked at; they are no proof that the words caused the score. Neither
    says anything of branches that do not read words (see `LabelExplanation.local_share`).

    Args:
        model, tokenizer: A trained model with label names, and with a blend or label-word attention; its (fast)
            tokenizer, whose sub-words are joined to words, and their numbers summed.
        text: The text.
        labels, top_k: Names of the labels to explain; by default the best, so many.
        num_words: How many of the words that matter most to give per label.
        max_length: Longest text in tokens; by default what the tokenizer was saved with, the length in training. The
            experts read all of a text.
        branch: What to explain: `"blend"`, the default where the model has one; or a branch, such as the expert `A-6`,
            by default the first that reads words. `"all"` gives the mean of all of these, each with the weight of its
            probability for the label; contributions then sum to the mean of their logits.
    """
    if model.label_names is None:
        raise ValueError("The model has no label names; give them with `model.set_label_names`.")
    if not isinstance(text, str):
        raise ValueError(f"`text` must be one string, got {type(text).__name__}: explain texts one by one.")
    if labels is not None:
        labels = [labels] if isinstance(labels, str) else list(labels)
    if num_words < 0:
        raise ValueError(f"`num_words` must be at least 0, got {num_words}.")
    if len(labels) > MOST_LABELS if labels is not None else not 1 <= top_k <= MOST_LABELS:
        asked = f"a `top_k` of {top_k:,}" if labels is None else f"{len(labels):,} labels"
        raise ValueError(f"1 to {MOST_LABELS:,} labels of a text can be explained, got {asked}.")
    if model.config.blend is None:
        known = [*model.attention_branches(), ALL_BRANCHES]
    else:
        known = [BLEND, *(attending := _attending(model)), *([ALL_BRANCHES] if attending else [])]
    if branch not in (None, *known):
        raise ValueError(f"`branch` must be one of {', '.join(known)}, got {branch!r}.")
    # Half of a character, which no tokenizer reads, becomes one character, so that places stay.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    encoded = EncodedText(model, tokenizer, text, max_length)
    if labels is None:
        label_ids = model.predict_top_k(**encoded.inputs, top_k=top_k).top_k_ids[0]
    else:
        ids = {name: i for i, name in enumerate(model.label_names)}
        unknown = [name for name in labels if name not in ids]
        if unknown or not labels:
            raise ValueError(f"The model has no labels {unknown}; its `labels.txt` lists those it has.")
        label_ids = torch.tensor([ids[name] for name in labels], device=model.device)
    tokens = max(value.shape[-1] for value in encoded.inputs.values())
    if len(label_ids) > 1 and len(label_ids) * tokens > _MOST_NUMBERS:
        raise ValueError(
            f"The text has {tokens:,} tokens, of which {_MOST_NUMBERS // tokens or 1} labels can be explained, "
            f"got {len(label_ids)}: ask for fewer."
        )
    scores = {name: values[0] for name, values in model.score_labels(label_ids, **encoded.inputs).items()}
    final = scores.pop("final")  # (labels,) each
    branch = branch or known[0]
    words, fields, further = _read(model, encoded, label_ids, scores, branch)
    explained = []
    for row, label in enumerate(label_ids.tolist()):
        of_branches = {name: values[row].item() for name, values in scores.items()}
        found = LabelExplanation(model.label_names[label], final[row].item(), of_branches, words=[], **fields[row])
        found.words = strongest_words(words, found.word_values, num_words)
        explained.append(found)
    return Explanation(text=text, words=words, labels=explained, branch=branch, **further)


def _attending(model: XMTCPreTrainedModel) -> list[str]:
    return [name for name, head in model.branch_heads().items() if hasattr(head, "key")]


def _read(
    model: XMTCPreTrainedModel,
    encoded: EncodedText,
    label_ids: Tensor,
    scores: dict[str, Tensor],
    branch: str,
) -> tuple[list[Word], list[dict[str, Any]], dict[str, Any]]:
    """Words, the fields of each label, and further fields of the explanation."""
    attending, is_blend = _attending(model), branch == BLEND
    adding = word_branches(model) if is_blend else attending if has_evidence(model) else []
    reads_all = LEXICAL in adding
    read = ReadWords(encoded.text, [*encoded.head_spans, *(encoded.text_spans if reads_all else [])])
    # Branches count by their probabilities, and alike where all are 0.
    known = {name: values.cpu().double().clamp(min=1e-12) for name, values in scores.items()}
    shown = attending if branch in (BLEND, ALL_BRANCHES) else [branch]
    total = sum(known[name] for name in shown)

    def mean(of_branch: Callable[[str], Tensor]) -> Tensor:
        return sum((known[name] / total).unsqueeze(1) * of_branch(name).cpu().double() for name in shown)

    def of_tokens(values: Callable[..., Tensor]) -> Tensor:
        return mean(lambda name: values(label_ids, **encoded.head_inputs, branch=name)[0])  # (labels, tokens)

    fields: list[dict[str, Any]] = [{} for _ in label_ids]
    if is_blend:
        fields = _sums(blended_logit(model, encoded, label_ids), encoded, read)
    elif adding:
        biases = mean(lambda name: label_biases(model, name, label_ids).unsqueeze(1))[:, 0]
        fields = _sums(LogitParts(of_tokens(model.word_contributions), {}, biases), encoded, read)
        if (paths := tree_paths(model, label_ids, encoded)) is not None:
            for label, way in zip(fields, paths.sigmoid().tolist(), strict=True):
                label["cluster_score"] = way
    measure = CONTRIBUTIONS if adding or not attending else ATTENTION
    attention = read.sums(of_tokens(model.label_word_attention)).tolist() if attending else [None] * len(fields)
    # Shares are those of a mean, which a blend is not.
    local = sum(known[name] for name in attending) / sum(known.values()) if model.config.blend is None else None
    for row, label in enumerate(fields):
        label |= {"local_share": None if local is None else local[row].item(), "word_weights": attention[row]}
        if measure == ATTENTION:
            label["word_contributions"] = None
    further = {
        "measure": measure,
        "truncated": encoded.is_cut and not reads_all,
        "encoder_characters": encoded.encoder_characters if encoded.is_cut and reads_all else None,
        "similar_texts": similar_texts(model, encoded, label_ids) if is_blend else [],
    }
    return read.words, fields, further


def _sums(parts: LogitParts, encoded: EncodedText, read: ReadWords) -> list[dict[str, Any]]:
    """The fields of each label that add up to its logit."""
    found = []
    for row, of_words in enumerate(read.sums(parts.of_tokens).tolist()):
        others: dict[str, float] = {}
        for token in read.wordless:
            value = parts.of_tokens[row, token].item()
            if value:
                name = encoded.wordless_name(token)
                others[name] = others.get(name, 0.0) + value
        named, bias = {name: values[row].item() for name, values in parts.parts.items()}, parts.bias[row].item()
        addends = {"word_contributions": of_words, "other_contributions": others, "parts": named, "bias": bias}
        found.append({**addends, "logit": sum(of_words) + sum(others.values()) + sum(named.values()) + bias})
    return found
