"""What `publish` would send of a crafted folder: regular files of the known names in it, and nothing else."""

import json
import os

import pytest

from glocal_xml.cli import main as command
from glocal_xml.hub import model_files
from glocal_xml.hub.published_files import published_files

pytest_plugins = ["local_hub"]


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret.txt"
    path.write_text("private")
    return path


def refused(folder, message):
    with pytest.raises(ValueError, match=message):
        model_files(folder, "me/tiny")


@pytest.mark.parametrize("kind", ["absolute", "parent", "below", "other name", "windows", "number"])
def test_an_index_names_files_beside_it_alone(kind, run_folder, secret):
    (run_folder / "model.safetensors").unlink()
    (run_folder / "below").mkdir()
    (run_folder / "my_notes.txt").write_text("private")
    place = {
        "absolute": str(secret),
        "parent": os.path.relpath(secret, run_folder),
        "below": "below/model-00001-of-00001.safetensors",
        "other name": "my_notes.txt",
        "windows": "..\\model-00001-of-00001.safetensors",
        "number": 3,
    }[kind]
    (run_folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": place}}))
    refused(run_folder, "weight_map|no file in this folder|is missing")


@pytest.mark.parametrize(
    "name",
    [
        *("model.safetensors", "config.json", "labels.txt", "label_counts.json", "tokenizer.json", "README.md"),
        *("results.json", "tokenizer_config.json", "modeling_base.py", "label_tree.npz", "vocab.txt"),
    ],
)
def test_links_are_not_followed(name, run_folder, secret):
    content = (run_folder / name).read_bytes() if (run_folder / name).exists() else b"private"
    secret.write_bytes(b"private" if name == "README.md" else content)
    (run_folder / name).unlink(missing_ok=True)
    (run_folder / name).symlink_to(secret)
    refused(run_folder, f"{name} is a link|no readable config.json")


def test_code_lies_beside_the_weights(run_folder, secret):
    (secret.parent / "theft.py").write_text("private")
    config = json.loads((run_folder / "config.json").read_text())
    for place in (f"{secret.parent}/theft.Model", "../theft.Model", 3):
        config["auto_map"]["AutoModel"] = place
        (run_folder / "config.json").write_text(json.dumps(config))
        refused(run_folder, "no file in this folder|another form|is missing")


def test_only_known_files_are_sent(run_folder):
    for name in ("tokenizer_secrets.txt", "vocab.bak", "model-extra.safetensors", "notes.md", "training_args.bin"):
        (run_folder / name).write_text("private")
    (run_folder / "checkpoint-3").mkdir()
    files = published_files(run_folder)
    assert not [name for name in files if "secret" in name or "bak" in name or "extra" in name or "notes" in name]
    assert {"model.safetensors", "config.json", "labels.txt", "tokenizer.json"} <= files.keys()


def test_a_dry_run_shows_each_file_with_its_size(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert command(["publish", str(run_folder), "me/tiny", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()
    for name in published_files(run_folder):
        assert len([line for line in shown if line.endswith(f"  {name}")]) == 1
    size = (run_folder / "model.safetensors").stat().st_size
    assert any(line.split() == [f"{size:,}", "model.safetensors"] for line in shown)
