"""`glocal-xml predict` by `torchrun` and `accelerate launch`: the file that one process writes, or none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tiny_encoders import WORDS

from glocal_xml.cli import main

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Texts of many lengths and an empty one, more than two processes tag in a turn."""
    path = tmp_path_factory.mktemp("texts") / "texts.jsonl"
    rows = [{"id": i, "text": " ".join(WORDS[(i * j) % 17] for j in range(i % 11))} for i in range(101)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def launch(launcher, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[2])
    command = [sys.executable, *launcher, "-m", "glocal_xml", "predict", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.compatibility(
    "Several processes",
    "`torchrun` or `accelerate launch` of `glocal-xml predict`",
    "works: byte for byte the file of one process, or none",
    since="0.1",
)
@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["torchrun", "accelerate"])
def test_the_output_is_that_of_one_process(model_folder, texts, tmp_path, launcher):
    command = TORCHRUN
    if launcher == "accelerate":
        # What `accelerate config` writes; without accelerators, `ACCELERATE_USE_CPU` makes two processes of it.
        config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "num_processes": 2}
        (tmp_path / "two.yaml").write_text(yaml.safe_dump({**config, "main_process_port": 0}))
        command = ["-m", "accelerate.commands.launch", "--config_file", str(tmp_path / "two.yaml")]
    for name in ("tagged.jsonl", "tagged.csv"):
        options = ["--batch_size", "4", "--top_k", "3", "--branch_scores"]
        assert main(["predict", model_folder, str(texts), "--output", str(tmp_path / f"one-{name}"), *options]) == 0
        two = launch(command, model_folder, texts, "--output", tmp_path / f"two-{name}", *options)
        assert two.returncode == 0, two.stderr
        assert (tmp_path / f"two-{name}").read_bytes() == (tmp_path / f"one-{name}").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ("a bad row", "line 102: broken JSON"),
        ("no place", "the folder nowhere for out.jsonl does not exist"),
        ("no file", "2 processes cannot share standard input"),
    ],
)
def test_a_mistake_leaves_no_file(model_folder, texts, tmp_path, broken, message):
    path, output = tmp_path / "texts.jsonl", tmp_path / "out" / "out.jsonl"
    path.write_text(texts.read_text() + "{oops\n" * (broken == "a bad row"))
    output.parent.mkdir()
    arguments = [model_folder, *([] if broken == "no file" else [path])]
    arguments += ["--output", "nowhere/out.jsonl" if broken == "no place" else output, "--batch_size", "4"]
    process = launch(TORCHRUN, *arguments)
    assert process.returncode != 0 and f"glocal-xml: error: {message}" in process.stderr.replace(f"{path}, ", "")
    assert list(output.parent.iterdir()) == [], "neither a part of the file nor a temporary one"
