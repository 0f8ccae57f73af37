"""Tiny models with experts and a blend, fitted on texts that name their labels."""

import numpy as np
import torch
from tiny_encoders import ENCODER_CONFIGS, WORDS

from glocal_xml import (
    APLCXLNet,
    APLCXLNetConfig,
    GlocalXMLConfig,
    GlocalXMLForMultiLabel,
    LightAttentionConfig,
    LightAttentionForMultiLabel,
    MEXMLConfig,
    MEXMLForMultiLabel,
)
from glocal_xml.experts import ExpertTexts, add_to_dense, fit_experts
from glocal_xml.modeling import TextExpertsConfig, TextExpertsForMultiLabel

NAMES = WORDS[:6]
FAMILIES = {
    "GlocalXML": (GlocalXMLForMultiLabel, GlocalXMLConfig, {}),
    "GlocalXML, tree": (GlocalXMLForMultiLabel, GlocalXMLConfig, {"tree_levels": [2]}),
    "GlocalXML, mlp": (GlocalXMLForMultiLabel, GlocalXMLConfig, {"attention_scoring": "mlp", "mlp_size": 4}),
    "GlocalXML, global": (GlocalXMLForMultiLabel, GlocalXMLConfig, {"branches": "global"}),
    "ME-XML": (
        MEXMLForMultiLabel,
        MEXMLConfig,
        {"experts": ["D-3", "A-1", "A-2"], "attention_scoring": "evidence"},
    ),
    "LightAttention, tree": (
        LightAttentionForMultiLabel,
        LightAttentionConfig,
        {"tree_levels": [2], "attention_scoring": "evidence"},
    ),
    "APLC-XLNet": (APLCXLNet, APLCXLNetConfig, {}),
    "no encoder": (TextExpertsForMultiLabel, TextExpertsConfig, {}),
}


def training_texts(number=24):
    """Texts with the words of their labels, and others; no word is so frequent that the memory ignores it."""
    generator = np.random.default_rng(0)
    labels = [
        sorted({i % len(NAMES), *([int(generator.integers(len(NAMES)))] if i % 6 == 5 else [])}) for i in range(number)
    ]
    others = [*WORDS[6:], *"abcdefghij"]
    texts = [" ".join([*(NAMES[label] for label in row), *generator.choice(others, 3)]) for row in labels]
    return texts, labels


def blended_model(name, tokenizer, experts=("lexical", "memory", "dense"), encoder="bert", **lexical_options):
    """A model of a family whose labels and biases differ from each other, with experts and a blend."""
    family, config, options = FAMILIES[name]
    torch.manual_seed(0)
    fields = {} if name == "no encoder" else {"encoder": ENCODER_CONFIGS[encoder]()}
    model = family(config(num_labels=len(NAMES), **fields, **options)).eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if any(part in parameter_name for part in ("label_", "level_", "bias")):
                parameter.normal_(std=0.4)
    if options.get("tree_levels"):
        model.set_label_tree([torch.tensor([0, 2, 6])], torch.tensor([3, 0, 4, 1, 2, 5]))
    model.set_label_names(NAMES)
    texts, labels = training_texts()
    counts = np.bincount([label for row in labels for label in row], minlength=len(NAMES))
    model.set_label_counts(counts.tolist())
    fitted = ExpertTexts.from_texts(texts, labels, tokenizer, NAMES)
    fit_experts(model, fitted, tokenizer, experts, workers=1, show_progress=False, **lexical_options)
    if "dense" in experts and model.encoder is not None:
        add_to_dense(model, fitted, tokenizer)
    weights = {branch: 0.4 + 0.3 * i for i, branch in enumerate(model.branch_names)}
    further = {"lexical_bend": -0.3, "memory_vote": 0.7, "dense_vote": 0.4}
    weights |= {name: weight for name, weight in further.items() if name.split("_")[0] in model.text_experts()}
    weights |= {"frequency": -0.2, "bias": 0.3}
    blend = {"weights": weights, "threshold": 0.5, "f": "micro", "beta": 1.0, "texts": 60}
    model.set_blend(blend, torch.tensor(counts).log())
    return model
