"""The dense memory: document embeddings of training texts, made by the trained encoder of a model."""

import time
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.experts import DENSE, DenseMemory

from .embeddings import text_embeddings
from .memory import NEIGHBORS, POWER, extended
from .texts import ExpertTexts


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
        model: A model with an encoder.
        texts: The texts, and names of labels.
        tokenizer: The tokenizer of the model; its `model_max_length` is how much of a text is read.
        first: The number of the first text in explanations; by default they continue after the highest one.
        embedded: What [`embed`] gives of the texts, where it is known already.
        seconds: Time to spend: where it is too short for all texts, a random part of them is remembered.
        neighbors: How many texts vote, in a new memory.
        power: Power of the similarity in a vote, in a new memory.
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
    """
    Document embeddings of texts and of names of labels.

    Args:
        embeddings: Of shape (texts, hidden); those of texts first.
        labels: Label ids of each.
        numbers: Which text each is, counted from 0; -1 for a name.
    """

    embeddings: torch.Tensor
    labels: list[list[int]]
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
