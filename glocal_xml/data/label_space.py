"""The label space of a dataset: names, training counts, and what follows from the counts."""

import json
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic_file import write_atomically
from ..json_text import read_json_object

_NAMES_FILE = "labels.txt"
_COUNTS_FILE = "label_counts.json"
LABEL_SPACE_FILES = (_NAMES_FILE, _COUNTS_FILE)
# Fewest and most training texts of the labels of a band.
BAND_LIMITS = {"unseen": (0, 0), "few": (1, 20), "medium": (21, 100), "many": (101, math.inf)}


@dataclass
class LabelSpace:
    """The labels of a model and how often each was seen in training.

    Args:
        names: Label i of the model is `names[i]`.
        counts: Training texts per label; 0 for a label of the taxonomy without a text.
        num_texts: Training texts.
        unseen: Labels met only in evaluation data; their ids continue after those of `names`.
    """

    names: list[str]
    counts: list[int]
    num_texts: int
    unseen: list[str] = field(default_factory=list)
    _ids: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("the label space has no labels; give training data with at least one label")
        if len(self.counts) != len(self.names):
            raise ValueError(f"there are {len(self.names)} names but {len(self.counts)} counts; give one per label")
        if self.num_texts < 1:
            raise ValueError(f"num_texts is {self.num_texts}; give the number of training texts, at least 1")
        if min(self.counts) < 0 or max(self.counts) > self.num_texts:
            raise ValueError(f"counts must lie between 0 and num_texts ({self.num_texts}); count each text once")
        _check_names([*self.names, *self.unseen])
        self._ids = {name: i for i, name in enumerate([*self.names, *self.unseen])}

    @classmethod
    def from_label_lists(cls, label_lists: Iterable[list[str]], names: Sequence[str] | None = None) -> "LabelSpace":
        """Counts the labels of the training texts.

        `names` is a whole taxonomy in its own order; without it the names met are sorted.
        """
        times: Counter[str] = Counter()
        num_texts = 0
        for labels in label_lists:
            num_texts += 1
            times.update(set(_checked_list(labels)))
        if names is None:
            _check_names(list(times))
            names = sorted(times)
        outside = times.keys() - set(names)
        if outside:
            raise ValueError(
                f"{len(outside)} labels are not among the {len(names)} names given, such as {sorted(outside)[:5]}; "
                "add them to the names or remove them from the data"
            )
        return cls(names=list(names), counts=[times[name] for name in names], num_texts=num_texts)

    @property
    def num_labels(self) -> int:
        """Labels of the model, those met only in evaluation data left out."""
        return len(self.names)

    def add_unseen(self, label_lists: Iterable[list[str]]) -> list[str]:
        """Adds the labels that are not known yet as unseen ones and returns them, sorted."""
        new = sorted({label for labels in label_lists for label in labels if label not in self._ids})
        _check_names(new)
        self._ids.update((name, i) for i, name in enumerate(new, start=len(self._ids)))
        self.unseen.extend(new)
        return new

    def encode(self, labels: Iterable[str]) -> list[int]:
        """Returns the ids of the labels, ascending and unique; those of unseen labels are >= `num_labels`."""
        try:
            return sorted({self._ids[label] for label in _checked_list(labels)})
        except KeyError as error:
            raise ValueError(
                f"label {error.args[0]!r} is not among the {len(self._ids)} labels known; "
                "train a new model with it, or add it to a trained one by `glocal-xml labels --add`"
            ) from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Returns the names of label ids."""
        names = []
        for i in ids:
            if not 0 <= i < len(self._ids):
                raise ValueError(f"label id {i} is not between 0 and {len(self._ids) - 1}; remove padding first")
            names.append(self.names[i] if i < self.num_labels else self.unseen[i - self.num_labels])
        return names

    def inverse_propensities(self, a: float = 0.55, b: float = 1.5) -> np.ndarray:
        """Returns the inverse propensity (Jain et al. 2016) of every label, unseen ones at the end."""
        if b <= 0:
            raise ValueError(f"b is {b}, it must be above 0; 1.5, 0.4 and 2.6 are usual")
        # The model is of large collections: below three texts its scale would turn negative, and weights with it.
        scale = max(math.log(self.num_texts) - 1, 0.0) * (b + 1) ** a
        return 1 + scale * (self._all_counts() + b) ** -a

    def bands(self) -> dict[str, np.ndarray]:
        """Returns the ids of unseen (0 training texts), few (1-20), medium (21-100) and many (> 100) labels."""
        counts = self._all_counts()
        return {
            name: np.flatnonzero((counts >= lowest) & (counts <= highest))
            for name, (lowest, highest) in BAND_LIMITS.items()
        }

    def log_odds(self) -> np.ndarray:
        """Returns the smoothed training log-odds of each label of the model, as float32."""
        counts = np.asarray(self.counts, dtype=np.float64)
        return np.log((counts + 0.5) / (self.num_texts - counts + 0.5)).astype(np.float32)

    def describe(self) -> str:
        """Returns one line on the size of the label space and of its bands."""
        bands = ", ".join(f"{name} {len(ids):,}" for name, ids in self.bands().items())
        return (
            f"{self.num_labels:,} labels, {self.num_texts:,} texts, {sum(self.counts) / self.num_texts:.2f} labels "
            f"per text; labels by training texts: {bands}; {len(self.unseen):,} met only in evaluation data"
        )

    def save(self, folder: str | os.PathLike) -> None:
        """Writes `labels.txt` (line i is label i) and `label_counts.json`; unseen labels are not kept."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        counts = {"num_texts": int(self.num_texts), "counts": [int(count) for count in self.counts]}
        write_atomically(folder / _NAMES_FILE, "".join(f"{name}\n" for name in self.names))
        write_atomically(folder / _COUNTS_FILE, json.dumps(counts) + "\n")

    @classmethod
    def load(cls, folder: str | os.PathLike) -> "LabelSpace":
        """Reads what `save` wrote."""
        folder = Path(folder)
        try:
            text, counts = (folder / _NAMES_FILE).read_bytes().decode("utf-8"), read_json_object(folder / _COUNTS_FILE)
            if not text.endswith("\n"):
                raise ValueError(f"{_NAMES_FILE} ends within a name")
            numbers = [counts["num_texts"], *counts["counts"]]
            if any(type(number) is not int for number in numbers):
                raise ValueError(f"{_COUNTS_FILE} must hold whole numbers")
            return cls(names=text.split("\n")[:-1], counts=numbers[1:], num_texts=numbers[0])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{_NAMES_FILE} and {_COUNTS_FILE} in {folder} do not fit together ({error}); "
                "restore both from the same training run"
            ) from error

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        # The dataset cache pickles its arguments in Python to hash them: one string is fast, 500,000 names are not.
        counts = [int(count) for count in self.counts]
        return _from_json, (json.dumps([self.names, counts, int(self.num_texts), self.unseen]),)

    def _all_counts(self) -> np.ndarray:
        return np.asarray([*self.counts, *[0] * len(self.unseen)], dtype=np.float64)


def _from_json(fields: str) -> LabelSpace:
    return LabelSpace(*json.loads(fields))


def _checked_list(labels: Iterable[str]) -> Iterable[str]:
    # Its letters would be taken for labels.
    if isinstance(labels, str) or not isinstance(labels, Iterable):
        raise ValueError(f"the labels of a text are {labels!r}; give a list of names, such as [{labels!r}]")
    return labels


def _check_names(names: list[str]) -> None:
    bad = [name for name in names if not isinstance(name, str)]
    if bad:
        raise ValueError(f"label name {bad[0]!r} is no string; turn it into one")
    bad = [name for name in names if not name or "\n" in name or "\r" in name]
    if bad:
        raise ValueError(f"label name {bad[0]!r} is empty or has a line break; labels.txt keeps one name per line")
    if len(set(names)) != len(names):
        name, count = Counter(names).most_common(1)[0]
        raise ValueError(f"label name {name!r} occurs {count} times; give every label a name of its own")
