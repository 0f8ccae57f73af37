"""Document embeddings of texts, made by the encoder of a model."""

import time
from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import position_limit
from glocal_xml.modeling.text_windows import TextStarts

# Texts that go through the encoder together, and that are ordered by length together; the clock is read between these.
_BATCH, _ORDERED = 32, 1024


def text_embeddings(
    model: XMTCPreTrainedModel,
    rows: Sequence[np.ndarray],
    tokenizer: PreTrainedTokenizerBase,
    *,
    seconds: float | None = None,
    show_progress: bool = False,
) -> tuple[torch.Tensor, np.ndarray]:
    """
    Document embeddings of texts, given as the ids of all of their tokens, and the numbers of these texts, ascending:
    all, or a random part where time is short.
    """
    starts, begun, limit = TextStarts(tokenizer), time.monotonic(), position_limit(model.encoder)
    max_length = tokenizer.model_max_length if limit is None else min(tokenizer.model_max_length, limit)
    order = np.arange(len(rows)) if seconds is None else np.random.default_rng(0).permutation(len(rows))
    found: list[torch.Tensor] = []
    done: list[np.ndarray] = []
    with tqdm(total=len(rows), desc="embeddings", unit=" texts", disable=None if show_progress else True) as progress:
        for first in range(0, len(rows), _ORDERED):
            part = order[first : first + _ORDERED]
            # Texts of similar length have little padding.
            part = part[np.argsort([len(rows[i]) for i in part], kind="stable")]
            for start in range(0, len(part), _BATCH):
                batch = part[start : start + _BATCH]
                fields = [starts(rows[i].tolist(), max_length) for i in batch]
                found.append(model.document_embeddings(**_padded(fields, tokenizer, model.device)).float().cpu())
                progress.update(len(batch))
            done.append(part)
            passed, number = time.monotonic() - begun, first + len(part)
            if seconds is not None and passed * (number + _ORDERED) / number > seconds:
                break
    numbers = np.concatenate([np.zeros(0, dtype=np.int64), *done])
    ascending = np.argsort(numbers)
    return torch.cat([torch.zeros(0, model.config.hidden_size), *found])[ascending], numbers[ascending]


def _padded(
    fields: list[dict[str, list[int]]], tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> dict[str, torch.Tensor]:
    # An empty text of a tokenizer without special tokens has a token too.
    empty = [tokenizer.pad_token_id or 0]
    columns = {
        name: [torch.tensor(row[name] or empty) for row in fields]
        for name in ("input_ids", "token_type_ids")
        if name in fields[0]
    }
    masks = [torch.ones_like(ids) for ids in columns["input_ids"]]
    padded: dict[str, torch.Tensor] = {
        name: nn.utils.rnn.pad_sequence(rows, batch_first=True) for name, rows in columns.items()
    }
    padded["attention_mask"] = nn.utils.rnn.pad_sequence(masks, batch_first=True)
    return {name: values.to(device) for name, values in padded.items()}
