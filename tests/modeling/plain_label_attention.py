"""The heads over labels written as in the paper: (texts, labels, ·) tensors are built, and autograd does the rest.

Reference of the tests and of `benchmarks/label_attention.py`; shares no code with the package.
"""

import torch
from torch import nn


def plain_attention_logits(head, hidden_states, attention_mask):
    """GlocalXML eq. 3-6 for all labels of a `LabelAttention`, in the order of the paper: weighted sum, then MLP."""
    keys = hidden_states @ head.key.weight.T  # (texts, tokens, hidden)
    values = hidden_states @ head.value.weight.T + head.value.bias  # (texts, tokens, hidden)
    scores = torch.einsum("ld,btd->blt", head.label_embeddings.weight, keys) / head.temperature
    scores = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf)  # (texts, labels, tokens)
    read = torch.softmax(scores, dim=-1) @ values  # (texts, labels, hidden)
    inner = torch.relu(nn.functional.linear(read, head.mlp_hidden.weight, head.mlp_hidden.bias))
    for layer in head.mlp_further:
        inner = torch.relu(nn.functional.linear(inner, layer.weight, layer.bias))
    logits = nn.functional.linear(inner, head.mlp_output.weight, head.mlp_output.bias).squeeze(-1)
    return logits if head.label_bias is None else logits + head.label_bias  # (texts, labels)


def plain_classifier_logits(head, document_embedding):
    """GlocalXML eq. 2 for all labels of a `LabelClassifier`."""
    logits = document_embedding @ head.label_embeddings.weight.T
    return logits if head.label_bias is None else logits + head.label_bias  # (texts, labels)


def plain_loss(logits, labels):
    """Mean binary cross-entropy against the multi-hot matrix."""
    target = torch.zeros_like(logits)
    for row, ids in zip(target, labels, strict=True):
        row[ids[ids >= 0]] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(logits, target)
