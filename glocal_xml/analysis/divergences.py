"""How far the branches of a model disagree: Jensen-Shannon and Kullback-Leibler divergence of their probabilities."""

from collections.abc import Iterable
from itertools import combinations
from typing import Any

import torch

from glocal_xml.modeling import XMTCPreTrainedModel
from glocal_xml.modeling.encoder import evaluation_mode
from glocal_xml.modeling.label_scores import mean_probability_logits
from glocal_xml.modeling.modeling_me_xml import bernoulli_kl


def bernoulli_jsd(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Jensen-Shannon divergence of the two Bernoulli distributions of each pair of logits, in nats: at most log 2."""
    middle = mean_probability_logits([first, second])
    return (bernoulli_kl(first, middle) + bernoulli_kl(second, middle)) / 2


@torch.no_grad()
def branch_divergences(model: XMTCPreTrainedModel, batches: Iterable[dict[str, torch.Tensor]]) -> dict[str, Any]:
    """
    Divergences of every pair of branches in their listed order, over texts with labels, in label chunks.

    Returns the numbers of `texts`, `labels` and `positives` (true labels that the model knows), and per pair:

    - `jsd`: mean over texts and labels of the Jensen-Shannon divergence. Sigmoid scores form no single distribution
      over the labels, so each label is one of its own.
    - `kl_per_text`: mean over texts of the sum of KL(first || second) over the text's true labels, which is minus
      eq. 6 of ME-XML with lambda = 1 on true labels and 0 on others, as in its figure 2.
    - `kl_per_positive`: the same sum divided by the number of true labels, free of how many labels a text has.
    """
    jsd, kl = (dict.fromkeys(combinations(model.branch_names, 2), 0.0) for _ in range(2))
    texts, positives, num_labels = 0, 0, model.config.num_labels
    with evaluation_mode(model):
        for batch in batches:
            inputs = {name: value.to(model.device) for name, value in batch.items()}
            labels = inputs.pop("labels")
            texts += len(labels)
            positives += int(((labels >= 0) & (labels < num_labels)).sum())
            if not jsd:
                continue
            scores = model(**inputs, output_scores=True).scores
            for start, stop in scores.runs():
                logits = {name: branch.run(start, stop).double() for name, branch in scores.branches.items()}
                inside = (labels >= start) & (labels < stop)  # (texts, most labels of a text)
                true = inside.nonzero()[:, 0], labels[inside] - start
                for first, second in jsd:
                    jsd[first, second] += bernoulli_jsd(logits[first], logits[second]).sum().item()
                    kl[first, second] += bernoulli_kl(logits[first][true], logits[second][true]).sum().item()
    pairs = [
        {
            "first": first,
            "second": second,
            "jsd": jsd[first, second] / max(texts * num_labels, 1),
            "kl_per_text": kl[first, second] / max(texts, 1),
            "kl_per_positive": kl[first, second] / max(positives, 1),
        }
        for first, second in jsd
    ]
    return {"texts": texts, "labels": num_labels, "positives": positives, "pairs": pairs}
