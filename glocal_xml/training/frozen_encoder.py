"""Training of a head on document embeddings that are made once: the encoder stays as it is."""

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from tqdm.auto import tqdm

from glocal_xml.data import XMTCCollator
from glocal_xml.modeling import GlocalXMLForMultiLabel, XMTCPreTrainedModel

_BATCH = 256
# An epoch takes seconds. Rates are for embeddings of unit length, since the step of a logit grows with their length.
_EPOCHS, _RATE, _OTHER_RATE, _WARMUP = 10, 0.1, 1e-3, 0.1


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
    num_texts: int | None = None,
    seed: int = 42,
    seconds: float | None = None,
    show_progress: bool = True,
) -> dict[str, Any]:
    """
    Trains the head of a model on embeddings of texts, for several epochs that take seconds each. With many labels and
    few texts for each this serves better than an epoch or less of training head and encoder together, which spoils
    what the encoder knows before the head has learned anything.

    The model must be one that [`reads_one_embedding`], as `model.document_embeddings` makes them. What comes behind
    the first `num_texts` embeddings, such as names of labels, is scaled to the mean length of these: MiniLM's
    embeddings of names are five times as long. The learning rate falls with the `seconds`, where these are given.
    Returns what `results.json` tells of the training.
    """
    table, pooler = model.global_head.label_embeddings, model.pooler
    first = table if pooler is None else pooler
    # Centred embeddings brought a point of P@3 in trials. The bias takes up the mean, so that predictions need none.
    center = embeddings[:num_texts].mean(dim=0) * (first.bias is not None)
    _move_bias(first, center)
    embeddings = embeddings - center
    length = embeddings[:num_texts].norm(dim=1).mean()
    if num_texts is not None:
        names = nn.functional.normalize(embeddings[num_texts:], dim=1) * length
        embeddings = torch.cat([embeddings[:num_texts], names])
    if pooler is not None:
        with torch.no_grad():
            length = pooler(embeddings[:num_texts].to(model.device)).norm(dim=1).mean()
    # Pooler and biases have the default rate of other training.
    others = [*([] if pooler is None else pooler.parameters()), *([] if table.bias is None else [table.bias])]
    groups = [{"params": [table.weight], "peak": _RATE / float(length)}, {"params": others, "peak": _OTHER_RATE}]
    # As in other training: gradients of a mean over labels are tiny.
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], eps=1e-12, weight_decay=0.0)
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
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * min(1.0, (progress + 0.01) / _WARMUP) * (1 - progress)
        documents = embeddings[batch].to(model.device)
        documents = documents if pooler is None else pooler(documents)
        loss = model.global_head(documents).loss(padded[batch].to(model.device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    bar.close()
    _move_bias(first, -center)
    passed = time.monotonic() - begun
    ends = range(per_epoch, len(losses) + 1, per_epoch)
    return {
        "steps": len(losses),
        "epochs": round(len(losses) / per_epoch, 3),
        "seconds": round(passed, 1),
        "texts_per_second": round(len(losses) * _BATCH / max(passed, 1e-3), 1),
        "loss_curve": [[end, float(torch.stack(losses[end - per_epoch : end]).mean())] for end in ends],
    }


@torch.no_grad()
def _move_bias(layer: nn.Linear, center: torch.Tensor) -> None:
    """Changes the bias of a layer so that it gives for `x - center` what it gave for `x`."""
    if layer.bias is not None:
        layer.bias += layer.weight @ center.to(layer.weight)
