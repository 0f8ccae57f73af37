"""A whole analysis on a tiny encoder: trained once, measured, drawn, and not trained again."""

import csv
import json
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
from PIL import Image

from glocal_xml.cli import main as command
from glocal_xml.cli.analyse import main
from glocal_xml.runs import run_once


@pytest.fixture(scope="module")
def flags(encoder_folder, text_file, tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysis")
    recipe = folder / "recipe.yaml"
    recipe.write_text(
        f"encoder: {encoder_folder}\n"
        "model_config: {mlp_size: 8, top_k: 4, label_bias: true}\n"
        f"train_file: {text_file('train.jsonl', 64)}\n"
        f"test_file: {text_file('test.jsonl', 16, first=96)}\n"
        "module_learning_rates: {encoder: 3e-3, global_head: 1e-2, local_head: 1e-2}\n"
        "per_device_train_batch_size: 16\nnum_train_epochs: 2\noverwrite_output: true\n"
        "save_strategy: 'no'\nuse_cpu: true\nmetrics_at: 1\n"
        f"output_dir: {folder / 'out'}\n",
        encoding="utf-8",
    )
    return [str(recipe)]


@pytest.fixture(scope="module")
def layers(flags):
    """The study once, for all tests that only look at what it left."""
    return main(["layers", *flags, "--layers", "0", "3", "--seeds", "1", "2"])


@pytest.fixture
def folder(flags):
    return Path(flags[0]).parent / "out"


@pytest.fixture
def no_training(monkeypatch):
    def refuse(*arguments):
        pytest.fail("a point that was done is trained again")

    monkeypatch.setattr(run_once, "run", refuse)


def read_csv(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_leaves_runs_with_results_and_no_weights(layers, folder):
    assert [(measured.point.x, measured.seed) for measured in layers] == [(0, 1), (0, 2), (3, 1), (3, 2)]
    for measured in layers:
        assert json.loads((measured.folder / "results.json").read_text()) == measured.results
        assert json.loads((measured.folder / "divergences.json").read_text()) == measured.divergences
        assert not list(measured.folder.rglob("*.safetensors")) and not list(measured.folder.glob("checkpoint-*"))
        assert not (measured.folder / "README.md").exists(), "a card without its model"
        assert measured.results["settings"]["model"]["model_config"]["local_layer"] == measured.point.x
        assert measured.results["settings"]["training"]["seed"] == measured.seed
        assert measured.divergences["texts"] == 16 and measured.divergences["train_texts"] == 64
    assert layers[0].folder == folder / "runs" / "local_layer=0" / "seed-1"
    assert layers[0].results["test"] != layers[1].results["test"], "seeds differ"


def test_tables_hold_what_the_runs_hold(layers, folder):
    rows = {(row["x"], row["seed"], row["branch"]): row for row in read_csv(folder / "layers" / "branches.csv")}
    bands = {(row["x"], row["seed"], row["branch"]): row for row in read_csv(folder / "layers" / "bands.csv")}
    assert len(rows) == 4 * 4
    for measured in layers:
        for branch, metrics in measured.results["test"].items():
            row = rows[str(measured.point.x), str(measured.seed), branch]
            assert {name: float(row[name]) for name in metrics} == metrics
            band = bands[str(measured.point.x), str(measured.seed), branch]
            # Eight labels of 16 texts each, so that there is one band.
            assert band["band"] == "few" and float(band["macro_f1@5"]) == metrics["macro_f1@5_few"]
    divergences = read_csv(folder / "layers" / "divergences.csv")
    assert [float(row["jsd"]) for row in divergences] == [m.divergences["pairs"][0]["jsd"] for m in layers]


def test_figures_hold_mean_and_range_of_the_seeds(layers, folder):
    both = [100 * measured.results["test"]["both"]["precision@5"] for measured in layers[:2]]
    alone = [100 * measured.results["test"]["global"]["precision@5"] for measured in layers[:2]]
    row = next(
        row for row in read_csv(folder / "layers" / "precision.csv") if (row["curve"], row["x"]) == ("both", "0")
    )
    assert float(row["mean"]) == pytest.approx(sum(both) / 2)
    assert (float(row["least"]), float(row["greatest"])) == (min(both), max(both))
    gain, *_ = read_csv(folder / "layers" / "gain_and_divergence.csv")
    gains = [100 * (a - b) / b for a, b in zip(both, alone, strict=True)]
    assert float(gain["mean"]) == pytest.approx(sum(gains) / 2) and gain["x"] == "0"
    for name in ("precision", "gain_and_divergence"):
        with Image.open(folder / "layers" / f"{name}.png") as image:
            image.verify()
            assert image.format == "PNG" and min(image.size) > 400
        root = ElementTree.parse(folder / "layers" / f"{name}.svg").getroot()
        assert root.tag.endswith("svg")
        written = " ".join(root.itertext())
        assert "64 training and 16 test texts" in written and "layer that the local branch reads" in written


def test_summary_tells_command_paper_and_machine(layers, folder):
    page = (folder / "layers" / "summary.md").read_text()
    for part in ("glocal-xml analyse layers", "arXiv:2204.00933", "**In the paper**", "torch", "threads", "2 seeds"):
        assert part in page
    assert "(precision.png)" in page and "| local layer 3 | both " in page


def test_goes_on_without_training_again(layers, flags, no_training, caplog):
    with caplog.at_level("INFO"):
        again = main(["layers", *flags, "--layers", "0", "3", "--seeds", "1", "2"])
    assert again == layers
    assert caplog.text.count("done before") == 4 and "point 4 of 4: local layer 3, seed 2" in caplog.text


def test_other_settings_are_refused_with_the_remedy(layers, flags, folder):
    # Although the recipe may overwrite its own run.
    argv = ["layers", *flags, "--layers", "0", "--seeds", "1", "--num_train_epochs", "1"]
    with pytest.raises(ValueError, match=r"other settings \(num_train_epochs\).*--overwrite_output true"):
        main(argv)


def test_an_interrupted_point_goes_on_where_it_stopped(flags, tmp_path, monkeypatch, caplog):
    flags = [*flags, "--output_dir", str(tmp_path), "--save_strategy", "epoch"]
    argv = ["layers", *flags, "--layers", "1", "--keep_models"]
    (whole,) = main(argv)
    folder = whole.folder
    assert (folder / "model.safetensors").is_file() and folder == tmp_path / "runs" / "local_layer=1" / "seed-42"
    # Trained, and stopped before it was measured.
    (folder / "divergences.json").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(run_once, "run", lambda *arguments: pytest.fail("trained again"))
        assert main(argv) == [whole]
    # Stopped in the second epoch, while it wrote a checkpoint.
    for name in ("results.json", "divergences.json", "model.safetensors", "checkpoint-8/trainer_state.json"):
        (folder / name).unlink()
    with caplog.at_level("INFO"):
        (resumed,) = main(argv)
    assert f"resuming from {folder / 'checkpoint-4'}" in caplog.text
    assert resumed.divergences == whole.divergences
    # Other settings, with leave to delete the old run.
    (other,) = main([*argv, "--num_train_epochs", "1", "--overwrite_output", "true"])
    assert other.results["settings"]["training"]["num_train_epochs"] == 1
    assert other.divergences != whole.divergences


def test_ablations_of_glocal_xml(flags, tmp_path):
    measured = main(["ablations", *flags, "--max_steps", "1", "--output_dir", str(tmp_path)])
    branches = {m.point.name: [name for name in m.results["test"] if name != "label frequency"] for m in measured}
    assert branches == {
        "both branches": ["both", "global", "local"],
        "stop gradient below local": ["both", "global", "local"],
        "pooler": ["both", "global", "local"],
        "global trained alone": ["global"],
        "local trained alone": ["local"],
    }
    rates = measured[3].results["settings"]["training"]["module_learning_rates"]
    assert rates == {"encoder": 3e-3, "global_head": 1e-2}
    assert "global trained alone" in (tmp_path / "ablations" / "precision.svg").read_text()


def test_help_lists_the_studies(capsys):
    assert command(["analyse", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(
        name in shown for name in ("layers", "experts", "clusters", "partitions", "ablations", "table 3 of ME-XML")
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["layers", "--layers", "9"], "0 (embedding output) to 3"),
        (["experts"], "is about me_xml"),
        (["layers", "--resume_from_checkpoint", "x"], "leave out `--resume_from_checkpoint`"),
        (["layers", "--module_learning_rates", '{"locl_head": 1}'], "'locl_head' decide no parameter"),
        (["sweep"], "the studies are layers"),
    ],
)
def test_mistakes_are_refused_before_training(change, message, flags, no_training, tmp_path, capsys):
    study, *rest = change
    assert command(["analyse", study, *flags, "--output_dir", str(tmp_path), *rest]) == 2
    assert message in capsys.readouterr().err


def test_without_matplotlib_nothing_is_trained(flags, no_training, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert command(["analyse", "layers", *flags, "--output_dir", str(tmp_path)]) == 2
    assert "glocal-xml[analysis]" in capsys.readouterr().err


def test_needs_test_texts_and_an_encoder(encoder_folder, text_file, capsys):
    train = ["--train_file", text_file("t.jsonl", 8)]
    assert command(["analyse", "layers", "--encoder", encoder_folder, *train]) == 2
    assert "--test_file" in capsys.readouterr().err
    assert command(["analyse", "layers", "--model", "x", *train]) == 2
    assert "`--encoder`" in capsys.readouterr().err
