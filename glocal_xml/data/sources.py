"""Where the rows of one part of a dataset come from: a file, or a dataset that is already loaded."""

import hashlib
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, IterableDataset, List, NamedSplit, Value

from .label_space import LabelSpace
from .readers import read_rows, read_written_labels, valid_rows
from .rows import BadRows, RowProblem, converted, is_written_list

logger = logging.getLogger(__name__)

_LABEL_DELIMITERS = (",", ";", "|")
# Rows that decide what separates labels.
_GUESSED_ROWS = 1000
_FEATURES = Features({"text": Value("string"), "labels": List(Value("int32"))})


@dataclass
class FileSource:
    """A part of a dataset in a file that `read_rows` reads with these options."""

    name: str
    bad_rows: str
    options: dict[str, Any]
    path: Path
    streaming: bool
    digest: str = ""

    def rows(self, bad_rows: BadRows) -> Iterator[dict[str, Any]]:
        """Yields the valid rows, and reports others."""
        digest = hashlib.blake2b()
        for row in read_rows(self.path, bad_rows=bad_rows, **self.options):
            digest.update(repr(row).encode("utf-8"))
            yield row
        self.digest = digest.hexdigest()

    def written_labels(self) -> Iterator[Any]:
        """Yields the labels of rows that have some, as they are written."""
        return read_written_labels(self.path, **self.options)

    def encode(self, label_space: LabelSpace) -> Dataset | IterableDataset:
        """Returns the valid rows with label ids; to be called after `scan`."""
        maker = IterableDataset if self.streaming else Dataset
        # The digest of the rows is part of the source, so the Arrow cache of an edited file is not used again.
        given = {"source": self, "label_space": label_space}
        return maker.from_generator(_encoded_rows, features=_FEATURES, gen_kwargs=given, split=NamedSplit(self.name))


def _encoded_rows(source: FileSource, label_space: LabelSpace) -> Iterator[dict[str, Any]]:
    for row in source.rows(BadRows(source.bad_rows)):
        yield {"text": row["text"], "labels": label_space.encode(row["labels"])}


@dataclass
class LoadedSource:
    """A part of a dataset that is loaded, read by options of `read_rows`."""

    name: str
    bad_rows: str
    options: dict[str, Any]
    dataset: Dataset | IterableDataset

    def __post_init__(self) -> None:
        self.text_column, self.labels_column = (
            self.options.get(f"{name}_column", name) for name in ("text", "labels")
        )
        wanted = [self.text_column, self.labels_column]
        # A streamed dataset may not know its columns before its first row.
        known = self.dataset.column_names or wanted
        needed = wanted[:1] if self.options.get("allow_no_labels") else wanted
        missing = [column for column in needed if column not in known]
        if missing:
            raise ValueError(
                f"the {self.name} dataset has no column {missing[0]!r}, only {known}; "
                "name the right ones as text_column and labels_column"
            )
        inner = getattr((self.dataset.features or {}).get(self.labels_column), "feature", None)
        self.class_names = inner.names if isinstance(inner, ClassLabel) else None
        self.columns = [column for column in wanted if column in known]
        self.dataset = self.dataset.with_format(None).select_columns(self.columns)

    def __getstate__(self) -> dict[str, Any]:
        # The dataset cache hashes how rows are read, for which it need not read all of them.
        return {**vars(self), "dataset": None}

    def rows(self, bad_rows: BadRows, records: Iterable[dict[str, Any]] | None = None) -> Iterator[dict[str, Any]]:
        """Yields the valid rows, of all records or of these, and reports others."""
        pairs = converted(enumerate(self.dataset if records is None else records, start=1), self._parse)
        delimiter, allow_no_labels = self.options.get("label_delimiter"), self.options.get("allow_no_labels", False)
        return valid_rows(f"{self.name} dataset", pairs, delimiter or ",", allow_no_labels, bad_rows)

    def _parse(self, row: dict[str, Any]) -> tuple[Any, Any]:
        # Arrow turns a field that a row does not have into a null.
        labels = row.get(self.labels_column)
        if self.class_names is not None and isinstance(labels, list):
            number = len(self.class_names)
            outside = [label for label in labels if not isinstance(label, int) or not 0 <= label < number]
            if outside:
                allowed = f"the class names have ids from 0 to {number - 1}; repair the row"
                raise RowProblem("class id outside the names:", repr(outside[0]), allowed)
            labels = [self.class_names[label] for label in labels]
        return row[self.text_column], labels

    def written_labels(self) -> Iterator[Any]:
        """Yields the labels of rows that have some, as they are written."""
        values = (row.get(self.labels_column) for row in self.dataset)
        return (value for value in values if value not in (None, []))

    def encode(self, label_space: LabelSpace) -> Dataset | IterableDataset:
        """Returns the valid rows with label ids; to be called after `scan`."""
        given = {"source": self, "label_space": label_space}
        options = {"batched": True, "remove_columns": self.columns, "features": _FEATURES, "fn_kwargs": given}
        return self.dataset.map(_encode_batch, **options)


def _encode_batch(batch: dict[str, list[Any]], source: LoadedSource, label_space: LabelSpace) -> dict[str, list[Any]]:
    records = (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
    # The scan has reported bad rows already; here they are only left out.
    rows = list(source.rows(BadRows("skip"), records))
    return {"text": [row["text"] for row in rows], "labels": [label_space.encode(row["labels"]) for row in rows]}


def scan(source: FileSource | LoadedSource) -> Iterator[list[str]]:
    """Yields the labels of each valid row, then logs the bad rows."""
    bad_rows, is_empty = BadRows(source.bad_rows), True
    for row in source.rows(bad_rows):
        is_empty = False
        yield row["labels"]
    if is_empty:
        raise ValueError(f"the {source.name} part has no valid rows ({bad_rows.summary()}); give at least one")
    if bad_rows.total:
        logger.warning("%s part: %s", source.name, bad_rows.summary())


def guess_label_delimiter(
    written_labels: Iterable[Any], name: str, known: Collection[str] = (), earlier: str | None = None
) -> str | None:
    """
    What separates labels: where some are known, what makes the most known ones of the strings, preferably what
    separates them in the training texts, `earlier`. Else the only delimiter that they hold; a comma where there are
    several, nothing where there is none. Warnings call the strings those of the part `name`.
    """
    # Of all rows with labels: where they are lists, a stream would be read to its end in search of a string.
    looked_at = islice(written_labels, _GUESSED_ROWS)
    rows = [row for row in looked_at if isinstance(row, str) and not is_written_list(row)]
    counts = {delimiter: sum(delimiter in row for row in rows) for delimiter in _LABEL_DELIMITERS}
    found = [delimiter for delimiter, count in counts.items() if count]
    # Of equals the first.
    choices = dict.fromkeys((earlier or ",", *_LABEL_DELIMITERS))
    shares = {}
    for delimiter in choices if known else ():
        labels = [label.strip() for row in rows for label in row.split(delimiter)]
        shares[delimiter] = sum(label in known for label in labels) / max(len(labels), 1)
    if any(shares.values()):
        found = [max(shares, key=shares.get)]
    elif earlier is not None:
        return earlier if rows else None
    if len(found) > 1:
        seen = ", ".join(f"{delimiter!r} in {counts[delimiter]}" for delimiter in found)
        logger.warning(
            "%s part: label strings hold several delimiters (%s of %d rows): a comma separates labels; set "
            "label_delimiter to choose another one",
            *(name, seen, len(rows)),
        )
        return ","
    if found and found[0] not in (",", earlier):
        logger.warning("%s part: labels are separated by %r; set label_delimiter if they are not", name, found[0])
    return found[0] if found else None


def read_known_rows(path: str | os.PathLike, known: Iterable[str], **options: Any) -> Iterator[dict[str, Any]]:
    """The rows of a file as `read_rows` gives them; labels in one string are separated as fits known ones."""
    if options.get("label_delimiter") is None:
        options["label_delimiter"] = guess_label_delimiter(read_written_labels(path, **options), str(path), set(known))
    return read_rows(path, **options)
