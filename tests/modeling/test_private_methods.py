"""Private methods of Transformers that the base class overrides are still there, and still called as before."""

import inspect

from transformers import PreTrainedModel

from glocal_xml.modeling import FAMILIES

OVERRIDDEN = {"_init_weights": ["self", "module"], "_get_files_timestamps": ["self", "working_dir"]}


def test_what_is_overridden_exists():
    for name, parameters in OVERRIDDEN.items():
        assert list(inspect.signature(getattr(PreTrainedModel, name)).parameters) == parameters


def test_nothing_else_is_overridden():
    """But for plain facts about a class, such as which attention it supports."""
    for family in (*FAMILIES.values(), *(model.tree_class for model in FAMILIES.values() if model.tree_class)):
        own = {name for cls in family.__mro__ if cls.__module__.startswith("glocal_xml") for name in vars(cls)}
        methods = {name for name in own if callable(getattr(PreTrainedModel, name, None)) and name.startswith("_")}
        assert {name for name in methods if not name.startswith("__")} <= OVERRIDDEN.keys()
