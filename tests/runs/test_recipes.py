"""Every recipe can be read, and the model it asks for can be configured."""

from pathlib import Path

import pytest
import torch
from transformers import BertConfig, XLNetConfig

from glocal_xml.data import tree_level_sizes
from glocal_xml.loading.start_model import make_config
from glocal_xml.modeling import FAMILIES, WordLSTMConfig
from glocal_xml.runs.word_encoder import check_word_options
from glocal_xml.training import parameter_groups, parse_arguments

RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*/*.yaml"))


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"glocal_xml", "me_xml", "aplc_xlnet", "light_attention"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe(path, tmp_path):
    model, data, training = parse_arguments([str(path), "--output_dir", str(tmp_path)])
    assert data.train_file and model.encoder
    config_class = next(config for config in FAMILIES if config.model_type == model.model_type)
    # Sizes as of the encoders that are asked for, roughly: without the Hub they cannot be looked up.
    if model.encoder == "word_lstm":
        check_word_options(model.encoder_options)
        encoder = WordLSTMConfig()
    elif "xlnet" in model.encoder:
        encoder = XLNetConfig()
    else:
        encoder = BertConfig(num_hidden_layers=6 if model.encoder == "minilm" else 12)
    levels = {}
    if model.label_tree is not None:
        options = {name: value for name, value in model.label_tree.items() if name != "features"}
        levels = {"tree_levels": tree_level_sizes(1000, **options)}
    config = make_config(config_class, model.model_config, encoder=encoder, num_labels=1000, **levels)
    with torch.device("meta"):
        untrained = FAMILIES[config_class](config)
    # A rate that decides no parameter is refused.
    assert parameter_groups(
        untrained,
        learning_rate=1.0,
        module_learning_rates=training.module_learning_rates,
        weight_decay=0.0,
        decayed=set(),
    )
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert header.startswith("#")
    assert any(command in header for command in ("run_xmtc.py", "make demo", "glocal-xml"))
