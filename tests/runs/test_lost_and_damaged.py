"""Training that is killed, runs away or finds damaged files: it continues from what is whole, or says why not."""

import json
import logging
import os
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch
from torch.distributed.checkpoint.api import CheckpointException
from transformers import AutoModel

from glocal_xml.atomic_file import open_atomically, write_atomically
from glocal_xml.cli import main as command
from glocal_xml.cli.train import main
from glocal_xml.runs import one_line_errors, split_labels
from glocal_xml.training.whole_checkpoints import MANIFEST, last_good_checkpoint, why_not_whole, write_manifest


@pytest.fixture(scope="module")
def flags(encoder_folder, text_file):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 8}', "--train_file", text_file("t.jsonl", 32)),
        *("--metrics_at", "1", "--per_device_train_batch_size", "8", "--use_cpu", "true", "--num_train_epochs", "3"),
        *("--experts", "none", "--blend", "false", "--learning_rate", "1e-2", "--hub_token", "hf_secret0123"),
    ]


@pytest.fixture(scope="module")
def finished(flags, tmp_path_factory):
    """A run with checkpoints of its last two epochs."""
    folder = tmp_path_factory.mktemp("run")
    main([*flags, "--output_dir", str(folder)])
    return folder


@pytest.fixture
def run(finished, tmp_path):
    """The same, stopped after its second epoch."""
    folder = tmp_path / "run"
    shutil.copytree(finished, folder)
    shutil.copytree(folder / "checkpoint-8", folder / "checkpoint-4")
    shutil.rmtree(folder / "checkpoint-12")
    return folder


def test_checkpoints_hold_a_manifest_and_no_token(finished):
    assert sorted(path.name for path in finished.glob("checkpoint-*")) == ["checkpoint-12", "checkpoint-8"]
    for folder in finished.glob("checkpoint-*"):
        assert why_not_whole(folder) is None
    for path in finished.rglob("*"):
        assert path.name != "training_args.bin"
        assert path.is_dir() or b"hf_secret0123" not in path.read_bytes(), path


FILES = ["model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json", MANIFEST]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["missing", "cut off", "empty", "other bytes"])
def test_damaged_checkpoints_are_skipped(run, name, damage, caplog):
    path = run / "checkpoint-8" / name
    content = path.read_bytes()
    middle = len(content) // 2
    changed = {
        "cut off": content[:middle],
        "empty": b"",
        "other bytes": content[:middle] + bytes([content[middle] ^ 255]) + content[middle + 1 :],
    }
    path.unlink() if damage == "missing" else path.write_bytes(changed[damage])
    assert last_good_checkpoint(run) == str(run / "checkpoint-4")
    assert "checkpoint-8 is skipped" in caplog.text and name in caplog.text
    assert "checkpoint-8" in why_not_whole_message(run)


def why_not_whole_message(run):
    with pytest.raises(ValueError, match="No complete checkpoint") as error:
        main(["--encoder", "x", "--train_file", "x", "--output_dir", str(run), "--resume_from_checkpoint",
              str(run / "checkpoint-8")])  # fmt: skip
    return str(error.value)


def test_a_checkpoint_without_the_state_of_the_optimiser_is_none(run):
    (run / "checkpoint-8" / "optimizer.pt").unlink()
    write_manifest(run / "checkpoint-8")
    assert "optim" in why_not_whole(run / "checkpoint-8")


def test_a_resumed_run_ends_with_the_same_weights(run, finished, flags):
    (run / "checkpoint-8" / "left.tmp").write_bytes(b"")
    shutil.rmtree(run / "checkpoint-4")
    main([*flags, "--output_dir", str(run), "--resume_from_checkpoint", "last"])
    first, second = (AutoModel.from_pretrained(folder).state_dict() for folder in (finished, run))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


class Harm:
    """Writes a file when it is unpickled."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
def test_nothing_in_a_checkpoint_is_run(run, name, flags, tmp_path, capsys):
    (run / "checkpoint-8" / name).write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
    write_manifest(run / "checkpoint-8")
    assert command(["train", *flags, "--output_dir", str(run), "--resume_from_checkpoint", "last"]) == 2
    assert "cannot be resumed from" in capsys.readouterr().err
    assert not (tmp_path / "harm").exists()


def test_a_loss_that_is_not_finite_ends_training(flags, tmp_path, capsys):
    often = ["--save_strategy", "steps", "--save_steps", "1", "--output_dir", str(tmp_path / "run")]
    assert command(["train", *flags, *often, "--learning_rate", "1e30", "--max_grad_norm", "0"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "The loss is" in error and "at step 3" in error and "learning_rate" in error
    assert not (tmp_path / "run" / "results.json").exists()
    for path in (tmp_path / "run").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    # The rate of the first step is 0. Weights that the loss came from are not continued from.
    assert last_good_checkpoint(tmp_path / "run") == str(tmp_path / "run" / "checkpoint-1")
    assert "The last good checkpoint is" in error and "checkpoint-1" in error


def test_weights_that_are_not_finite_are_not_saved(flags, tmp_path, capsys):
    # One step: there is no later loss that would tell.
    once = ["--max_steps", "1", "--warmup_steps", "0", "--lr_scheduler_type", "constant", "--learning_rate", "1e39"]
    assert command(["train", *flags, *once, "--output_dir", str(tmp_path / "run")]) == 2
    assert "not finite" in capsys.readouterr().err
    assert not (tmp_path / "run" / "model.safetensors").exists()


PACKAGE = Path(__file__).parents[2] / "glocal_xml"
SCRIPT = PACKAGE.parent / "examples" / "run_xmtc_no_trainer.py"


def own_loop():
    spec = spec_from_file_location("own_loop", SCRIPT)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_loop_without_trainer_loads_no_pickle(flags, tmp_path, caplog):
    loop, folder = own_loop(), tmp_path / "run"
    main_of_loop = [*flags, "--output_dir", str(folder), "--num_train_epochs", "1"]
    loop.main(main_of_loop)
    state = folder / "state"
    assert json.loads((state / "progress.json").read_text())["schedule"]["last_epoch"] == 4
    assert not list(state.glob("custom_checkpoint*")) and not list(state.glob("*.new"))
    for name in ("custom_checkpoint_0.pkl", "optimizer.bin"):
        content = (state / name).read_bytes() if (state / name).exists() else None
        (state / name).write_bytes(pickle.dumps(Harm(tmp_path / "harm")))
        write_manifest(state)
        with pytest.raises(ValueError, match="cannot be resumed from"):
            loop.main([*main_of_loop, "--resume_from_checkpoint", "last"])
        assert not (tmp_path / "harm").exists()
        (state / name).unlink() if content is None else (state / name).write_bytes(content)
    write_manifest(state)
    (state / "optimizer.bin").write_bytes(b"")
    with caplog.at_level(logging.WARNING), pytest.raises(ValueError, match="No complete checkpoint"):
        loop.main([*main_of_loop, "--resume_from_checkpoint", "last"])
    assert "optimizer.bin was changed or is damaged" in caplog.text


def test_the_loop_without_trainer_stops_at_a_loss_that_is_not_finite(flags, tmp_path):
    rates = ["--learning_rate", "1e30", "--max_grad_norm", "0", "--output_dir", str(tmp_path / "run")]
    with pytest.raises(ValueError, match="The loss is .* at step"):
        own_loop().main([*flags, *rates])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_the_loop_without_trainer_says_how_to_continue(flags, tmp_path, kind):
    endless = [*flags, "--num_train_epochs", "10000", "--output_dir", str(tmp_path / "run")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT), *endless], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    deadline = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < deadline and not (tmp_path / "run" / "state").exists():
        time.sleep(0.2)
    process.send_signal(kind)
    output, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "--resume_from_checkpoint last" in output
    assert "Traceback" not in errors


@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_scripts_end_with_130_outside_of_training_too(kind, capsys):
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(SystemExit) as stop, one_line_errors():
        signal.raise_signal(kind)
    assert stop.value.code == 130 and capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_full_disk_under_split_labels_is_one_line(capsys, monkeypatch):
    """torch raises a `BaseException` that holds the errors of all processes."""

    def save(*_, **__):
        raise CheckpointException("write", {1: (OSError(28, "No space left on device"), None)})

    monkeypatch.setattr(split_labels.distributed_checkpoint, "save", save)
    monkeypatch.setattr(split_labels, "_split_state", lambda *_: ({}, {}))
    monkeypatch.setattr(split_labels, "HuggingFaceStorageWriter", lambda *_, **__: None)
    with pytest.raises(SystemExit) as stop, one_line_errors():
        split_labels.save_split_state("folder", None, None)
    assert stop.value.code == 2 and capsys.readouterr().err == "error: [Errno 28] No space left on device\n"


def test_what_a_killed_process_left_is_deleted(tmp_path):
    code = (
        "import os, signal, sys\n"
        # Without all that the package loads.
        "sys.modules['glocal_xml'] = type(sys)('glocal_xml')\n"
        f"sys.modules['glocal_xml'].__path__ = [{str(PACKAGE)!r}]\n"
        "from glocal_xml.atomic_file import open_atomically\n"
        "with open_atomically(sys.argv[1]) as file:\n"
        "    file.write(b'half')\n"
        "    file.flush()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    target = tmp_path / "rows.jsonl"
    killed = subprocess.run([sys.executable, "-c", code, str(target)])
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    with open_atomically(tmp_path / "rows.jsonl") as first:
        first.write(b"first")
        # One that is being written stays.
        write_atomically(target, "second")
        assert len(list(tmp_path.iterdir())) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"] and target.read_text() == "first"


def test_a_full_disk_is_one_line(flags, tmp_path, capsys, monkeypatch):
    import resource

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    # As on a full disk, writing fails in the middle of a file.
    resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, limits[1]))
    try:
        assert command(["train", *flags, "--output_dir", str(tmp_path / "run")]) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    error = capsys.readouterr().err
    assert "Traceback" not in error and error.count("glocal-xml: error:") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"encoder: \xe4\n", "is no UTF-8 text"),
        (b"[" * 10**5, "nested too deeply|not valid YAML"),
        (b"a: &a [1]\nb: *a\n", "aliases"),
        (b"3: 4\n", "no argument name"),
        (b"- 1\n", "must be a mapping"),
        (b"a: {\n", "not valid YAML"),
    ],
)
def test_bad_recipes_are_named(content, message, tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_bytes(content)
    assert command(["train", str(tmp_path / "recipe.yaml")]) == 2
    error = capsys.readouterr().err
    assert re.search(message, error) and "recipe.yaml" in error and len(error) < 900


def test_deep_json_on_the_command_line(capsys):
    assert command(["train", "--encoder", "x", "--train_file", "x", "--model_config", "[" * 10**5]) == 2
    assert len(capsys.readouterr().err) < 900
