"""Training of a head on document embeddings that are made once: the encoder stays as it is."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from tqdm.auto import tqdm

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import GlocalXMLForMultiLabel, XMTCPreTrainedModel

_BATCH = 256
# An epoch takes seconds. Rates are for embeddings of unit length, since the step of a logit grows with their length.
_EPOCHS, _RATE, _WARMUP = 10, 0.1, 0.1


def reads_one_embedding(model: XMTCPreTrainedModel) -> bool:
    """Whether all that a model trains besides its encoder is a head over the document embedding of the last layer."""
    config = model.config
    return (
        isinstance(model, GlocalXMLForMultiLabel)
        and config.branches == "global"
        and config.document_layers == 1
        and not config.tree_levels
    )


def train_on_embeddings(
    model: XMTCPreTrainedModel,
    embeddings: torch.Tensor,
    labels: Sequence[Sequence[int]],
    *,
    seed: int = 42,
    seconds: float | None = None,
    show_progress: bool = True,
) -> dict[str, Any]:
    """
    Trains the head of a model on embeddings of texts, for several epochs that take seconds each. With many labels and
    few texts for each this serves better than an epoch or less of training head and encoder together, which spoils
    what the encoder knows before the head has learned anything.

    Args:
        model: A model that [`reads_one_embedding`].
        embeddings: Document embeddings of the training texts, as `model.document_embeddings` makes them.
        labels: Label ids of each text.
        seed: Decides the order of texts.
        seconds: Time to spend; the learning rate falls with it.
        show_progress: Whether to show a bar, on a terminal.

    Returns:
        What `results.json` tells of the training.
    """
    parts = [model.global_head, *([] if model.pooler is None else [model.pooler])]
    parameters = [parameter for part in parts for parameter in part.parameters()]
    rate = _RATE / float(embeddings.norm(dim=1).mean())
    # As in other training: gradients of a mean over labels are tiny.
    optimizer = torch.optim.AdamW(parameters, lr=rate, eps=1e-12, weight_decay=0.0)
    generator, padded = torch.Generator().manual_seed(seed), XMTCCollator.padded_ids(labels)
    per_epoch = -(-len(embeddings) // _BATCH)
    batches = (
        batch for _ in range(_EPOCHS) for batch in torch.randperm(len(embeddings), generator=generator).split(_BATCH)
    )
    steps, losses, begun = _EPOCHS * per_epoch, [], time.monotonic()
    bar = tqdm(batches, desc="training on embeddings", total=steps, disable=None if show_progress else True)
    for step, batch in enumerate(bar):
        passed = 0.0 if seconds is None else (time.monotonic() - begun) / max(seconds, 1e-3)
        if (progress := max(step / steps, passed)) >= 1:
            break
        optimizer.param_groups[0]["lr"] = rate * min(1.0, (progress + 0.01) / _WARMUP) * (1 - progress)
        documents = embeddings[batch].to(model.device)
        documents = documents if model.pooler is None else model.pooler(documents)
        loss = model.global_head(documents).loss(padded[batch].to(model.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    bar.close()
    passed = time.monotonic() - begun
    ends = range(per_epoch, len(losses) + 1, per_epoch)
    return {
        "steps": len(losses),
        "epochs": round(len(losses) / per_epoch, 3),
        "seconds": round(passed, 1),
        "texts_per_second": round(len(losses) * _BATCH / max(passed, 1e-3), 1),
        "loss_curve": [[end, float(torch.stack(losses[end - per_epoch : end]).mean())] for end in ends],
    }
