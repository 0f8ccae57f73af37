"""Processes of their own that know the Hub of a test, and weights that it does not know yet."""

import os
import random
import subprocess
import sys
from pathlib import Path

from safetensors.torch import load_file, save_file

ROOT = Path(__file__).parents[2]
HIDDEN = 'import sys\nsys.modules["glocal_xml"] = None\n'


def fresh_process(hub, code, *, cwd=None, **variables):
    """What a script prints in a process of its own that knows the server, and whose cache is kept between calls."""
    process = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=fresh_environment(hub) | {"PYTHONPATH": str(ROOT)} | variables,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def fresh_environment(hub):
    """Variables of a process that knows the server and nothing of this one."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "PYTHONPATH"))}
    own = {"HF_ENDPOINT": hub.url, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(hub.home), "HF_HUB_OFFLINE": "0"}
    return known | own | {"OMP_NUM_THREADS": "1"}


def change_weights(folder):
    """Weights of the same shapes that no other model has, as after more training."""
    change = random.SystemRandom().random()
    weights = load_file(folder / "model.safetensors")
    # The integers are tables that point into each other, which training does not change either.
    for name, tensor in weights.items():
        weights[name] = tensor + change if tensor.is_floating_point() else tensor
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
