"""Datasets: files or loaded splits become texts with label ids, texts become tokens."""

import logging
import os
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import datasets
import numpy as np
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict

from .label_space import LabelSpace
from .readers import read_rows
from .sources import FileSource, LoadedSource, guess_label_delimiter, scan

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

AnyDataset = TypeVar("AnyDataset", Dataset, IterableDataset, DatasetDict, IterableDatasetDict)

_PARTS = ("train", "validation", "test")
# What may stand between labels that are in one string, the likeliest first.
_JOINED_BY = (";", "|", ",", "#", "/", "+", "\t", " ")
_MISSING = {"nan", "NaN", "None", "<NA>", "NaT"}


def load_xmtc_dataset(
    files: Mapping[str, str | os.PathLike | Dataset | IterableDataset],
    *,
    label_space: LabelSpace | None = None,
    label_names: list[str] | None = None,
    streaming: bool = False,
    bad_rows: str = "error",
    **reader_options: Any,
) -> tuple[DatasetDict | IterableDatasetDict, LabelSpace]:
    """Loads the parts of a dataset with the columns `text` and `labels` (label ids).

    Every part is read once to check its rows and to collect its labels, and once more to encode them.

    Args:
        files: The parts "train", "validation" and "test", each a file that `read_rows` reads or a loaded dataset
            with a column of texts and one of labels: lists of strings, of class ids, or delimited strings.
        label_space: The labels of a trained model; without it they are those of the train part.
        label_names: A whole taxonomy in its own order, for a label space that is made here.
        streaming: Whether rows are read while they are used, instead of being written to the Arrow cache first.
        bad_rows: "error" to stop at the first bad row, "skip" to leave bad rows out and log their number.
        reader_options: Options of `read_rows`, the same for all parts. Without a `label_delimiter`, labels in one
            string are separated by the only one of `,`, `;` and `|` that a part holds, or by the one that gives most
            labels that are known.
    """
    _check_request(files, label_space, label_names, reader_options)
    names = [name for name in _PARTS if name in files]
    if label_space is not None:
        label_space = replace(label_space, unseen=list(label_space.unseen))
    sources: dict[str, FileSource | LoadedSource] = {}
    given, earlier = reader_options.get("label_delimiter"), None
    for name in names:
        source = _source(name, files[name], streaming, bad_rows, dict(reader_options))
        if given is None:
            known = () if label_space is None else set(label_space.names)
            guessed = guess_label_delimiter(source.written_labels(), name, known, earlier)
            earlier = earlier or guessed
            source.options["label_delimiter"] = guessed
        sources[name] = source
        # The train part comes first.
        if label_space is None:
            label_space = LabelSpace.from_label_lists(scan(source), names=label_names)
            warn_of_names(label_space.names)
            if label_names is None:
                _warn_of_joined_names(label_space)
        elif name == "train":
            _check_trained(scan(source), label_space)
        else:
            _add_unseen(label_space, {label for labels in scan(source) for label in labels}, name)
    encoded = {name: source.encode(label_space) for name, source in sources.items()}
    return (IterableDatasetDict if streaming else DatasetDict)(encoded), label_space


def _check_request(
    files: Mapping[str, Any], label_space: LabelSpace | None, label_names: list[str] | None, options: dict[str, Any]
) -> None:
    if not isinstance(files, Mapping):
        raise ValueError(f'files is a {type(files).__name__}; give its parts by name, such as {{"train": …}}')
    if not files or not set(files) <= set(_PARTS):
        raise ValueError(f"files has the parts {sorted(files)}, allowed are {list(_PARTS)}; rename or remove others")
    known = list(signature(read_rows).parameters)[1:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise ValueError(f"unknown options {unknown}, allowed are {known}; correct or remove them")
    if label_space is not None and label_names is not None:
        raise ValueError("label_space and label_names are both given; the space has names already, leave one out")
    if label_space is None and "train" not in files:
        raise ValueError("there is neither a train part nor a label_space; give the label_space of the trained model")
    if options.get("labels_path") is not None and len(files) > 1:
        raise ValueError(
            f"labels_path is one file, but there are {len(files)} parts; leave it out and call the label files "
            "like the text files, with `labels` in place of `texts`"
        )


def _source(
    name: str, source: Any, streaming: bool, bad_rows: str, options: dict[str, Any]
) -> FileSource | LoadedSource:
    if not isinstance(source, (str, os.PathLike, Dataset, IterableDataset)):
        raise ValueError(
            f"the {name} part is a {type(source).__name__}; give a file or a dataset: `Dataset.from_pandas` and "
            "`Dataset.from_list` make one of tables and lists"
        )
    if not isinstance(source, (Dataset, IterableDataset)):
        return FileSource(name, bad_rows, options, Path(source), streaming)
    if isinstance(source, IterableDataset) and not streaming:
        raise ValueError(f"the {name} part is an IterableDataset; pass streaming=True")
    if isinstance(source, Dataset) and streaming:
        source = source.to_iterable_dataset()
    return LoadedSource(name, bad_rows, options, source)


def _check_trained(label_lists: Iterable[list[str]], label_space: LabelSpace) -> None:
    unknown = sorted({label for labels in label_lists for label in labels} - set(label_space.names))
    if unknown:
        raise ValueError(
            f"the train part has {len(unknown)} labels that the model does not have, such as {unknown[:5]}; add them "
            "to it by `glocal-xml labels --add`, remove them from the texts, or train a new model"
        )


def _add_unseen(label_space: LabelSpace, labels: set[str], part: str) -> None:
    """Adds labels of evaluation data that are not known, and warns of them."""
    known = [*label_space.names, *label_space.unseen]
    if not (unseen := label_space.add_unseen([list(labels)])):
        return
    logger.warning("%d labels of the %s part have no training text, such as %s", len(unseen), part, unseen[:5])
    if 2 * len(unseen) > len(labels):
        logger.warning(
            "These are most of the %d labels of the %s part: write them as in training, or set label_delimiter",
            *(len(labels), part),
        )
    warn_of_names([*known, *unseen], known)


def _warn_of_joined_names(label_space: LabelSpace) -> None:
    """Warns where each text has one label, and these look like several in one string."""
    names = label_space.names
    if sum(label_space.counts) > label_space.num_texts:
        return
    for separator in _JOINED_BY:
        joined = [name for name in names if separator in name]
        if len(names) >= 2 * len(joined):
            continue
        places: dict[str, list[int]] = {}
        for name in names:
            for place, part in enumerate(name.split(separator)):
                places.setdefault(part.strip(), []).append(place)
        parts = places.keys() - {""}
        # In paths and phrases, such as "home/lamps/new" and "red car", hardly a part changes its place.
        repeated = [set(places[part]) for part in parts if len(places[part]) > 1]
        changing = sum(len(found) > 1 for found in repeated)
        if len(parts) < len(names) and 4 * changing >= len(repeated):
            logger.warning(
                "No text has more than one label, and %r separates %d different names in these %d labels, such as %r: "
                "set label_delimiter, or give lists of names, if a text has several",
                *(separator, len(parts), len(names), min(joined, key=len)),
            )
            return


def warn_of_names(names: list[str], known: Iterable[str] = ()) -> None:
    """Warns of labels that people would take for the same one, but for known ones, and of what is no label."""
    if names == ["0", "1"]:
        logger.warning(
            "The only labels are 0 and 1: where they are rows of a matrix with a column for each label, give the "
            "names of the labels that are 1 instead"
        )
    known, spellings = set(known), dict[str, list[str]]()
    for name in names:
        spellings.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    missing = sorted(_MISSING & (set(names) - known))
    if missing:
        logger.warning("pandas writes %s for missing values: remove such labels if they are none", missing)
    several = [found for found in spellings.values() if len(found) > 1 and not known.issuperset(found)]
    if several:
        logger.warning(
            "%d labels are written in several ways that differ in case, spaces or Unicode form alone, such as %s: "
            "each is a label of its own; write them in one way if they are the same",
            *(len(several), " and ".join(map(ascii, several[0]))),
        )


def load_hub_dataset(
    name_or_path: str | os.PathLike,
    *,
    config: str | None = None,
    text_column: str,
    labels_column: str,
    split_map: Mapping[str, str] | None = None,
    streaming: bool = False,
    revision: str | None = None,
) -> dict[str, Dataset | IterableDataset]:
    """Loads splits for `load_xmtc_dataset`, with their columns renamed to `text` and `labels`.

    Args:
        name_or_path: A folder written by `save_to_disk`, or anything `datasets.load_dataset` takes.
        config, streaming, revision: As `datasets.load_dataset` takes them.
        split_map: Which split is "train", "validation" and "test"; by default those of these names.
    """
    path = Path(name_or_path)
    if (path / "state.json").is_file() or (path / "dataset_dict.json").is_file():
        loaded = datasets.load_from_disk(os.fspath(path))
    else:
        loaded = datasets.load_dataset(os.fspath(name_or_path), config, streaming=streaming, revision=revision)
    splits = {"train": loaded} if isinstance(loaded, Dataset) else dict(loaded)
    if split_map is None:
        split_map = {name: name for name in _PARTS if name in splits}
    missing = sorted(set(split_map.values()) - set(splits))
    if missing or not split_map:
        raise ValueError(
            f"{name_or_path} has the splits {sorted(splits)}, wanted are {sorted(split_map.values()) or _PARTS}; "
            'pass split_map, such as {"train": "train", "validation": "dev"}'
        )
    wanted = {text_column: "text", labels_column: "labels"}
    renamed = {old: new for old, new in wanted.items() if old != new}
    found = {}
    for name, split in split_map.items():
        known = splits[split].column_names or list(wanted)
        missing = [column for column in wanted if column not in known]
        if missing:
            raise ValueError(f"the dataset has no column {missing[0]!r}, only {known}; name the right one")
        found[name] = splits[split].select_columns(list(wanted)).rename_columns(renamed)
    return found


def split_validation(dataset: Dataset, *, fraction_or_size: float | int, seed: int) -> tuple[Dataset, Dataset]:
    """Sets texts aside at random and returns (training part, validation part), each in its old order.

    `fraction_or_size` is a fraction when it lies between 0 and 1, a number of texts when it is an integer from 1.
    """
    is_fraction = isinstance(fraction_or_size, float) and 0 < fraction_or_size < 1
    is_size = type(fraction_or_size) is int and fraction_or_size >= 1
    if not is_fraction and not is_size:
        raise ValueError(f"fraction_or_size is {fraction_or_size!r}; give a fraction in (0, 1) or a number from 1 up")
    size = max(1, round(fraction_or_size * len(dataset))) if is_fraction else fraction_or_size
    if size >= len(dataset):
        raise ValueError(f"{size} of {len(dataset)} texts for validation leave none for training; give fewer of them")
    order = np.random.default_rng(seed).permutation(len(dataset))
    return dataset.select(np.sort(order[size:])), dataset.select(np.sort(order[:size]))


def tokenize(
    dataset: AnyDataset, tokenizer: "PreTrainedTokenizerBase", max_length: int, num_proc: int | None = None
) -> AnyDataset:
    """Replaces `text` by the token fields, truncated to `max_length` and not padded, and adds their `length`."""
    special = tokenizer.num_special_tokens_to_add()
    if max_length <= special:
        raise ValueError(f"max_length is {max_length}, but {special} special tokens count; give more than {special}")
    options = {} if num_proc is None else {"num_proc": num_proc}
    if options and isinstance(dataset, (IterableDataset, IterableDatasetDict)):
        raise ValueError(f"num_proc is {num_proc}, but a streamed dataset is tokenized while it is read; leave it out")
    options["fn_kwargs"] = {"tokenizer": tokenizer, "max_length": max_length}
    return dataset.map(_tokenize_batch, batched=True, remove_columns=["text"], **options)


def _tokenize_batch(
    batch: dict[str, list[Any]], tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> dict[str, list[Any]]:
    tokens = tokenizer(batch["text"], truncation=True, max_length=max_length)
    return {**tokens, "length": [len(ids) for ids in tokens["input_ids"]]}
