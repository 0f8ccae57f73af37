"""Steps of a training loop with Accelerate that texts or labels split over processes make longer than a line."""

from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.data_loader import prepare_data_loader
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from glocal_xml.training.rankings import rankings

from .split_labels import is_split


def prepare_loop(
    accelerator: Accelerator,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loaders: dict[str, DataLoader],
) -> tuple[torch.nn.Module, Any, dict[str, DataLoader]]:
    """
    Prepares model, optimiser and batches, by part of the data, for the processes of `accelerator`. Every process reads
    its share of the texts; where the labels of the model are split over them, all read the same texts.
    """
    if is_split(model):
        # The model passes gradients between processes itself.
        model, optimizer = accelerator.prepare_model(model, evaluation_mode=True), accelerator.prepare(optimizer)
        alone = {"num_processes": 1, "process_index": 0, "put_on_device": True, "use_seedable_sampler": True}
        prepared = {name: prepare_data_loader(loader, accelerator.device, **alone) for name, loader in loaders.items()}
        return model, optimizer, prepared
    # FSDP wants the optimiser beside the model.
    model, optimizer = accelerator.prepare(model, optimizer)
    return model, optimizer, {name: accelerator.prepare(loader) for name, loader in loaders.items()}


@torch.no_grad()
def gather_rankings(
    accelerator: Accelerator,
    model: torch.nn.Module,
    loader: DataLoader,
    top_k: int,
    *,
    show_progress: bool = False,
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """
    The best labels of all texts of a part, whose batches [`prepare_loop`] has prepared, the same in every process, and
    the labels that the texts have.

    Returns:
        Rankings by name, (texts, labels): `final`, each branch of several, and the `scores` of the final one. Then
        the true labels, padded with -100, (texts, most labels of a text).
    """
    model.eval()
    unwrapped, gathered = accelerator.unwrap_model(model), []
    for batch in tqdm(loader, desc="evaluating", disable=not show_progress, leave=False):
        labels = batch.pop("labels")
        output = model(**batch, top_k=top_k, output_logits=False)
        ranked = rankings(unwrapped, output)
        # Where labels are split, every process has read all texts.
        if not is_split(unwrapped):
            labels = accelerator.pad_across_processes(labels, dim=1, pad_index=-100)
            ranked, labels = accelerator.gather_for_metrics((ranked, labels))
        gathered.append((ranked, labels))
    width = max(labels.shape[1] for _, labels in gathered)
    padded = [torch.nn.functional.pad(labels, (0, width - labels.shape[1]), value=-100) for _, labels in gathered]
    ranked = {name: torch.cat([batch[name] for batch, _ in gathered]).cpu().numpy() for name in gathered[0][0]}
    return ranked, torch.cat(padded).cpu().numpy()
