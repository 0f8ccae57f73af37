"""Formats of PECOS: label indices, a tab and the text on a line; or lines of text and a sparse matrix of labels."""

import os
import re
from itertools import pairwise
from pathlib import Path

from .array_files import read_sparse_matrix
from .repository_formats import named_labels
from .rows import Records, RowProblem, converted
from .text_files import paired_lines, read_text_lines

_INDEXED_LINE = re.compile(rb"\d+(:[^,\t]*)?(,\d+(:[^,\t]*)?)*\t")


def is_indexed_line(line: bytes) -> bool:
    """Whether a line reads `label,label<tab>text`, labels being indices."""
    return _INDEXED_LINE.match(line) is not None


def read_pecos_pairs(path: Path, label_names: list[str] | None, allow_no_labels: bool) -> Records:
    """Yields (line number, (text, labels)) of lines that begin with label indices and a tab."""

    def parse(line: str) -> tuple[str, list[str]]:
        indices, tab, text = line.partition("\t")
        if not tab:
            if not allow_no_labels:
                raise RowProblem("no tab", "", "write `label,label<tab>text` with labels by their indices")
            return line, []
        # What follows a colon is a relevance, of which models here make no use.
        digits = [item.partition(":")[0] for item in indices.split(",") if item]
        if not all(item.isascii() and item.isdigit() and len(item) < 20 for item in digits):
            raise RowProblem("labels that are no indices:", repr(indices[:50]), "write `label,label<tab>text`")
        return text, named_labels([int(item) for item in digits], label_names)

    return converted(read_text_lines(path), parse)


def matrix_file(path: Path) -> Path | None:
    """The matrix of labels that belongs to a file of texts: `Y.trn.npz` to `X.trn.txt`; none where there is none."""
    if not (path.name.startswith("X") and path.name.endswith(".txt")):
        return None
    candidate = path.with_name(f"Y{path.name[1:].removesuffix('.txt')}.npz")
    return candidate if candidate.exists() else None


def read_matrix_pairs(path: Path, labels_path: str | os.PathLike | None, label_names: list[str] | None) -> Records:
    """Yields (line number, (text, labels)) of lines of text and the rows of a SciPy matrix in `.npz`."""
    labels_file = matrix_file(path) if labels_path is None else Path(labels_path)
    if labels_file is None:
        raise FileNotFoundError(
            f"the labels of {path} are not beside it: call them Y….npz where the texts are X….txt, or pass labels_path"
        )
    matrix = read_sparse_matrix(labels_file)
    # A stored zero is no label.
    matrix.eliminate_zeros()
    indices = (matrix.indices[start:stop].tolist() for start, stop in pairwise(matrix.indptr))
    labels = converted(enumerate(indices, start=1), lambda indices: named_labels(indices, label_names))
    return paired_lines(path, labels_file, labels, unit="row")
