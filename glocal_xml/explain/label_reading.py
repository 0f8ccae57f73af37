"""Which words each label read."""

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel

from .explanation import Explanation, LabelExplanation, most_read
from .words import read_words

ALL_BRANCHES = "all"


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
    Explains the best labels of a text, or given ones, by the words that label-word attention reads.

    Sub-words are joined to words. Attention tells what a label looked at; it is no proof that the words caused the
    score, least of all the part of it that branches without attention bring (see `LabelExplanation.local_share`).

    Args:
        model: A trained model with label-word attention and label names.
        tokenizer: Its (fast) tokenizer.
        text: The text.
        labels: Names of the labels to explain; by default the best `top_k`.
        top_k: How many labels to explain.
        num_words: How many of the words read most to give per label.
        max_length: Longest text in tokens; by default what the tokenizer was saved with, the length in training.
        branch: Which branch's attention to show, such as the expert `A-6`; by default the first that has one. `"all"`
            gives the mean of all, each with the weight of its probability for the label.
    """
    if model.label_names is None:
        raise ValueError("The model has no label names; give them with `model.set_label_names`.")
    if num_words < 0:
        raise ValueError(f"`num_words` must be at least 0, got {num_words}.")
    attending = model.attention_heads()
    branch = next(iter(attending)) if branch is None else branch
    if branch not in (*attending, ALL_BRANCHES):
        raise ValueError(f"`branch` must be one of {', '.join(attending)} or {ALL_BRANCHES!r}, got {branch!r}.")
    # Half of a character, which no tokenizer reads, becomes one character, so that places stay.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    encoding = _encode(tokenizer, text, max_length)
    inputs = {name: value.to(model.device) for name, value in encoding.items()}
    if labels is None:
        label_ids = model.predict_top_k(**inputs, top_k=top_k).top_k_ids[0]
    else:
        label_ids = _ids_of(labels, model.label_names).to(model.device)
    scores = {name: values[0] for name, values in model.score_labels(label_ids, **inputs).items()}  # (labels,) each
    final = scores.pop("final")
    shares = _branch_shares(scores)
    shown = {name: shares[name] for name in (attending if branch == ALL_BRANCHES else [branch])}
    weights = sum(
        share.unsqueeze(1) * model.label_word_attention(label_ids, **inputs, branch=name)[0]
        for name, share in shown.items()
    ) / sum(shown.values()).unsqueeze(1)  # (labels, tokens)
    words, word_weights = read_words(text, encoding.encodings[0].offsets, weights)
    local_share = sum(shares[name] for name in attending)  # (labels,)
    return Explanation(
        text=text,
        words=words,
        labels=[
            LabelExplanation(
                label=model.label_names[label],
                score=final[row].item(),
                branch_scores={name: values[row].item() for name, values in scores.items()},
                local_share=local_share[row].item(),
                word_weights=word_weights[row].tolist(),
                words=most_read(words, word_weights[row].tolist(), num_words),
            )
            for row, label in enumerate(label_ids.tolist())
        ],
        branch=branch,
        truncated=bool(encoding.encodings[0].overflowing),
    )


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, max_length: int | None) -> BatchEncoding:
    if not tokenizer.is_fast:
        raise ValueError(f"{type(tokenizer).__name__} does not tell where its tokens stand; use its fast variant.")
    encoding = tokenizer(text, truncation=True, max_length=max_length, return_tensors="pt")
    # A tokenizer of words alone makes nothing of an empty text, but an unknown word of a space.
    return encoding if encoding["input_ids"].numel() else tokenizer(" ", return_tensors="pt")


def _ids_of(labels: list[str], names: list[str]) -> torch.Tensor:
    """Ids of labels, refusing unknown ones."""
    ids = {name: i for i, name in enumerate(names)}
    unknown = [name for name in labels if name not in ids]
    if unknown or not labels:
        raise ValueError(f"The model has no labels {unknown}; `model.label_names` lists those it has.")
    return torch.tensor([ids[name] for name in labels])


def _branch_shares(scores: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What part of the sum of the probabilities each branch brings, of shape (labels,)."""
    # So that branches count alike where all are 0.
    probabilities = {name: values.clamp(min=1e-12) for name, values in scores.items()}
    total = sum(probabilities.values())
    return {name: values / total for name, values in probabilities.items()}
