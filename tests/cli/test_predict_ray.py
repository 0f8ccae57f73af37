"""`examples/predict_ray.py`: two local workers give what one process gives."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_encoders import WORDS

from glocal_xml.cli import main

ROOT = Path(__file__).parents[2]
TEXTS = [" ".join(WORDS[(i * j) % 17] for j in range(i % 11)) for i in range(150)]


def predict_ray(*arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, str(ROOT / "examples" / "predict_ray.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.compatibility(
    "Several processes",
    "Ray Data (`examples/predict_ray.py`)",
    "works: Parquet in, Parquet out, in order; each worker loads the model once; scores of one process up to rounding",
    since="0.1",
)
def test_two_workers_equal_one_process(model_folder, tmp_path):
    (tmp_path / "texts").mkdir()
    for name, part in {"a": slice(0, 70), "b": slice(70, 150)}.items():
        rows = pa.table({"id": range(150)[part], "title": TEXTS[part]})
        pq.write_table(rows, tmp_path / "texts" / f"{name}.parquet")
    options = ["--text_column", "title", "--top_k", "3", "--batch_size", "2"]
    two = predict_ray(
        model_folder, tmp_path / "texts", "--output", tmp_path / "two.parquet", "--workers", "2", *options
    )
    assert two.returncode == 0, two.stderr
    found = pq.read_table(tmp_path / "two.parquet").to_pylist()
    path, output = tmp_path / "texts.jsonl", tmp_path / "one.jsonl"
    path.write_text("".join(json.dumps({"id": i, "title": text}) + "\n" for i, text in enumerate(TEXTS)))
    assert main(["predict", model_folder, str(path), "--output", str(output), *options]) == 0
    expected = [json.loads(line) for line in output.read_text().splitlines()]
    assert [(row["id"], row["title"]) for row in found] == [(row["id"], row["title"]) for row in expected]
    for row, other in zip(found, expected, strict=True):
        assert [item["label"] for item in row["predictions"]] == [item["label"] for item in other["predictions"]]
        scores = [item["score"] for item in other["predictions"]]
        assert [item["score"] for item in row["predictions"]] == pytest.approx(scores, abs=2e-6)


@pytest.mark.slow
def test_mistakes_are_named(model_folder, tmp_path):
    pq.write_table(pa.table({"text": ["apple"]}), tmp_path / "texts.parquet")
    arguments = [model_folder, tmp_path / "texts.parquet", "--output"]
    assert "is there already" in predict_ray(*arguments, tmp_path).stderr
    other = predict_ray(*arguments, tmp_path / "new", "--text_column", "title")
    assert "no column is called 'title'; there are text" in other.stderr
    broken = predict_ray(tmp_path / "nowhere", *arguments[1:], tmp_path / "new")
    assert broken.returncode == 1 and "nowhere" in broken.stderr and "Traceback" not in broken.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["texts.parquet"], "nothing half-written"
