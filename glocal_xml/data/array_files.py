"""Arrays and sparse matrices of `.npz` files, checked in full before anything is computed with them."""

import math
import os
import zipfile
from pathlib import Path

import numpy as np
from scipy.sparse import coo_matrix, csc_matrix, csr_matrix

from .text_files import check_expansion, check_file

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
        # NumPy would make room for what the header says before it reads.
        if min(shape, default=0) < 0 or dtype.hasobject or math.prod(shape) * dtype.itemsize > entry.file_size:
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
        raise ValueError(f"{path} is no sparse matrix of scipy.sparse.save_npz: {reason}; write it again") from error


def _checked_matrix(arrays: dict[str, np.ndarray], path: Path) -> csr_matrix:
    kind = arrays["format"].item()
    kind = kind.decode("ascii") if isinstance(kind, bytes) else kind
    names = {"csr": ("indices", "indptr"), "csc": ("indices", "indptr"), "coo": ("row", "col")}
    if kind not in names:
        raise ValueError(f"its format is {kind!r}, and csr, csc and coo are read")
    indices = [arrays[name] for name in names[kind]]
    for name, array in zip(("shape", *names[kind]), (arrays["shape"], *indices), strict=True):
        # SciPy would cut numbers off.
        if array.ndim != 1 or array.dtype.kind not in "iu" or array.max(initial=0) >= _LARGEST_SIDE:
            raise ValueError(f"its {name} are not whole numbers in one row")
    shape = arrays["shape"].tolist()
    if len(shape) != 2 or min(shape) < 0:
        raise ValueError(f"its shape is {shape}")
    # Rows without entries take room too.
    check_expansion(path, path.stat().st_size, 8 * shape[0])
    data = arrays["data"]
    if data.ndim != 1 or data.dtype.kind not in "biuf" or not np.isfinite(data).all():
        raise ValueError("its values are not finite numbers in one row")
    if kind == "coo":
        return coo_matrix((data, tuple(indices)), shape=shape).tocsr()
    matrix = (csr_matrix if kind == "csr" else csc_matrix)((data, *indices), shape=shape)
    matrix.check_format(full_check=True)
    if len(matrix.data) != len(data) or matrix.indptr[-1] != len(data):
        raise ValueError(f"its indptr ends at {indices[1][-1]}, and it has {len(data)} values")
    return matrix.tocsr()
