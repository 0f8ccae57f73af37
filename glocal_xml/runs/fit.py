"""From texts and labels in memory to a pipeline that labels other texts, in one call."""

import math
import os
import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import chain
from numbers import Integral
from tempfile import TemporaryDirectory
from types import NoneType
from typing import Any, get_args

import numpy as np
import torch
from datasets import Dataset
from transformers import HfArgumentParser, pipeline

from glocal_xml.arguments import NO_ENCODER
from glocal_xml.data import LabelSpace
from glocal_xml.data.rows import is_written_list
from glocal_xml.modeling import TASK, ExtremeMultiLabelPipeline
from glocal_xml.modeling.text_windows import readable_text
from glocal_xml.training.arguments import DataArguments, ModelArguments, XMTCTrainingArguments

from .run import run

_ARGUMENTS = (ModelArguments, DataArguments, XMTCTrainingArguments)
# Small sets are trained for more epochs: about this many texts are read in all.
_TEXTS_READ = 8000
_MOST_EPOCHS, _LEAST_EPOCHS = 20, 2
_NO_MULTI_HOT = "of a multi-hot matrix, give the names of its ones for each text"


def fit(
    texts: Iterable[str],
    labels: Iterable[Iterable[str]],
    *,
    encoder: str | os.PathLike | None = "minilm",
    model_type: str = "glocal_xml",
    minutes: float | None = None,
    validation_size: float | None = None,
    output_dir: str | os.PathLike | None = None,
    **options: Any,
) -> ExtremeMultiLabelPipeline:
    """
    Trains a model on texts and their labels, as `glocal-xml train` does, and returns the pipeline that uses it.

    ```py
    tag = glocal_xml.fit(["tails of dogs", "cats at night"], [["animals", "dogs"], ["animals", "cats"]])
    tag("a dog", top_k=2)
    ```

    Settings suit some hundreds to some thousands of texts. Each can be changed by an option of the name that
    `glocal-xml train --help` tells.

    Args:
        texts: The texts.
        labels: The names of the labels of each text: a list for every text.
        encoder: The encoder to start from: a folder, a Hub id, `minilm` or `word_lstm`. `None` for a model of experts
            alone, which takes seconds to minutes and reads texts of any length.
        model_type: The family of the model.
        minutes: How long to train: experts on all texts, then heads and encoder on as many as the time allows. By
            default small sets are trained for more epochs than large ones.
        validation_size: Share (below 1) or number of texts that are held out, to weigh heads and experts and to tell
            how good the model is: what is found goes to the log and to `results.json`. By default a tenth, at
            least 50 and at most 1,000, and none of fewer than 100 texts; 0 for none.
        output_dir: Where the model and its results are kept; by default nowhere, and `save_pretrained` of the pipeline
            writes the model.
        options: Any flag of `glocal-xml train`, such as `num_train_epochs`, `max_length` or `experts`.
    """
    rows = _rows(texts, labels)
    known = [field for kind in _ARGUMENTS for field in fields(kind)]
    if unknown := sorted(set(options) - {field.name for field in known if field.init}):
        raise ValueError(f"Unknown options {', '.join(unknown)}; `glocal-xml train --help` lists all options.")
    files = sorted({"train_file", "dataset_name", "streaming"} & set(options))
    if files:
        raise ValueError(f"The texts are given, so leave out {', '.join(files)}; `glocal-xml train` reads files.")
    # A command line turns strings into numbers and truth values, a call does not.
    given = {**options, "minutes": minutes, "validation_size": validation_size}
    for field in known:
        kinds = set(get_args(field.type) or [field.type])
        if isinstance(given.get(field.name), str) and kinds <= {int, float, bool, NoneType}:
            raise ValueError(
                f"`{field.name}` must be a {'truth value' if bool in kinds else 'number'}, got the string "
                f"{given[field.name]!r}."
            )
    if not isinstance(encoder, str | os.PathLike | None):
        raise ValueError(f"`encoder` must be a folder, a Hub id, a short name or None, got {encoder!r}.")
    settings = {
        "encoder": NO_ENCODER if encoder is None else os.fspath(encoder),
        "minutes": minutes,
        "model_type": model_type,
        "validation_size": validation_size,
        "num_train_epochs": min(max(math.ceil(_TEXTS_READ / len(rows)), _LEAST_EPOCHS), _MOST_EPOCHS),
        # Few texts held out are too few to choose among checkpoints.
        "save_strategy": "no",
        **{name: os.fspath(value) if isinstance(value, os.PathLike) else value for name, value in options.items()},
    }
    if isinstance(options.get("experts"), str):
        settings["experts"] = [options["experts"]]
    if options.get("model") is not None:
        # A trained model brings its encoder, and keeps its configuration.
        settings["encoder"] = None
    with TemporaryDirectory() as folder, _own_random_numbers():
        settings["output_dir"] = os.fspath(output_dir or folder)
        model_args, data_args, args = HfArgumentParser(_ARGUMENTS).parse_dict(settings)
        run(model_args, data_args, args, rows)
        tagger = pipeline(TASK, model=args.output_dir)
        # Saved with the model, which can then be evaluated, edited and trained further.
        tagger.label_space = LabelSpace.load(args.output_dir)
        return tagger


@contextmanager
def _own_random_numbers() -> Iterator[None]:
    """A run sets the seeds of all random numbers; the state of the caller is restored afterwards."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(list(range(torch.cuda.device_count()))):
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def _rows(texts: Iterable[str], labels: Iterable[Iterable[str]]) -> Dataset:
    """Texts with their labels, checked for slips that would train another model than is meant."""
    for given in (texts, labels):
        if isinstance(given, str) or not isinstance(given, Iterable):
            what = "one string" if isinstance(given, str) else repr(given)
            raise ValueError(f"`texts` and `labels` must be lists, got {what}; give `[text]` and `[[label, …]]`.")
        if hasattr(given, "columns"):
            # It would be read as the names of its columns.
            raise ValueError(
                f"`texts` and `labels` must be lists, got a table with the columns {list(given.columns)[:5]}; give "
                f"one column of it; {_NO_MULTI_HOT}."
            )
    texts, labels = list(texts), list(labels)
    if len(texts) != len(labels):
        raise ValueError(f"{len(texts)} texts, but {len(labels)} lists of labels; give one list for each text.")
    for number, (text, names) in enumerate(zip(texts, labels, strict=True)):
        if not isinstance(text, str):
            raise ValueError(f"`texts[{number}]` is {text!r}; a text must be a string.")
        if isinstance(names, str) or not isinstance(names, Iterable):
            raise ValueError(f"`labels[{number}]` is {names!r}; {_list_of(names)}.")
    strings = [[_name(label, number) for label in row] for number, row in enumerate(labels)]
    sizes = {len(row) for row in strings}
    if len(sizes) == 1 and min(sizes) > 2 and set(chain(*strings)) == {"0", "1"}:
        raise ValueError(f"`labels` are {min(sizes)} numbers for each text, all of them 0 or 1; {_NO_MULTI_HOT}.")
    if not any(strings):
        raise ValueError(f"None of the {len(texts)} texts has a label; give each the names of its labels.")
    return Dataset.from_dict({"text": [readable_text(text) for text in texts], "labels": strings})


def _list_of(names: Any) -> str:
    """What to give for labels that are no list."""
    if names is None or names != names:
        return "give a list of its labels, or leave the text out"
    inside = [delimiter for delimiter in ";|," if isinstance(names, str) and delimiter in names]
    if isinstance(names, str) and is_written_list(names):
        return "turn it into a list by `ast.literal_eval`"
    one = f"give a list, such as [{names!r}], of its labels"
    return one if not inside else f"{one}, or split it where it holds several: `labels.split({inside[0]!r})`"


def _name(label: Any, number: int) -> str:
    """The name of a label: numbers are names too, but what stands for a missing value is not."""
    if isinstance(label, str) and label.startswith(("['", '["')) and is_written_list(label):
        raise ValueError(f"`labels[{number}]` holds the string {label!r}; turn it into a list by `ast.literal_eval`.")
    if isinstance(label, str):
        return label
    if not isinstance(label, Integral) or isinstance(label, bool):
        raise ValueError(
            f"`labels[{number}]` holds {label!r}; a label must be a string or a whole number. Leave missing values "
            f"out; {_NO_MULTI_HOT}."
        )
    return str(int(label))
