"""Every recipe can be read, and the model it asks for can be configured."""

from pathlib import Path

import pytest
from transformers import BertConfig, XLNetConfig

from glocal_xml.modeling import FAMILIES
from glocal_xml.modeling.configuration_base import make_config
from glocal_xml.training import parse_arguments

RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*/*.yaml"))


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"glocal_xml", "me_xml", "aplc_xlnet"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe(path, tmp_path):
    model, data, training = parse_arguments([str(path), "--output_dir", str(tmp_path)])
    assert data.train_file and model.encoder
    config_class = next(config for config in FAMILIES if config.model_type == model.model_type)
    # Sizes as of the encoders that are asked for, roughly: without the Hub they cannot be looked up.
    encoder = XLNetConfig() if "xlnet" in model.encoder else BertConfig()
    config = make_config(config_class, model.model_config, encoder=encoder, num_labels=1000)
    assert config.model_type == model.model_type
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert header.startswith("#")
    assert any(command in header for command in ("run_xmtc.py", "make demo", "glocal-xml analyse"))
    assert all(rate > 0 for rate in training.module_learning_rates.values())
