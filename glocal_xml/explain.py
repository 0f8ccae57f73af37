"""Which words each label read."""

from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel


@dataclass
class LabelExplanation:
    """
    A predicted label and the words behind it.

    Args:
        label: Name of the label.
        score: Final probability.
        branch_scores: Probability of each branch.
        words: The words that the label read most, with their share of its attention, most first.
    """

    label: str
    score: float
    branch_scores: dict[str, float]
    words: list[tuple[str, float]]


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
) -> list[LabelExplanation]:
    """
    Explains the best labels of a text, or given ones, by the words that label-word attention reads.

    Sub-words are joined to words and a word that occurs several times counts once, with the sum of its weights.
    Attention tells what a label looked at; it is no proof that the words caused the score.

    Args:
        model: A trained model with label-word attention and label names.
        tokenizer: Its (fast) tokenizer.
        text: The text.
        labels: Names of the labels to explain; by default the best `top_k`.
        top_k: How many labels to explain.
        num_words: How many words to give per label.
        max_length: Longest text in tokens; by default what the tokenizer was saved with, the length in training.
        branch: Which branch's attention to show, such as the expert `A-6`; by default the first that has one.
    """
    if model.label_names is None:
        raise ValueError("The model has no label names; give them with `model.set_label_names`.")
    encoding = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    inputs = {name: value.to(model.device) for name, value in encoding.items()}
    if labels is None:
        label_ids = model.predict_top_k(**inputs, top_k=top_k).top_k_ids[0]
    else:
        unknown = [name for name in labels if name not in model.label_names]
        if unknown:
            raise ValueError(f"The model has no labels {unknown}; `model.label_names` lists those it has.")
        label_ids = torch.tensor([model.label_names.index(name) for name in labels], device=model.device)
    scores = model.score_labels(label_ids, **inputs)
    weights = model.label_word_attention(label_ids, **inputs, branch=branch)[0]  # (labels, tokens)
    words = token_words(text, encoding)
    return [
        LabelExplanation(
            label=model.label_names[label],
            score=scores["final"][0, row].item(),
            branch_scores={name: value[0, row].item() for name, value in scores.items() if name != "final"},
            words=most_read(words, weights[row].tolist())[:num_words],
        )
        for row, label in enumerate(label_ids.tolist())
    ]


def token_words(text: str, encoding) -> list[str | None]:
    """The word that each token of a text belongs to; none for special tokens."""
    words: list[str | None] = []
    for position, word in enumerate(encoding.word_ids(0)):
        span = None if word is None else encoding.word_to_chars(0, word)
        words.append(text[span.start : span.end].strip() or None if span is not None else None)
        if span is None and word is not None:
            raise ValueError(f"Token {position} has no place in the text; explanations need a fast tokenizer.")
    return words


def most_read(words: list[str | None], weights: list[float]) -> list[tuple[str, float]]:
    """Words with the sum of the weights of their tokens, most first; tokens outside words are left out."""
    totals: dict[str, float] = {}
    for word, weight in zip(words, weights, strict=True):
        if word is not None:
            totals[word] = totals.get(word, 0.0) + weight
    return sorted(totals.items(), key=lambda item: -item[1])
