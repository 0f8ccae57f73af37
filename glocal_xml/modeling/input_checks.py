"""Checks of what models are called with: errors that say what to do, instead of nonsense or an obscure failure."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers.configuration_utils import PreTrainedConfig

PADDING_LABEL = -100


def position_limit(encoder: nn.Module) -> int | None:
    """Longest text that an encoder has positions for; `None` where it has no table of them."""
    table = getattr(getattr(encoder, "embeddings", None), "position_embeddings", None)
    if not isinstance(table, nn.Embedding):
        return None
    # Encoders such as RoBERTa count positions from behind their padding id.
    return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)


def check_inputs(
    input_ids: torch.Tensor, attention_mask: torch.Tensor | None, max_tokens: int | None = None
) -> torch.Tensor:
    """Checks token ids and attention mask; returns the mask, all ones where none is given."""
    if input_ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"`input_ids` must hold token ids as integers, got {input_ids.dtype}.")
    if input_ids.dim() != 2 or input_ids.numel() == 0:
        raise ValueError(
            f"`input_ids` must have the shape (texts, tokens) each at least 1, got {tuple(input_ids.shape)}; "
            "skip empty batches."
        )
    if max_tokens is not None and input_ids.shape[1] > max_tokens:
        raise ValueError(
            f"The texts have {input_ids.shape[1]} tokens, but the encoder has positions for {max_tokens}; "
            "tokenise with `truncation=True` and a `max_length` of at most that."
        )
    if attention_mask is None:
        return torch.ones_like(input_ids)
    if attention_mask.shape != input_ids.shape:
        raise ValueError(
            f"`attention_mask` has the shape {tuple(attention_mask.shape)}, `input_ids` {tuple(input_ids.shape)}; "
            "they must be equal."
        )
    # An exported program cannot decide by what texts hold.
    if not torch.compiler.is_exporting() and not attention_mask.any(dim=1).all():
        row = attention_mask.any(dim=1).int().argmin().item()
        raise ValueError(
            f"Text {row} of the batch has no attended token; tokenise with special tokens, so that an empty text "
            "still has some."
        )
    return attention_mask


def check_all_logits(config: PreTrainedConfig) -> None:
    """Refuses a caller that reads the logits of all labels, where a model gives none."""
    if config.num_labels > config.max_logits_labels:
        raise ValueError(
            f"This pipeline reads the logits of all labels; the model gives them for up to {config.max_logits_labels} "
            f'labels and has {config.num_labels}: take `pipeline("extreme-multi-label-classification")`, or raise '
            "`config.max_logits_labels`."
        )


def check_labels(labels: torch.Tensor, num_labels: int, num_texts: int) -> torch.Tensor:
    """Checks padded label ids and turns a repeated id of a text into padding, so that it counts once."""
    if labels.dtype not in (torch.int64, torch.int32, torch.int16, torch.uint8):
        raise ValueError(
            f"`labels` must hold label ids as integers, padded with {PADDING_LABEL}, got {labels.dtype}; "
            "turn a multi-hot matrix into lists of the ids that are 1."
        )
    if labels.dim() != 2 or labels.shape[0] != num_texts:
        raise ValueError(
            f"`labels` must have the shape (texts, most labels of a text) with {num_texts} texts, "
            f"got {tuple(labels.shape)}."
        )
    labels = labels.long().sort(dim=1).values  # (texts, positives)
    if labels.numel() == 0:
        return labels
    lowest, highest = labels.min().item(), labels.max().item()
    if highest >= num_labels:
        raise ValueError(
            f"`labels` holds the id {highest}, but the model has {num_labels} labels (ids 0 to {num_labels - 1}); "
            "build the model with `num_labels` of the label space, or drop labels it does not know."
        )
    if lowest < 0 and ((labels < 0) & (labels != PADDING_LABEL)).any():
        wrong = labels[(labels < 0) & (labels != PADDING_LABEL)][0].item()
        raise ValueError(f"`labels` holds the id {wrong}; ids start at 0 and padding is {PADDING_LABEL}.")
    repeated = labels[:, 1:] == labels[:, :-1]
    return torch.cat([labels[:, :1], labels[:, 1:].masked_fill(repeated, PADDING_LABEL)], dim=1)


def check_label_ids(label_ids: torch.Tensor, num_labels: int, input_ids: torch.Tensor) -> torch.Tensor:
    """Checks chosen labels, the same for every text or per text; returns ids of shape (texts, chosen)."""
    label_ids = torch.as_tensor(label_ids, device=input_ids.device)
    if label_ids.dtype not in (torch.int64, torch.int32) or label_ids.dim() not in (1, 2):
        raise ValueError(
            "`label_ids` must be integers of the shape (chosen,) or (texts, chosen), "
            f"got {label_ids.dtype} of shape {tuple(label_ids.shape)}."
        )
    if label_ids.dim() == 2 and len(label_ids) != len(input_ids):
        raise ValueError(f"`label_ids` has {len(label_ids)} rows for {len(input_ids)} texts.")
    if label_ids.numel() and not (label_ids.min() >= 0 and label_ids.max() < num_labels):
        raise ValueError(
            f"`label_ids` must lie in 0 to {num_labels - 1}, got {label_ids.min().item()} to {label_ids.max().item()}."
        )
    return label_ids.expand(len(input_ids), -1).long()


def check_candidate_ids(candidate_ids: Sequence[int] | torch.Tensor, num_labels: int) -> torch.Tensor:
    """Checks labels to choose from; returns their ids as a tensor."""
    ids = torch.as_tensor(candidate_ids)
    if ids.dtype not in (torch.int64, torch.int32) or ids.dim() != 1 or len(ids) == 0:
        raise ValueError(
            "`candidate_ids` must be integers of the shape (candidates,) with at least one, "
            f"got {ids.dtype} of shape {tuple(ids.shape)}; leave it out to choose from all labels."
        )
    if not (ids.min() >= 0 and ids.max() < num_labels):
        raise ValueError(
            f"`candidate_ids` must lie in 0 to {num_labels - 1}, got {ids.min().item()} to {ids.max().item()}."
        )
    return ids.long()


def check_label_counts(label_counts: Sequence[int] | torch.Tensor, num_labels: int) -> torch.Tensor:
    """Checks how many training texts each label has; returns the counts as a tensor."""
    counts = torch.as_tensor(label_counts)
    if counts.is_floating_point() or counts.shape != (num_labels,):
        raise ValueError(
            f"`label_counts` must hold one whole number for each of the {num_labels} labels, got {counts.dtype} of "
            f"shape {tuple(counts.shape)}; `LabelSpace.counts` has them."
        )
    if counts.min() < 0 or counts.max() == 0:
        raise ValueError(
            f"`label_counts` must not be negative nor all zero, got {counts.min().item()} to {counts.max().item()}; "
            "give the number of training texts of each label."
        )
    return counts
