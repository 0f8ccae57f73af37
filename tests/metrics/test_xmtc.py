import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glocal_xml.metrics
from glocal_xml.metrics import xmtc_metrics

METRIC_FILE = Path(glocal_xml.metrics.__file__).with_name("xmtc.py")
PREDICTIONS = [[0, 1, 2], [3, 4], [1, -1, 0], []]
PADDED_PREDICTIONS = [[0, 1, 2], [3, 4, -1], [1, -1, 0], [-1, -1, -1]]
REFERENCES = [[0, 2, 3], [4, -100], [], [1, 1]]
OPTIONS = {"ks": [1, 3], "inverse_propensities": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "bands": {"few": [0, 5], "none": []}}

LOADED = """
import json
import sys

import evaluate

path, predictions, references, options = json.loads(sys.stdin.read())
metric = evaluate.load(path)
values = metric.compute(predictions=predictions, references=references, **options)
print(json.dumps([metric.name, "glocal_xml" in sys.modules, values]))
"""


@pytest.fixture
def metric(tmp_path):
    from glocal_xml.metrics.xmtc import XMTCMetrics

    return XMTCMetrics(cache_dir=str(tmp_path))


def test_used_directly(metric):
    expected = xmtc_metrics(PADDED_PREDICTIONS, REFERENCES, **OPTIONS)
    assert metric.compute(predictions=PREDICTIONS, references=REFERENCES, **OPTIONS) == expected


def test_batches_of_arrays_and_default_ks(metric):
    generator = np.random.default_rng(0)
    predictions = generator.permuted(np.tile(np.arange(9), (6, 1)), axis=1)[:, :5]
    references = generator.integers(-1, 9, (6, 4))
    for rows in (slice(0, 4), slice(4, 6)):
        metric.add_batch(predictions=predictions[rows], references=references[rows])
    assert metric.compute(num_labels=20) == xmtc_metrics(predictions, references, num_labels=20)


def test_loaded_by_path_offline_without_the_package(tmp_path):
    payload = json.dumps([str(METRIC_FILE), PREDICTIONS, REFERENCES, OPTIONS])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"}
    process = subprocess.run(
        [sys.executable, "-c", LOADED], input=payload, capture_output=True, text=True, cwd=tmp_path, env=environment
    )
    assert process.returncode == 0, process.stderr
    name, package_imported, values = json.loads(process.stdout.splitlines()[-1])
    assert name == "xmtc_metrics"
    assert not package_imported
    assert values == pytest.approx(xmtc_metrics(PADDED_PREDICTIONS, REFERENCES, **OPTIONS), abs=1e-12)
