"""Loss of label-word attention and its gradients, label chunk by label chunk and text by text."""

import torch

from .fused_loss import add_product, gradient_dtype
from .label_scorer import label_chunks
from .losses import LossPair
from .mlp_layers import MLPLayers


def attention_loss(
    needed: tuple[bool, ...],
    keys: torch.Tensor,
    values: torch.Tensor,
    label_embeddings: torch.Tensor,
    output_weight: torch.Tensor,
    output_bias: torch.Tensor,
    label_bias: torch.Tensor | None,
    *further_parameters: torch.Tensor,
    mask: torch.Tensor,
    labels: torch.Tensor,
    temperature: float,
    chunk_size: int,
    loss_pair: LossPair,
) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    """
    Sum of the loss over all texts and labels, and its gradients by all inputs before `mask` where `needed`.

    Within a chunk of labels the texts are gone through one by one, so that what is read again is still in the cache,
    padding costs nothing and no mask enters the softmax. Every large product writes into a buffer made once.

    Args:
        keys, values: Token states as [`LabelAttention.features`] gives them; half precision is read as it is, while
            softmax, loss and all sums of gradients are in single precision.
        further_parameters: Weight and bias of each hidden layer of the MLP after the first.
        mask: The real tokens, of shape (texts, tokens).
        labels: Padded ids of the positive labels.
    """
    low = keys.dtype
    high, backward = torch.promote_types(low, torch.float32), gradient_dtype(low)
    lengths = mask.sum(dim=1).tolist()
    text_keys, text_values = (keys[mask] / temperature).split(lengths), values[mask].split(lengths)
    output_row, output_bias = output_weight.to(high).squeeze(0), output_bias.to(high)  # (mlp,), (1,)

    def start(index: int, *shape: int) -> torch.Tensor | None:
        return keys.new_zeros(shape, dtype=high) if needed[index] else None

    by_keys, by_values = start(0, sum(lengths), keys.shape[2]), start(1, sum(lengths), values.shape[2])
    by_text_keys = None if by_keys is None else by_keys.split(lengths)
    by_text_values = None if by_values is None else by_values.split(lengths)
    by_embeddings = torch.empty_like(label_embeddings, dtype=high) if needed[2] else None
    by_output_weight, by_output_bias = start(3, len(output_row)), start(4, 1)
    by_label_bias = start(5, len(label_embeddings))
    further = MLPLayers(further_parameters, needed[6:], low)

    scores_buffer, weights_buffer = keys.new_empty((2, chunk_size * max(lengths)), dtype=high)
    read_buffer = keys.new_empty((chunk_size, values.shape[2]), dtype=high)
    by_last_buffer = keys.new_empty((chunk_size, len(output_row)), dtype=high)
    total = keys.new_zeros((), dtype=high)
    for chunk in label_chunks(len(label_embeddings), chunk_size):
        embeddings, size = label_embeddings[chunk], chunk.stop - chunk.start  # (labels of the chunk, hidden)
        queries, backward_queries = embeddings.to(low), embeddings.to(backward)
        read, by_last = read_buffer[:size], by_last_buffer[:size]  # (labels of the chunk, mlp)
        for text, (key, value) in enumerate(zip(text_keys, text_values, strict=True)):
            shape = (size, len(key))
            scores = scores_buffer[: size * len(key)].view(shape)  # (labels of the chunk, tokens of the text)
            weights = weights_buffer[: size * len(key)].view(shape)  # (labels of the chunk, tokens of the text)
            add_product(scores, queries, key.T, fresh=True)
            torch.softmax(scores, dim=-1, out=weights)
            add_product(read, weights.to(low), value, fresh=True).clamp_(min=0)
            activations = further.forward(read)
            last = activations[-1]  # (labels of the chunk, width of the last hidden layer)
            unbiased = last @ output_row  # (labels of the chunk,)
            logits = unbiased + output_bias if label_bias is None else unbiased + output_bias + label_bias[chunk]
            loss, by_logits = loss_pair(logits.unsqueeze(0), labels[text : text + 1], chunk.start)
            total += loss
            by_logits = by_logits.squeeze(0)  # (labels of the chunk,)

            if by_label_bias is not None:
                by_label_bias[chunk] += by_logits
            if by_output_bias is not None:
                by_output_bias += by_logits.sum()
            if by_output_weight is not None:
                by_output_weight.addmv_(last.T, by_logits)
            if not (any(needed[:3]) or any(needed[6:])):
                continue
            # The sign of what a ReLU let pass is its derivative.
            torch.sign(last, out=by_last).mul_(output_row).mul_(by_logits.unsqueeze(1))
            by_read = further.backward(activations, by_last)  # (labels of the chunk, mlp)
            if by_values is not None:
                add_product(by_text_values[text], weights.to(backward).T, by_read.to(backward))
            if by_keys is None and by_embeddings is None:
                continue
            # Derivative of the softmax: the mean of `by_weights` under the weights of a label, which it subtracts,
            # is the product of `read` and `by_read`, of which an MLP with one hidden layer has just made the sum.
            mean = (read * by_read).sum(dim=1) if further_parameters else by_logits * unbiased
            by_weights = add_product(scores, by_read.to(backward), value.to(backward).T, fresh=True)
            by_scores = by_weights.sub_(mean.unsqueeze(1)).mul_(weights).to(backward)
            if by_keys is not None:
                add_product(by_text_keys[text], by_scores.T, backward_queries)
            if by_embeddings is not None:
                add_product(by_embeddings[chunk], by_scores, key.to(backward), fresh=text == 0)

    if by_keys is not None:
        by_keys = _padded(by_keys.div_(temperature), mask)
    if by_values is not None:
        by_values = _padded(by_values, mask)
    if by_output_weight is not None:
        by_output_weight = by_output_weight.unsqueeze(0)
    gradients = [by_keys, by_values, by_embeddings, by_output_weight, by_output_bias, by_label_bias]
    return total, gradients + further.gradients


def _padded(packed: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """From (real tokens of all texts, size) to (texts, tokens, size), zero on padding."""
    padded = packed.new_zeros((*mask.shape, packed.shape[1]))
    padded[mask] = packed
    return padded
