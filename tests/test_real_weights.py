"""A short run from real weights on real data: slow, and only to see that the parts fit."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_quickstart_on_a_few_texts(tmp_path):
    flags = ["--max_train_texts", "320", "--max_test_texts", "64", "--validation_size", "32", "--max_length", "32"]
    process = subprocess.run(
        [sys.executable, "examples/quickstart.py", *flags, "--output_dir", str(tmp_path / "demo")],
        cwd=ROOT,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("true: ") == 5 and process.stdout.count(" = logit ") == 25
    results = json.loads((tmp_path / "demo" / "results.json").read_text())
    assert set(results["test"]) == {"both", "global", "local", "label frequency"}
    assert results["test"]["both"]["loss"] < 0.12
