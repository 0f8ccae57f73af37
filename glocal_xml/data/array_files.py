"""Arrays and sparse matrices of `.npz` files, checked in full before anything is computed with them."""

import os
import zipfile
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix

from .text_files import check_expansion, check_file

_MATRICES = {"csr": csr_matrix, "csc": csc_matrix}
_LARGEST_SIDE = 2**62


def read_arrays(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """The arrays of an `.npz` file by name. No pickle is loaded, and no array is larger than the file can hold."""
    path = check_file(path)
    # Damaged files make the parsers of NumPy and zipfile raise nearly anything.
    try:
        with zipfile.ZipFile(path) as archive:
            check_expansion(path, path.stat().st_size, sum(entry.file_size for entry in archive.infolist()))
            return {entry.filename.removesuffix(".npy"): _read_array(archive, entry) for entry in archive.infolist()}
    except Exception as error:
        raise ValueError(f"{path} is no .npz file, or not a whole one ({error}); write it again") from error


def _read_array(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> np.ndarray:
    with archive.open(entry) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(file)
        number = 1
        for side in shape:
            number *= side
        # NumPy would make room for what the header says before it reads.
        if min(shape, default=0) < 0 or dtype.hasobject or number * dtype.itemsize > entry.file_size:
            raise ValueError(f"{entry.filename} has no {dtype} array of shape {shape}")
    with archive.open(entry) as file:
        return np.lib.format.read_array(file, allow_pickle=False)


def read_sparse_matrix(path: str | os.PathLike) -> csr_matrix:
    """A matrix that `scipy.sparse.save_npz` wrote as CSR, CSC or COO, with finite values."""
    path = Path(path)
    try:
        return _checked_matrix(read_arrays(path), path)
    except (KeyError, ValueError, TypeError, OverflowError) as error:
        reason = f"it lacks the array {error}" if isinstance(error, KeyError) else error
        raise ValueError(
            f"{path} is no sparse matrix as scipy.sparse.save_npz writes it: {reason}; write it again"
        ) from error


def _checked_matrix(arrays: dict[str, np.ndarray], path: Path) -> csr_matrix:
    kind = arrays["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
    if kind not in (*_MATRICES, "coo"):
        raise ValueError(f"its format is {kind!r}, and csr, csc and coo are read")
    shape = _indices(arrays["shape"], _LARGEST_SIDE, "shape").tolist()
    if len(shape) != 2:
        raise ValueError(f"its shape is {shape}")
    # Rows without entries take room too.
    check_expansion(path, path.stat().st_size, 8 * shape[0])
    data = arrays["data"]
    if data.ndim != 1 or data.dtype.kind not in "biuf" or not np.isfinite(data).all():
        raise ValueError("its values are not finite numbers in one row")
    if kind == "coo":
        rows = _indices(arrays["row"], shape[0], "row")
        columns = _indices(arrays["col"], shape[1], "col")
        _check_lengths(data, rows, columns)
        return coo_matrix((data, (rows, columns)), shape=shape).tocsr()
    lines, others = shape if kind == "csr" else shape[::-1]
    starts, indices = _indices(arrays["indptr"], len(data) + 1, "indptr"), _indices(arrays["indices"], others)
    _check_lengths(data, indices)
    if len(starts) != lines + 1 or starts[0] != 0 or starts[-1] != len(data) or (np.diff(starts) < 0).any():
        raise ValueError(f"its indptr does not rise from 0 to {len(data)} in {lines} steps")
    return _MATRICES[kind]((data, indices, starts), shape=shape).tocsr()


def _indices(array: np.ndarray, limit: int, name: str = "indices") -> np.ndarray:
    """An array of whole numbers from 0 to below the limit."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"its {name} are not whole numbers in one row")
    if len(array) and not 0 <= int(array.min()) <= int(array.max()) < limit:
        raise ValueError(f"its {name} go from {array.min()} to {array.max()}, and 0 to {limit - 1} is allowed")
    return array.astype(np.int64)


def _check_lengths(data: np.ndarray, *others: np.ndarray) -> None:
    if any(len(other) != len(data) for other in others):
        raise ValueError(f"it has {len(data)} values and {' and '.join(str(len(other)) for other in others)} indices")
