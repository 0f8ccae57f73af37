"""Which words speak for a label and which against it, or what it read."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import evaluation_mode

from .explanation import ALL_BRANCHES, ATTENTION, CONTRIBUTIONS, Explanation, LabelExplanation, strongest_words
from .words import ReadWords

# Tokens of the text that cover no word, such as one for a blank.
BETWEEN_WORDS = "between words"


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
    Explains the best labels of a text, or given ones, by its words.

    With `attention_scoring="evidence"` every word has a signed contribution to the logit of a label in a branch; with
    special tokens and the bias of the label they sum to that logit (with a label tree, to what the label has of its
    own, given its cluster). With `attention_scoring="mlp"` words have attention weights, which tell what a label
    looked at; they are no proof that the words caused the score. Neither says anything about the part of the score
    that branches bring which do not read words (see `LabelExplanation.local_share`).

    Sub-words are joined to words, and their numbers summed.

    Args:
        model: A trained model with label-word attention and label names.
        tokenizer: Its (fast) tokenizer.
        text: The text.
        labels: Names of the labels to explain; by default the best `top_k`.
        top_k: How many labels to explain.
        num_words: How many of the words that matter most to give per label.
        max_length: Longest text in tokens; by default what the tokenizer was saved with, the length in training.
        branch: Which branch to explain, such as the expert `A-6`; by default the first that reads words. `"all"` gives
            the mean of all of these, each with the weight of its probability for the label; contributions then sum to
            the mean of their logits.
    """
    if model.label_names is None:
        raise ValueError("The model has no label names; give them with `model.set_label_names`.")
    if num_words < 0:
        raise ValueError(f"`num_words` must be at least 0, got {num_words}.")
    attending = model.attention_branches()
    branch = attending[0] if branch is None else branch
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
    local_share = sum(shares[name] for name in attending)  # (labels,)
    shown = {name: shares[name] for name in (attending if branch == ALL_BRANCHES else [branch])}
    total = sum(shown.values())
    shown = {name: share / total for name, share in shown.items()}
    attention = _mean_of_branches(model.label_word_attention, shown, label_ids, inputs)  # (labels, tokens)
    read = ReadWords(text, encoding.encodings[0].offsets)
    word_weights = read.sums(attention).tolist()
    contributions: list[dict[str, Any]] = [{} for _ in word_weights]
    if model.config.attention_scoring == "evidence":
        contributions = _contributions(model, shown, label_ids, inputs, read, encoding)
    explained = [
        LabelExplanation(
            label=model.label_names[label],
            score=final[row].item(),
            branch_scores={name: values[row].item() for name, values in scores.items()},
            local_share=local_share[row].item(),
            word_weights=word_weights[row],
            words=[],
            **contributions[row],
        )
        for row, label in enumerate(label_ids.tolist())
    ]
    for label in explained:
        label.words = strongest_words(read.words, label.word_values, num_words)
    return Explanation(
        text=text,
        words=read.words,
        labels=explained,
        branch=branch,
        truncated=bool(encoding.encodings[0].overflowing),
        measure=CONTRIBUTIONS if model.config.attention_scoring == "evidence" else ATTENTION,
    )


def _mean_of_branches(
    values: Callable[..., torch.Tensor],
    shown: dict[str, torch.Tensor],
    label_ids: torch.Tensor,
    inputs: dict[str, torch.Tensor],
) -> torch.Tensor:
    """What branches give for the tokens of one text, weighted by (labels,) each, of shape (labels, tokens)."""
    # In double precision on the CPU: sums over many tokens then lose nothing of what the model computed.
    return sum(
        share.cpu().double().unsqueeze(1) * values(label_ids, **inputs, branch=name)[0].cpu().double()
        for name, share in shown.items()
    )


def _contributions(
    model: XMTCPreTrainedModel,
    shown: dict[str, torch.Tensor],
    label_ids: torch.Tensor,
    inputs: dict[str, torch.Tensor],
    read: ReadWords,
    encoding: BatchEncoding,
) -> list[dict[str, Any]]:
    """The fields of each label that add up to its logit."""
    of_tokens = _mean_of_branches(model.word_contributions, shown, label_ids, inputs)
    biases = sum(share.cpu().double() * _biases(model, name, label_ids) for name, share in shown.items())  # (labels,)
    clusters = _cluster_scores(model, label_ids, inputs)
    names, is_special = encoding.encodings[0].tokens, encoding.encodings[0].special_tokens_mask
    fields = []
    for row, of_words in enumerate(read.sums(of_tokens).tolist()):
        others: dict[str, float] = {}
        for token in read.wordless:
            name = names[token] if is_special[token] else BETWEEN_WORDS
            others[name] = others.get(name, 0.0) + of_tokens[row, token].item()
        fields.append(
            {
                "word_contributions": of_words,
                "other_contributions": others,
                "bias": biases[row].item(),
                "logit": sum(of_words) + sum(others.values()) + biases[row].item(),
                "cluster_score": None if clusters is None else clusters[row].item(),
            }
        )
    return fields


@torch.no_grad()
def _biases(model: XMTCPreTrainedModel, branch: str, label_ids: torch.Tensor) -> torch.Tensor:
    """Biases of labels in a branch, of shape (labels,)."""
    table, shard = model.branch_heads()[branch].label_embeddings, getattr(model, "label_shard", None)
    if not model.config.label_bias:
        return torch.zeros(len(label_ids), dtype=torch.double)
    # Labels may be split over processes, each with the biases of its own.
    biases = (
        table.biases(label_ids)
        if shard is None
        else shard.collect(lambda ids: table.biases(ids).unsqueeze(0), label_ids)[0]
    )
    return biases.cpu().double()


def _cluster_scores(
    model: XMTCPreTrainedModel, label_ids: torch.Tensor, inputs: dict[str, torch.Tensor]
) -> torch.Tensor | None:
    """Probabilities of the ways down the label tree to the clusters of labels, (labels,); none without a tree."""
    if not model.config.tree_levels:
        return None
    with torch.no_grad(), evaluation_mode(model):
        return model(**inputs, output_scores=True).scores.paths(label_ids.unsqueeze(0))[0].sigmoid()


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
