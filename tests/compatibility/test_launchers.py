"""`accelerate launch` of both example scripts with the configurations that `accelerate config` writes."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
SCRIPTS = ["run_xmtc.py", "run_xmtc_no_trainer.py"]
FSDP = {
    "fsdp_version": 2,
    "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
    # Left out, Accelerate takes BERT's embeddings for a layer, shards them twice, and fails.
    "fsdp_transformer_layer_cls_to_wrap": "BertLayer",
    "fsdp_reshard_after_forward": True,
    "fsdp_state_dict_type": "FULL_STATE_DICT",
}
CONFIGS = {
    "ddp": {"distributed_type": "MULTI_GPU"},
    "fsdp2": {"distributed_type": "FSDP", "fsdp_config": FSDP},
    "deepspeed": {"distributed_type": "DEEPSPEED", "deepspeed_config": {"zero_stage": 2}},
}


@pytest.fixture
def launch(encoder_folder, text_file, tmp_path):
    """Runs a script by plain Python, or by `accelerate launch` with two processes and a configuration."""
    flags = ["--encoder", encoder_folder, "--metrics_at", "1", "2", "--num_train_epochs", "1"]
    flags += ["--train_file", text_file("train.jsonl", 96), "--test_file", text_file("test.jsonl", 16, first=96)]
    flags += ["--validation_size", "16", "--experts", "lexical", "--learning_rate", "1e-2"]
    # Without momentum, sums of gradients show up in the weights as they are.
    flags += ["--adam_epsilon", "1e-3", "--lr_scheduler_type", "constant", "--warmup_steps", "0"]

    def run(script, name=None, *before, **environment):
        command, batch = [sys.executable], "8"
        if name is not None:
            path, batch = tmp_path / f"{name}.yaml", "4"
            shared = {"compute_environment": "LOCAL_MACHINE", "num_processes": 2, "main_process_port": 0}
            path.write_text(yaml.safe_dump({**shared, **CONFIGS[name]}))
            command += ["-m", "accelerate.commands.launch", "--config_file", str(path)]
        command += [*before, str(ROOT / "examples" / script), *flags, "--per_device_train_batch_size", batch]
        output = tmp_path / f"out-{name}"
        # Without it Accelerate wants accelerators for more than one process.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", **environment}
        environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        command += ["--output_dir", str(output)]
        return subprocess.run(command, capture_output=True, text=True, env=environment), output

    return run


def check_same(found, expected):
    """Weights, and what was measured, are those of one process."""
    one, two = (load_file(folder / "model.safetensors") for folder in (expected, found))
    assert one.keys() == two.keys()
    for name, values in one.items():
        if values.is_floating_point():
            assert (two[name] - values).abs().max() < 2e-3, name
    one, two = (json.loads((folder / "results.json").read_text())["test"] for folder in (expected, found))
    assert two.keys() == one.keys()
    # The code beside the weights is that of the model, whatever was made of its class.
    names = [{path.name for path in folder.glob("*.py")} for folder in (expected, found)]
    maps = [json.loads((folder / "config.json").read_text())["auto_map"] for folder in (expected, found)]
    assert names[0] == names[1] and maps[0] == maps[1]


@pytest.mark.slow
@pytest.mark.compatibility(
    "Several processes",
    "`accelerate launch`, data parallel (DDP)",
    "works with both example scripts; the weights of one process with twice the batch",
    since="0.1",
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_data_parallel(launch, script):
    one, expected = launch(script)
    assert one.returncode == 0, one.stderr
    two, found = launch(script, "ddp")
    assert two.returncode == 0, two.stderr
    assert "2 process(es) on cpu" in two.stdout
    check_same(found, expected)


@pytest.mark.slow
@pytest.mark.compatibility(
    "Several processes",
    "`accelerate launch`, FSDP2",
    "works with both example scripts, with `fsdp_transformer_layer_cls_to_wrap` naming the layers (`BertLayer`)",
    since="0.1",
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_fully_sharded(launch, script):
    _, expected = launch(script)
    two, found = launch(script, "fsdp2", str(Path(__file__).with_name("fsdp_on_cpu.py")))
    assert two.returncode == 0, two.stderr
    assert "2 process(es) on cpu" in two.stdout and "sharded by FSDP over 2 processes" in two.stdout
    check_same(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_nothing_is_sharded_on_cpus(launch, script):
    two, _ = launch(script, "fsdp2")
    assert two.returncode == 0, two.stderr
    assert two.stdout.count("asks for FSDP, which Accelerate has for accelerators alone") == 1


@pytest.mark.slow
@pytest.mark.compatibility(
    "Several processes",
    "several processes on a machine without accelerators",
    "with `ACCELERATE_USE_CPU=true` or `--use_cpu true`; without, Accelerate lets each train alone, which is refused",
    since="0.1",
)
@pytest.mark.parametrize("script", SCRIPTS)
def test_processes_that_would_train_alone_are_refused(launch, script):
    two, output = launch(script, "ddp", ACCELERATE_USE_CPU="false")
    assert two.returncode != 0 and not output.exists()
    assert "2 processes were started, but 1 would train together" in two.stdout + two.stderr


@pytest.mark.slow
@pytest.mark.compatibility(
    "Several processes",
    "`accelerate launch`, DeepSpeed",
    "without the package deepspeed refused by Accelerate with what to install; not tried on accelerators",
    since="0.1",
)
@pytest.mark.skipif(find_spec("deepspeed") is not None, reason="deepspeed is installed")
def test_no_deepspeed_without_its_package(launch):
    two, output = launch(SCRIPTS[0], "deepspeed")
    assert two.returncode != 0 and "pip3 install deepspeed" in two.stderr and not output.exists()
