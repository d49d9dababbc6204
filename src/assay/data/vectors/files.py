"""Vectors from the files people have, mapped and not loaded.

- `.fvecs`, `.bvecs`, `.ivecs` (TEXMEX): every row begins with its dimension in four bytes;
- `.fbin`, `.u8bin`, `.i8bin`, `.ibin` (big-ann-benchmarks): the number of rows, the dimension, then the rows;
- `.npy`; `.hdf5` (ann-benchmarks: the set `train`), with h5py; `.dat`, `.txt`: white space between numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.record import reading
from assay.record.errors import BadInput
from assay.record.extras import missing_module

Rows = npt.NDArray[Any]

HEADED: dict[str, np.dtype[Any]] = {".fvecs": np.dtype("<f4"), ".ivecs": np.dtype("<i4"), ".bvecs": np.dtype("u1")}
COUNTED: dict[str, np.dtype[Any]] = {
    ".fbin": np.dtype("<f4"), ".ibin": np.dtype("<i4"), ".u8bin": np.dtype("u1"), ".i8bin": np.dtype("i1"),
}  # fmt: skip


def read_vectors(path: Path) -> Rows:
    """The rows of a file, (n, d), read-only. A ValueError of one line says what is wrong with it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_vectors(Path(folder, "a.fvecs"), np.array([[1, 2], [3, 4]], np.float32))
    ...     read_vectors(Path(folder, "a.fvecs")).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    suffix = path.suffix.lower()
    if suffix in HEADED:
        return _headed(path, HEADED[suffix])
    if suffix in COUNTED:
        return _counted(path, COUNTED[suffix])
    if suffix == ".npy":
        return _npy(path)
    if suffix in (".hdf5", ".h5"):
        return _hdf5(path)
    if suffix in (".dat", ".txt"):
        return _text(path)
    known = ", ".join([*HEADED, *COUNTED, ".npy", ".hdf5", ".dat"])
    raise ValueError(f"{path}: no format of vectors has this suffix; {known} expected")


def write_vectors(path: Path, rows: Rows) -> None:
    """Write rows in the binary format of the suffix; they must have its type."""
    suffix = path.suffix.lower()
    kind = HEADED.get(suffix) or COUNTED.get(suffix)
    if kind is None or rows.ndim != 2 or rows.dtype != kind:
        raise ValueError(f"{path}: {rows.dtype} of shape {rows.shape}; {kind or 'fvecs or fbin'}, (n, d), expected")
    n, d = rows.shape
    with path.open("wb") as file:
        if suffix in COUNTED:
            file.write(np.array([n, d], "<u4").tobytes() + rows.tobytes())
        else:
            whole = np.empty((n, 4 + d * kind.itemsize), np.uint8)
            whole[:, :4] = np.frombuffer(np.int32(d).tobytes(), np.uint8)
            whole[:, 4:] = np.ascontiguousarray(rows).view(np.uint8).reshape(n, -1)
            file.write(whole.tobytes())


def _headed(path: Path, kind: np.dtype[Any]) -> Rows:
    size = path.stat().st_size
    if size < 4:
        raise ValueError(f"{path}: {size} bytes; rows that begin with their dimension expected")
    raw = np.memmap(path, np.uint8, "r")
    d = int(raw[:4].view("<i4")[0])
    row = 4 + d * kind.itemsize
    if d < 1 or size % row:
        raise ValueError(
            f"{path}: rows of dimension {d} take {row} bytes, the file has {size}: cut, or of another format"
        )
    rows = raw.reshape(-1, row)
    if (rows[:, :4] != rows[0, :4]).any():
        raise ValueError(f"{path}: rows of different dimensions; {d} in all of them expected")
    return rows[:, 4:].view(kind)


def _counted(path: Path, kind: np.dtype[Any]) -> Rows:
    size = path.stat().st_size
    if size < 8:
        raise ValueError(f"{path}: {size} bytes; the number of rows and the dimension expected first")
    n, d = np.fromfile(path, "<u4", 2).tolist()
    need = 8 + n * d * kind.itemsize
    if size != need:
        raise ValueError(
            f"{path}: {n} rows of dimension {d} take {need} bytes, the file has {size}: cut, or another format"
        )
    return np.memmap(path, kind, "r", 8, (n, d)) if n * d else np.empty((n, d), kind)


def _npy(path: Path) -> Rows:
    try:
        rows = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{path}: {reading.no_array(error)}; an array of numbers by numpy.save expected") from None
    if rows.ndim != 2 or rows.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {rows.dtype} of shape {rows.shape}; numbers of shape (n, d) expected")
    return rows  # type: ignore[no-any-return]


def _hdf5(path: Path) -> Rows:
    try:
        import h5py
    except ModuleNotFoundError as error:
        raise BadInput(missing_module("reading HDF5", error)) from error
    try:
        with h5py.File(path, "r") as file:
            return np.asarray(file["train"])
    except (OSError, KeyError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}; HDF5 with a set 'train' expected") from None


def _text(path: Path) -> Rows:
    rows: list[list[float]] = []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                row = [float(word) for word in line.replace(",", " ").split()]
            except ValueError:
                raise ValueError(f"{path}, line {number}: {line.strip()[:60]!r}; numbers expected") from None
            if row and rows and len(row) != len(rows[0]):
                raise ValueError(f"{path}, line {number}: {len(row)} numbers; {len(rows[0])} expected, as before")
            rows += [row] if row else []
    if not rows:
        raise ValueError(f"{path}: no numbers; a vector a line expected")
    return np.array(rows, np.float32)
