"""The dense memory: document embeddings of training texts, made by the trained encoder of a model."""

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
    embedded: tuple[torch.Tensor, np.ndarray] | None = None,
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
        texts: The texts. Names of labels are left out.
        tokenizer: The tokenizer of the model; its `model_max_length` is how much of a text is read.
        first: The number of the first text in explanations; by default they continue after the highest one.
        embedded: What [`text_embeddings`] gives of the texts, where it is known already.
        seconds: Time to spend: where it is too short for all texts, a random part of them is remembered.
        neighbors: How many texts vote, in a new memory.
        power: Power of the similarity in a vote, in a new memory.
        show_progress: Whether to show a bar, on a terminal.
    """
    options = {"seconds": seconds, "show_progress": show_progress}
    embeddings, chosen = embedded or text_embeddings(model, texts.rows, tokenizer, **options)
    memory = model.dense
    if memory is None:
        memory = DenseMemory(model.config.num_labels, embeddings.shape[1], 0, 0, neighbors, power)
        memory.center.copy_(embeddings.mean(dim=0))
    if first is None:
        first = 1 + max([-1, *memory.text_numbers.tolist()])
    directions = memory.direction(embeddings.to(memory.center.device)).cpu().numpy()
    model.set_expert(DENSE, *extended(memory, directions, [texts.labels[i] for i in chosen], first + chosen))
