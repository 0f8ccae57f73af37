"""The dense memory: document embeddings of training texts, made by the trained encoder of a model."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import position_limit
from glocal_xml.modeling.experts import DENSE, DenseMemory
from glocal_xml.modeling.text_windows import TextStarts

from .memory import NEIGHBORS, POWER, extended
from .texts import ExpertTexts

# Texts that go through the encoder together, and that are ordered by length together; the clock is read between these.
_BATCH, _ORDERED = 32, 1024


def add_to_dense(
    model: XMTCPreTrainedModel,
    texts: ExpertTexts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    first: int | None = None,
    embedded: "Embedded | None" = None,
    seconds: float | None = None,
    neighbors: int = NEIGHBORS,
    power: float = POWER,
    show_progress: bool = False,
) -> None:
    """
    Adds document embeddings of texts to the dense memory of a model, which gets one if it has none. To be called when
    the encoder is trained: embeddings of another encoder would be compared with those of this one.

    Args:
        model, texts, tokenizer: The `model_max_length` of the tokenizer is how much of a text is read.
        first: The number of the first text in explanations; by default they continue after the highest one.
        embedded: What [`embed`] gives of the texts, where it is known already.
        seconds: Time to spend: where it is too short for all texts, a random part of them is remembered.
        neighbors, power: How many texts vote in a new memory, and the power of the similarity in a vote.
        show_progress: Whether to show a bar, on a terminal.
    """
    if embedded is None:
        embedded = embed(model, texts, tokenizer, seconds=seconds, show_progress=show_progress)
    memory, embeddings = model.dense, embedded.embeddings
    if memory is None:
        memory = DenseMemory(model.config.num_labels, embeddings.shape[1], 0, 0, neighbors, power)
        memory.center.copy_(embeddings[embedded.numbers >= 0].mean(dim=0))
    if first is None:
        first = 1 + max([-1, *memory.text_numbers.tolist()])
    numbers = np.where(embedded.numbers < 0, -1, first + embedded.numbers)
    directions = memory.direction(embeddings.to(memory.center.device)).cpu().numpy()
    model.set_expert(DENSE, *extended(memory, directions, embedded.labels, numbers.tolist()))


@dataclass
class Embedded:
    """Document embeddings of texts and then of names, (texts, hidden), and the labels and the number of each text."""

    embeddings: torch.Tensor
    labels: list[list[int]]
    # Counted from 0; -1 for a name.
    numbers: np.ndarray


def embed(
    model: XMTCPreTrainedModel,
    texts: ExpertTexts,
    tokenizer: PreTrainedTokenizerBase,
    *,
    seconds: float | None = None,
    show_progress: bool = False,
) -> Embedded:
    """Document embeddings of names of labels, then of all texts or, where time is short, of a random part of them."""
    started = time.monotonic()
    names = text_embeddings(model, texts.name_rows, tokenizer)[0]
    left = None if seconds is None else seconds - (time.monotonic() - started)
    embeddings, chosen = text_embeddings(model, texts.rows, tokenizer, seconds=left, show_progress=show_progress)
    labels = [*(texts.labels[i] for i in chosen), *texts.name_labels]
    return Embedded(torch.cat([embeddings, names]), labels, np.append(chosen, np.full(len(names), -1)))


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
    names = [name for name in ("input_ids", "token_type_ids") if name in fields[0]]
    columns: dict[str, list[torch.Tensor]] = {
        name: [torch.tensor(row[name] or empty) for row in fields] for name in names
    }
    columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    return {name: nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device) for name, rows in columns.items()}
