"""Tiny models of every family with experts and a blend, and one without an encoder."""

import copy
import functools
import sys
from pathlib import Path

import numpy as np
import torch
from expert_texts import TOKENS, texts_that_tell_labels
from tiny_encoders import ENCODER_CONFIGS

from glocal_xml.experts import fit_lexical, fit_memory
from glocal_xml.experts.memory import extended
from glocal_xml.experts.token_rows import padded_ids
from glocal_xml.modeling import FAMILIES, DenseMemory, TextExpertsConfig, TextExpertsForMultiLabel

sys.path.append(str(Path(__file__).parents[1] / "modeling"))
from test_families import CASES, LABEL_COUNTS, NUM_LABELS, tell_about_labels

TEXT_EXPERTS = "text_experts"
# Each family, with and without a tree; a shortlist is the other way not to score all labels.
FAMILY_CASES = ["aplc_xlnet-tails", "glocal_xml", "light_attention", "me_xml"]
TREE_CASES = ["glocal_xml-tree", "light_attention-tree", "me_xml-clusters"]
SHORTLIST = "glocal_xml-shortlist"
MODELS = [TEXT_EXPERTS, *FAMILY_CASES, *TREE_CASES, SHORTLIST]


@functools.cache
def fitted_experts(num_labels):
    rows, labels = texts_that_tell_labels(160, num_labels)
    lexical = fit_lexical(rows, labels, num_labels, TOKENS, cluster_size=8, workers=1, show_progress=False)
    return {"lexical": lexical, "memory": fit_memory(rows, labels, num_labels, TOKENS, neighbors=20)}


def dense_memory(model):
    """The embeddings of the same texts, as the encoder of a model makes them."""
    rows, labels = texts_that_tell_labels(160, NUM_LABELS)
    ids = padded_ids(rows)
    embeddings = model.document_embeddings(ids.clamp(min=0), (ids >= 0).long())
    memory = DenseMemory(NUM_LABELS, embeddings.shape[1], 0, 0, neighbors=20, power=4.0)
    memory.center.copy_(embeddings.mean(dim=0))
    return extended(memory, memory.direction(embeddings).numpy(), labels)


def make_model(case, *, blend=True, experts=("lexical", "memory", "dense"), **fields):
    """A model in evaluation mode, whose heads and experts both count."""
    torch.manual_seed(0)
    if case == TEXT_EXPERTS:
        model = TextExpertsForMultiLabel(TextExpertsConfig(num_labels=NUM_LABELS, top_k=5, **fields))
    else:
        config_class, own = CASES["glocal_xml" if case == SHORTLIST else case]
        own = {**own, **({"shortlist": 6} if case == SHORTLIST else {}), **fields}
        config = config_class(encoder=ENCODER_CONFIGS["bert"]().to_dict(), num_labels=NUM_LABELS, top_k=5, **own)
        model = FAMILIES[config_class](config)
        tell_about_labels(model)
        model.start_epoch(99)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if not name.startswith("encoder."):
                    parameter.normal_(std=0.5)
    for name in experts:
        if name != "dense":
            expert, sizes = fitted_experts(NUM_LABELS)[name]
            model.set_expert(name, copied(expert), dict(sizes))
        elif case != TEXT_EXPERTS:
            model.set_expert(name, *dense_memory(model))
    if blend:
        model.set_blend(make_blend(model.branch_names), log_frequencies())
    model.set_label_names([f"name {i}" for i in range(NUM_LABELS)])
    return model.eval()


def copied(expert):
    """So that no test changes the expert of another."""
    return copy.deepcopy(expert)


def make_blend(branch_names):
    weights = {name: 0.4 + 0.3 * i for i, name in enumerate(branch_names)}
    further = {"lexical_bend": -0.3, "memory_vote": 0.7, "dense_vote": 0.2}
    weights |= {name: weight for name, weight in further.items() if name.split("_")[0] in branch_names}
    weights |= {"frequency": 0.6, "bias": -0.25}
    return {"weights": weights, "threshold": 0.4, "f": "micro", "beta": 1.0, "texts": 100}


def log_frequencies():
    return np.log((LABEL_COUNTS.numpy() + 1) / 200).astype(np.float32)


def make_inputs(texts=8, tokens=9, side="right"):
    """Texts of different lengths with special tokens around them, padded on one side."""
    generator = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(texts):
        length = int(torch.randint(1, tokens - 1, (1,), generator=generator))
        rows.append([2, *torch.randint(5, TOKENS, (length,), generator=generator).tolist(), 3])
    width = max(map(len, rows))
    padding = [[0] * (width - len(row)) for row in rows]
    ids = [pad + row if side == "left" else row + pad for row, pad in zip(rows, padding, strict=True)]
    ids = torch.tensor(ids)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def all_scores(model, inputs, **fields):
    """Probabilities of all labels in each branch and in the end."""
    return model.score_labels(torch.arange(NUM_LABELS), **inputs, **fields)


def assert_same_scores(first, second, **tolerance):
    assert first.keys() == second.keys()
    for name, values in first.items():
        torch.testing.assert_close(second[name], values, **{"rtol": 1e-4, "atol": 1e-5, **tolerance})
