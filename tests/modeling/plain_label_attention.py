"""The heads over labels written as in their papers: (texts, labels, ·) tensors are built, and autograd does the rest.

Reference of the tests and of `benchmarks/label_attention.py`; shares no code with the package.
"""

import torch
from torch import nn


def plain_attention_logits(head, hidden_states, attention_mask):
    """GlocalXML eq. 3-6 for all labels of an `AttentionHead`, in the order of the paper: weighted sum, then MLP."""
    keys, values = head.key(hidden_states), head.value(hidden_states)  # (texts, tokens, hidden)
    read = _weights(head, keys, attention_mask) @ values  # (texts, labels, hidden)
    inner = torch.relu(nn.functional.linear(read, head.mlp_hidden.weight, head.mlp_hidden.bias))
    for layer in head.mlp_further:
        inner = torch.relu(nn.functional.linear(inner, layer.weight, layer.bias))
    logits = nn.functional.linear(inner, head.mlp_output.weight, head.mlp_output.bias).squeeze(-1)
    return _with_bias(head, logits)


def plain_evidence_logits(head, hidden_states, attention_mask):
    """Weights times evidence, summed over the tokens, for all labels of an `EvidenceHead`."""
    weights = _weights(head, head.key(hidden_states), attention_mask)
    outputs = head.label_embeddings if head.label_outputs is None else head.label_outputs
    evidence = torch.einsum("lv,btv->blt", outputs.weight, head.value(hidden_states))
    return _with_bias(head, (weights * evidence).sum(dim=-1))


def plain_linear_logits(head, document_embedding):
    """GlocalXML eq. 2 for all labels of a `LinearHead`."""
    return _with_bias(head, document_embedding @ head.label_embeddings.weight.T)


def _weights(head, keys, attention_mask):
    scores = torch.einsum("ld,btd->blt", head.label_embeddings.weight, keys) / head.temperature
    scores = scores.masked_fill(attention_mask[:, None] == 0, -torch.inf)
    return torch.softmax(scores, dim=-1)  # (texts, labels, tokens)


def _with_bias(head, logits):
    bias = head.label_embeddings.bias
    return logits if bias is None else logits + bias  # (texts, labels)


def plain_loss(logits, labels):
    """Mean binary cross-entropy against the multi-hot matrix."""
    target = torch.zeros_like(logits)
    for row, ids in zip(target, labels, strict=True):
        row[ids[ids >= 0]] = 1.0
    return nn.functional.binary_cross_entropy_with_logits(logits, target)
