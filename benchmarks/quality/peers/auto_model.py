"""
Transformers' `AutoModelForSequenceClassification` for several labels: binary cross-entropy, AdamW, a rate that rises
for a tenth of the time budget and then falls to 0, batches of similar lengths.
"""

import time

import numpy as np
import torch
from exchange import best_of_scores, minilm_path, run_peer
from transformers import AutoModelForSequenceClassification, AutoTokenizer


def train(task, texts, labels):
    started = time.perf_counter()
    torch.manual_seed(task.seed)
    num_labels, size = len(task.label_names()), task.settings["batch_size"]
    tokenizer = AutoTokenizer.from_pretrained(minilm_path(), model_max_length=task.settings["max_length"])
    model = AutoModelForSequenceClassification.from_pretrained(
        minilm_path(), num_labels=num_labels, problem_type="multi_label_classification"
    )
    tokens = tokenizer(texts, truncation=True)["input_ids"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=task.settings["learning_rate"], weight_decay=0.01)
    model.train()
    for step, rows in enumerate(_batches(tokens, size, np.random.default_rng(task.seed))):
        progress = (time.perf_counter() - started) / (60 * task.minutes)
        if progress >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = task.settings["learning_rate"] * min(progress / 0.1, (1 - progress) / 0.9)
        targets = torch.zeros(len(rows), num_labels)
        for place, row in enumerate(rows):
            targets[place, labels[row]] = 1
        loss = model(**_padded(tokenizer, [tokens[row] for row in rows]), labels=targets).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}, {100 * progress:.0f} %, loss {loss.item():.4f}", flush=True)
    return tokenizer, model


@torch.inference_mode()
def predict(task, model, texts):
    tokenizer, classifier = model
    classifier.eval()
    tokens = tokenizer(texts, truncation=True)["input_ids"]
    order = np.argsort([len(row) for row in tokens], kind="stable")
    ids, scores = (np.zeros((len(texts), min(task.top_k, classifier.num_labels)), dtype) for dtype in (int, float))
    for start in range(0, len(texts), 32):
        rows = order[start : start + 32]
        logits = classifier(**_padded(tokenizer, [tokens[row] for row in rows])).logits
        ids[rows], scores[rows] = best_of_scores(logits.sigmoid().numpy(), task.top_k)
    return ids, scores


def save(model, folder):
    for part in model:
        part.save_pretrained(folder)


def _batches(tokens, size, random):
    """Rows of batches without end: random chunks of 50 batches, sorted by length, in random order."""
    while True:
        order = random.permutation(len(tokens))
        for start in range(0, len(order), 50 * size):
            chunk = sorted(order[start : start + 50 * size], key=lambda row: len(tokens[row]))
            batches = [chunk[i : i + size] for i in range(0, len(chunk), size)]
            for batch in random.permutation(len(batches)):
                yield batches[batch]


def _padded(tokenizer, rows):
    return tokenizer.pad({"input_ids": rows}, return_tensors="pt")


if __name__ == "__main__":
    run_peer(train, predict, save, ["transformers", "torch", "numpy"])
