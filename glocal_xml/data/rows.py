"""What makes a row of text and labels valid, and what happens to the rows that are not."""

import ast
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from reprlib import repr as shortened
from typing import Any

# Records with their lines; in the place of one that is broken stands a `RowProblem`.
Records = Iterator[tuple[int, Any]]
_MODES = ("error", "skip")
_KEPT_MESSAGES = 5
_BRACKETS = {"[": "]", "(": ")", "{": "}"}
# A quote after the bracket, or numbers between square ones.
_LIST_START = re.compile(r"\[\s*\]|\(\)|[\[({]\s*['\"]|\[\s*\d+\s*(,\s*\d+\s*)*\]$")


class BadRow(ValueError):
    """A row that cannot be used; the message names file, line, what is wrong and the remedy."""


@dataclass(eq=False)
class RowProblem(Exception):
    """What is wrong with the row at hand, before file and line are known."""

    reason: str
    detail: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.reason} {self.detail}".strip() + f"; {self.remedy}"


@dataclass
class BadRows:
    """Where readers report bad rows: mode "error" raises at the first one, mode "skip" counts them."""

    mode: str = "error"
    total: int = 0
    by_reason: Counter[str] = field(default_factory=Counter)
    messages: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.mode not in _MODES:
            raise ValueError(f"bad_rows is {self.mode!r}, allowed are {list(_MODES)}; choose one of them")

    def report(self, file: str | os.PathLike, line: int, problem: RowProblem) -> None:
        """Raises `BadRow` in error mode, counts the row in skip mode."""
        message = f"{os.fspath(file)}, line {line}: {problem}"
        if self.mode == "error":
            raise BadRow(message) from problem
        self.total += 1
        self.by_reason[problem.reason] += 1
        if len(self.messages) < _KEPT_MESSAGES:
            self.messages.append(message)

    def summary(self) -> str:
        """One sentence for the log: how many rows were skipped, why, and the first of them."""
        if not self.total:
            return "no bad rows"
        reasons = ", ".join(f"{reason}: {count}" for reason, count in self.by_reason.most_common())
        return f"{self.total} bad rows skipped ({reasons}); first ones: " + " | ".join(self.messages)


def converted(records: Records, step: Callable[[Any], Any]) -> Records:
    """Yields records turned into others by `step`, or into the `RowProblem` or `UnicodeError` that it raises."""
    for line, record in records:
        try:
            record = record if isinstance(record, RowProblem) else step(record)
        except RowProblem as problem:
            record = problem
        except UnicodeError:
            record = RowProblem("invalid UTF-8", "", "save the file as UTF-8 or repair the line")
        yield line, record


def good_records(source: str | os.PathLike, records: Records, bad_rows: BadRows | None = None) -> Records:
    """Yields records that are whole and reports the others, by default as an error."""
    bad_rows = bad_rows or BadRows()
    for line, record in records:
        if isinstance(record, RowProblem):
            bad_rows.report(source, line, record)
        else:
            yield line, record


def clean_row(text: Any, labels: Any, *, label_delimiter: str, allow_no_labels: bool) -> dict[str, Any]:
    """Returns `{"text", "labels"}` with labels stripped and unique, or raises `RowProblem`."""
    if not isinstance(text, str):
        raise RowProblem("wrong type", f"for the text: {shortened(text)}", "the text must be a string")
    if not text.strip():
        raise RowProblem("empty text", "", "give the row a text or remove it")
    check_encodable(text)
    names = _clean_labels(labels, label_delimiter)
    if not names and not allow_no_labels:
        raise RowProblem("no labels", "", "give the row a label, remove it, or accept such rows with allow_no_labels")
    return {"text": text, "labels": names}


def _clean_labels(labels: Any, delimiter: str) -> list[str]:
    if isinstance(labels, str):
        labels = _written_list(labels.strip()) if is_written_list(labels) else _split(labels.strip(), delimiter)
    if labels is None:
        labels = []
    if not isinstance(labels, list):
        raise RowProblem("wrong type", f"for the labels: {shortened(labels)}", "give a list of strings")
    if len(labels) > 2 and all(label in (0, 1) for label in labels):
        remedy = "give the names of those that are 1, or their numbers"
        raise RowProblem("multi-hot labels", f": {shortened(labels)}", remedy)
    names = dict.fromkeys(_clean_label(label) for label in labels)
    names.pop("", None)
    return list(names)


def _split(labels: str, delimiter: str) -> list[str]:
    names = labels.split(delimiter)
    end = _BRACKETS.get(labels[:1])
    # Brackets around several names are those of a list, which may have been cut off, and would become part of names.
    is_list = end == labels[-1:] or labels[1:2] in ("'", '"')
    if delimiter == "," and end is not None and is_list and end not in names[0] and len(names) > 1:
        raise _unreadable(labels)
    return names


def is_written_list(labels: str) -> bool:
    """Whether labels in one string are a whole list, tuple or set, as pandas writes them into the cells of a table."""
    labels = labels.strip()
    return _BRACKETS.get(labels[:1]) == labels[-1:] and bool(_LIST_START.match(labels))


def _written_list(labels: str) -> list[Any]:
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
            found = read(labels)
            # Python joins strings without a comma between them, as in lists that NumPy writes; sets have no order.
            if isinstance(found, list | tuple | set) and (
                read is json.loads or sorted("".join(labels.split())) == sorted("".join(repr(found).split()))
            ):
                return list(found)
    raise _unreadable(labels)


def _unreadable(labels: str) -> RowProblem:
    remedy = 'write ["a", "b"], or names with a delimiter'
    return RowProblem("unreadable list", f"of labels: {shortened(labels)}", remedy)


def _clean_label(label: Any) -> str:
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str):
        raise RowProblem("wrong type", f"for a label: {shortened(label)}", "labels must be strings")
    label = label.strip()
    if "\n" in label or "\r" in label:
        remedy = "replace the line break by a space, or by a comma where it separates labels"
        raise RowProblem("line break in a label", shortened(label), remedy)
    check_encodable(label)
    return label


def check_encodable(value: str) -> None:
    """Raises `RowProblem` for a string that cannot be written as UTF-8."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        remedy = "remove the half of a surrogate pair; UTF-8 cannot hold it"
        raise RowProblem("lone surrogate", f"in {shortened(value)}", remedy) from None
