"""What people copy: the example scripts use public names alone, and do what `glocal-xml train` does."""

import ast
import importlib
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModel

from glocal_xml.cli.train import main

EXAMPLES = Path(__file__).parents[2] / "examples"
COPIED = ["quickstart.py", "run_xmtc.py", "run_xmtc_no_trainer.py"]


def load(script):
    spec = importlib.util.spec_from_file_location(script.removesuffix(".py"), EXAMPLES / script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_of_package(script):
    """Module and name of everything that a script takes from the package, by import or from an imported package."""
    tree = ast.parse((EXAMPLES / script).read_text(encoding="utf-8"))
    packages = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "glocal_xml":
            for alias in node.names:
                if node.module == "glocal_xml" and importlib.util.find_spec(f"glocal_xml.{alias.name}"):
                    packages[alias.name] = f"glocal_xml.{alias.name}"
                else:
                    yield node.module, alias.name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in packages:
            yield packages[node.value.id], node.attr


@pytest.mark.parametrize("script", [*COPIED, "predict_ray.py"])
def test_examples_use_public_names_with_docstrings(script):
    found = list(names_of_package(script))
    assert found
    for module, name in found:
        package = importlib.import_module(module)
        assert hasattr(package, "__path__"), f"{module} is a file of the package: import {name} from its package"
        assert name in package.__all__, f"{module}.{name} is not public"
        assert getattr(package, name).__doc__, f"{module}.{name} has no docstring"


@pytest.fixture
def flags(encoder_folder, text_file):
    return [
        *("--encoder", encoder_folder, "--model_config", '{"mlp_size": 16, "top_k": 4}', "--metrics_at", "1", "2"),
        *("--train_file", text_file("train.jsonl", 160), "--test_file", text_file("test.jsonl", 16, first=160)),
        *("--predict_file", text_file("new.jsonl", 4, first=176), "--validation_size", "60", "--use_cpu", "true"),
        *("--num_train_epochs", "2", "--label_tree", '{"cluster_size": 2}'),
    ]


def test_the_example_with_trainer_is_the_command(flags, tmp_path):
    expected = main([*flags, "--output_dir", str(tmp_path / "command")])
    found = load("run_xmtc.py").main([*flags, "--output_dir", str(tmp_path / "script")])
    first, second = (AutoModel.from_pretrained(tmp_path / name) for name in ("command", "script"))
    assert first.branch_names == second.branch_names == ["global", "local", "lexical", "memory", "dense"]
    for name, value in first.state_dict().items():
        assert torch.equal(value, second.state_dict()[name]), name
    assert found.keys() == expected.keys() - {"training_seconds"}
    for part in ("validation", "test"):
        for row, metrics in expected[part].items():
            measured = {name: value for name, value in metrics.items() if "@" in name}
            assert {name: found[part][row][name] for name in measured} == measured
    assert found["blend"] == expected["blend"] and found["probabilities"] == expected["probabilities"]
    command, script = ((tmp_path / name / "predictions.jsonl").read_text() for name in ("command", "script"))
    assert command == script and len(script.splitlines()) == 20
    assert json.loads((tmp_path / "script" / "results.json").read_text())["test"].keys() == expected["test"].keys()
    assert "precision" in (tmp_path / "script" / "README.md").read_text()


def test_what_the_example_has_no_line_for_is_the_command_too(flags, tmp_path):
    script = load("run_xmtc.py").main
    flags = flags[: flags.index("--num_train_epochs")]
    flags += ["--model_config", "{}", "--encoder", "none", "--output_dir", str(tmp_path / "run")]
    assert set(script(flags)["test"]) == {"blend", "lexical", "memory", "label frequency"}
    test_file = flags[flags.index("--test_file") + 1]
    trained = ["--model", str(tmp_path / "run"), "--test_file", test_file, "--metrics_at", "1", "2"]
    assert "blend" in script([*trained, "--use_cpu", "true", "--output_dir", str(tmp_path / "other")])["test"]
