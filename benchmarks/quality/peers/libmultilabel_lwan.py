"""
LibMultiLabel's `BERTAttention` around MiniLM: label-wise attention over the tokens of an encoder, as in BERT-LWAN.
Lightning's timer keeps the time budget.
"""

import logging
from datetime import timedelta

import numpy as np
import torch
from exchange import minilm_path, run_peer
from libmultilabel.nn.data_utils import get_dataset_loader
from libmultilabel.nn.nn_utils import init_device, init_model, init_trainer, set_seed
from lightning.pytorch.callbacks import ModelCheckpoint, Timer
from transformers import AutoTokenizer


def train(task, texts, labels):
    set_seed(task.seed)
    device = init_device(use_cpu=True)
    # It sorts names of labels, so that numbers of equal length keep their order.
    classes = [f"{i:07d}" for i in range(len(task.label_names()))]
    tokenizer = AutoTokenizer.from_pretrained(minilm_path())
    rows = [{"text": text, "label": [classes[i] for i in row]} for text, row in zip(texts, labels, strict=True)]
    model = init_model(
        "BERTAttention",
        {"lm_weight": minilm_path(), "lm_window": task.settings["max_length"]},
        classes,
        learning_rate=task.settings["learning_rate"],
        optimizer="adamw",
        monitor_metrics=["P@1"],
        val_metric="P@1",
        silent=True,
        save_k_predictions=min(task.top_k, len(classes)),
    )
    trainer = init_trainer(str(task.folder), silent=True, use_cpu=True, save_checkpoints=False)
    # Lightning would save a checkpoint after every epoch.
    trainer.callbacks = [part for part in trainer.callbacks if not isinstance(part, ModelCheckpoint)]
    trainer.callbacks.append(Timer(duration=timedelta(minutes=task.minutes)))
    trainer.fit(model, _loader(task, rows, classes, tokenizer, device, shuffle=True))
    return model, trainer, tokenizer, classes, device


def predict(task, model, texts):
    network, trainer, tokenizer, classes, device = model
    rows = [{"text": text, "label": []} for text in texts]
    found = trainer.predict(network, _loader(task, rows, classes, tokenizer, device, shuffle=False))
    ids, logits = (np.concatenate([part[name] for part in found]) for name in ("top_k_pred", "top_k_pred_scores"))
    return ids, 1 / (1 + np.exp(-logits))


def save(model, folder):
    torch.save(model[0].network.state_dict(), folder / "network.pt")


def _loader(task, rows, classes, tokenizer, device, *, shuffle):
    # Loading in this process: cores are few.
    size, length = task.settings["batch_size"], task.settings["max_length"]
    return get_dataset_loader(rows, classes, device, length, size, shuffle, data_workers=0, tokenizer=tokenizer)


if __name__ == "__main__":
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    run_peer(train, predict, save, ["libmultilabel", "lightning", "transformers", "torch", "numpy"])
