"""Every recipe starts, trains and evaluates: as it is, but with a tiny encoder and on tiny data."""

from pathlib import Path

import pytest
from tiny_tables import write_sets

from glocal_xml.cli.train import main
from glocal_xml.training import parse_arguments

RECIPES = sorted((Path(__file__).parents[2] / "examples" / "recipes").glob("*/*.yaml"))


@pytest.fixture(scope="module")
def workplace(papers_encoders):
    """A folder with encoders of six layers, as MiniLM has, and data."""
    folder = papers_encoders(6)
    write_sets(folder)
    return folder


def test_there_are_recipes():
    assert {path.stem for path in RECIPES} >= {"glocal_xml", "me_xml_part", "aplc_xlnet", "light_attention"}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe(path, workplace, tmp_path):
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert header.startswith("#")
    assert any(command in header for command in ("run_xmtc.py", "make demo", "glocal-xml"))
    model, data, training = parse_arguments([str(path), "--output_dir", str(tmp_path)])
    assert data.train_file and model.encoder
    changes = {
        name: str(workplace / "data" / "wiki500k" / f"{name[:-5]}.jsonl") for name in ("train_file", "test_file")
    }
    if model.encoder == "word_lstm":
        vectors = str(workplace / "data" / "glove.840B.300d.txt")
        changes["encoder_options"] = str(model.encoder_options | {"vectors": vectors}).replace("'", '"')
    else:
        name = "xlnet-base-cased" if model.model_type == "aplc_xlnet" else "bert-base-uncased"
        changes["encoder"] = str(workplace / name)
    # A time budget is what ends a run that has one.
    changes |= {"max_steps": "2", "save_strategy": "no"} if training.minutes is None else {"minutes": "0.02"}
    flags = [word for name, value in changes.items() for word in (f"--{name}", value)]
    label_texts = [] if data.label_texts_file is None else ["--label_texts_file", str(_names(tmp_path))]
    results = main([str(path), *flags, *label_texts, "--use_cpu", "--output_dir", str(tmp_path / "run")])
    assert results["settings"]["model"]["model_config"] == model.model_config
    assert 0 <= next(iter(results["test"].values()))["precision@1"] <= 1


def _names(folder):
    path = folder / "names.tsv"
    path.write_text("".join(f"label {i}\tthe name of {i}\n" for i in range(5)), encoding="utf-8")
    return path
