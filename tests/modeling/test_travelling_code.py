"""Which files travel with a checkpoint: what the model needs, and nothing else."""

import pytest
import torch
from plain_candidates import make_tree
from tiny_encoders import ENCODER_CONFIGS
from transformers.dynamic_module_utils import get_relative_import_files

import glocal_xml.modeling as room
from glocal_xml.modeling import (
    FAMILIES,
    APLCXLNetConfig,
    GlocalXMLConfig,
    LightAttentionConfig,
    MemoryExpert,
    MEXMLConfig,
    TextExpertsConfig,
    TextExpertsForMultiLabel,
)

SHARED = {"configuration_base", "encoder", "fused_loss", "label_scores", "modeling_base", "pipeline_xmtc"}
SHARED |= {"linear_head", "text_windows"}
ATTENTION, EXPERTS = {"attention_head"}, {"experts", "token_counts"}
WORDS = {"configuration_word_lstm", "modeling_word_lstm"}
CASES = {
    GlocalXMLConfig: SHARED | ATTENTION | {"configuration_glocal_xml", "modeling_glocal_xml"},
    MEXMLConfig: SHARED | ATTENTION | {"configuration_me_xml", "modeling_me_xml"},
    APLCXLNetConfig: SHARED | {"adaptive_clusters", "configuration_aplc_xlnet", "modeling_aplc_xlnet"},
    LightAttentionConfig: SHARED | ATTENTION | WORDS | {"configuration_light_attention", "modeling_light_attention"},
    TextExpertsConfig: SHARED | EXPERTS | {"configuration_text_experts", "modeling_text_experts"},
}
MOST_FILES, MOST_LINES = 13, 3000


def saved_files(config, folder):
    model = {**FAMILIES, TextExpertsConfig: TextExpertsForMultiLabel}[type(config)](config)
    model.set_label_counts(range(1, config.num_labels + 1))
    if getattr(config, "tree_levels", None):
        model.set_label_tree(*make_tree(config.num_labels, config.tree_levels))
    model.save_pretrained(folder)
    return {path.stem: len(path.read_text().splitlines()) for path in folder.glob("*.py")}


@pytest.mark.parametrize("config_class", CASES, ids=lambda config: config.model_type)
def test_only_what_the_family_uses_travels(config_class, tmp_path):
    encoder = None if config_class is TextExpertsConfig else ENCODER_CONFIGS["bert"]()
    files = saved_files(config_class(encoder=encoder, num_labels=9), tmp_path)
    print(f"{config_class.model_type}: {len(files)} files, {sum(files.values())} lines: {', '.join(sorted(files))}")
    assert files.keys() == CASES[config_class]
    assert len(files) <= MOST_FILES and sum(files.values()) <= MOST_LINES


def test_glocal_xml_takes_twelve_files_at_most():
    assert len(CASES[GlocalXMLConfig]) <= 12 and len(CASES[GlocalXMLConfig] | EXPERTS) <= MOST_FILES


def blend_of(model):
    weights = dict.fromkeys((*model.branch_names, "frequency", "bias"), 0.5)
    return {"weights": weights, "threshold": 0.5, "f": "micro", "beta": 1.0, "texts": 9}


@pytest.mark.parametrize("config_class", FAMILIES, ids=lambda config: config.model_type)
def test_experts_travel_with_models_that_have_some_or_a_blend(config_class, tmp_path):
    model = FAMILIES[config_class](config_class(encoder=ENCODER_CONFIGS["bert"](), num_labels=9))
    sizes = {"tokens": 20, "texts": 2, "entries": 3, "labels": 4, "neighbors": 1, "power": 1.0}
    model.set_expert("memory", MemoryExpert(9, **sizes), sizes)
    model.save_pretrained(tmp_path / "expert")
    model.set_expert("memory", None, None)
    model.set_blend(blend_of(model), torch.zeros(9))
    model.save_pretrained(tmp_path / "blend")
    model.set_blend(None, None)
    model.save_pretrained(tmp_path / "neither")
    for name, more in {"expert": EXPERTS, "blend": EXPERTS, "neither": set()}.items():
        assert {path.stem for path in (tmp_path / name).glob("*.py")} == CASES[config_class] | more


@pytest.mark.parametrize("config_class", [GlocalXMLConfig, MEXMLConfig, LightAttentionConfig])
def test_a_tree_travels_with_models_that_have_one(config_class, tmp_path):
    config = config_class(encoder=ENCODER_CONFIGS["bert"](), num_labels=9, tree_levels=[3])
    own = {f"modeling_{config_class.model_type}_tree", "label_tree", "modeling_tree"}
    assert saved_files(config, tmp_path).keys() == CASES[config_class] | own


def test_code_for_split_labels_stays_at_home():
    for config_class, model_class in FAMILIES.items():
        for owner in (config_class, model_class, model_class.tree_class or model_class):
            file = f"{room.__path__[0]}/{owner.__module__.rsplit('.', 1)[-1]}.py"
            assert not [path for path in get_relative_import_files(file) if "label_shards" in path]
