"""Private names of other libraries are used only where there is no public way, and are still there."""

import argparse
import ast
import importlib
import inspect
import pkgutil
from pathlib import Path

import evaluate
import torch
from torch import nn
from transformers import BertConfig, Pipeline, PreTrainedModel, Trainer, TrainingArguments
from transformers.utils import cached_file

import glocal_xml
from glocal_xml import loading, metrics, modeling, training
from glocal_xml.training.arguments import XMTCTrainingArguments

PACKAGE = Path(glocal_xml.__file__).parent
# What is overridden, with its parameters; each has its reason in a comment, but for how modules start
# (`_init_weights`) and what `Pipeline` and `evaluate` document as the methods of a subclass.
OVERRIDDEN = {
    (PreTrainedModel, "_init_weights"): ["self", "module"],
    (PreTrainedModel, "_get_files_timestamps"): ["self", "working_dir"],
    (Pipeline, "_sanitize_parameters"): ["self", "pipeline_parameters"],
    (Pipeline, "_forward"): ["self", "input_tensors", "forward_parameters"],
    (evaluate.Metric, "_info"): ["self"],
    (evaluate.Metric, "_compute"): ["self", "predictions", "references", "kwargs"],
    (Trainer, "_clip_grad_norm"): ["self", "model"],
    (Trainer, "_get_grad_norm"): ["self", "model", "grad_norm"],
    (Trainer, "_get_train_sampler"): ["self", "train_dataset"],
    (Trainer, "_get_eval_sampler"): ["self", "eval_dataset"],
    (Trainer, "_save"): ["self", "output_dir", "state_dict"],
    (Trainer, "_save_checkpoint"): ["self", "model", "trial"],
}
# What is read, called or set, and where it is.
USED = {
    "_option_string_actions": argparse.ArgumentParser(),
    "_attn_implementation": BertConfig(),
    "_auto_class": PreTrainedModel,
    "_compiled_call_impl": nn.Module(),
    "_get_output_dir": Trainer,
    "_modules": nn.Module(),
    "_prepare_inputs": Trainer,
    "_tp_plan": PreTrainedModel,
    "_VALID_DICT_FIELDS": TrainingArguments,
}
KEYWORDS = {
    "_internal_call": Trainer.save_model,
    "_raise_exceptions_for_connection_errors": cached_file,
    "_raise_exceptions_for_missing_entries": cached_file,
}
IMPORTED = {
    ("torch._subclasses.fake_tensor", "FakeTensorMode"),
    ("torch.utils._python_dispatch", "TorchDispatchMode"),
    ("torch.utils._pytree", "tree_leaves"),
}


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def nodes():
    for file in PACKAGE.rglob("*.py"):
        yield from ast.walk(ast.parse(file.read_text(encoding="utf-8")))


def classes():
    # The packages with subclasses of what other libraries have.
    for package in (modeling, loading, metrics, training):
        for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__"):
                module = importlib.import_module(found.name)
                yield from (
                    cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == found.name
                )


def test_what_is_overridden_exists():
    for (owner, name), parameters in OVERRIDDEN.items():
        found = inspect.signature(getattr(owner, name)).parameters
        # `evaluate` says in its text alone what `_compute` is called with.
        assert name == "_compute" or list(found) == parameters, name


def test_nothing_else_is_overridden():
    """But for plain facts about a class, such as which attention it supports."""
    found = set()
    for cls in classes():
        foreign = [base for base in cls.__mro__ if not base.__module__.startswith("glocal_xml")]
        for name in filter(is_private, vars(cls)):
            if inspect.isroutine(vars(cls)[name]) and any(name in vars(base) for base in foreign):
                found.add(name)
    assert found == {name for _, name in OVERRIDDEN}


def test_what_is_used_exists():
    for name, owner in USED.items():
        assert hasattr(owner, name), name
    for name, function in KEYWORDS.items():
        parameters = inspect.signature(function).parameters
        # The keywords of `cached_file` are those of what it calls.
        function = inspect.getmodule(function).cached_files if "kwargs" in parameters else function
        assert name in inspect.signature(function).parameters, name
    for module, name in IMPORTED:
        assert hasattr(importlib.import_module(module), name)
    # Optimisers set it on themselves, where gradients are not to be unscaled before the step.
    assert torch.optim.AdamW([nn.Parameter(torch.ones(1))], fused=True)._step_supports_amp_scaling
    assert "module_learning_rates" in XMTCTrainingArguments._VALID_DICT_FIELDS


def test_nothing_else_is_used():
    own, used, keywords, imported = set(), set(), set(), set()
    for node in nodes():
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            own.add(node.name)
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            own.add(node.id if isinstance(node, ast.Name) else node.attr)
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            used.add(node.attr)
        elif isinstance(node, ast.keyword) and is_private(node.arg or ""):
            keywords.add(node.arg)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            path = node.module.split(".")
            names = (name.name for name in node.names)
            imported |= {(node.module, name) for name in names if any(map(is_private, [*path, name]))}
    # Names that the package sets are its own, unless they are listed above.
    assert used - (own - USED.keys()) - {name for _, name in OVERRIDDEN} <= USED.keys()
    assert keywords == KEYWORDS.keys()
    assert imported == IMPORTED
