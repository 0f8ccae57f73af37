"""A short run from real weights on real data: slow, and only to see that the parts fit."""

import gzip
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_quickstart_on_a_few_texts(tmp_path):
    data = Path("examples/data/debtags")
    (tmp_path / data).mkdir(parents=True)
    for name, number in {"train.jsonl.gz": 640, "test.jsonl.gz": 32}.items():
        with gzip.open(ROOT / data / name, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in itertools.islice(file, number)]
        with gzip.open(tmp_path / data / name, "wt", encoding="utf-8") as file:
            file.writelines(json.dumps({**row, "text": row["text"][:80]}) + "\n" for row in rows)
    process = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "quickstart.py")],
        cwd=tmp_path,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("true: ") == 5 and process.stdout.count(" = logit ") == 25
    results = json.loads((tmp_path / "outputs" / "demo" / "results.json").read_text())
    assert set(results["test"]) == {"blend", "global", "local", "lexical", "memory", "dense", "label frequency"}
    assert results["test"]["blend"]["precision@1"] > results["test"]["label frequency"]["precision@1"]
