"""Directed edges from the files people have, a block at a time, so that a list longer than memory can be read.

:func:`read_edges` takes SNAP edge lists (plain or `.gz`; `#` and `%` are comments, further columns are ignored), OGB
folders and `edge.csv.gz`, `edge_index.npy` of OGB and IGB, Matrix Market coordinate files, and SciPy's `.npz`. Node
numbers are row numbers of the features: integers from 0, and a Matrix Market file's from 1.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from assay.data.disk.arrays import DiskArray
from assay.sim.compiled import njit

Edges = npt.NDArray[np.int64]

BLOCK = 1 << 22  # bytes of text, or of numbers, at a time
MOST = 2**31 - 1  # nodes: their numbers are kept in four bytes


def read_edges(path: Path, undirected: bool = False) -> Iterator[Edges]:
    """Yield blocks of (source, target) pairs, in the order of the file. A ValueError of one line tells what is wrong.

    With `undirected` every edge comes in both directions, and a self-loop once.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "web.txt")
    ...     _ = file.write_text("# FromNodeId ToNodeId\\n0\\t2\\n2\\t1\\n")
    ...     [block.tolist() for block in read_edges(file)]
    [[[0, 2], [2, 1]]]
    """
    if undirected:
        for block in read_edges(path):
            yield block
            yield np.ascontiguousarray(block[block[:, 0] != block[:, 1]][:, ::-1])
        return
    path = _inside(path)
    name = path.name.lower()
    try:
        if name.endswith(".npy"):
            yield from _npy(path)
        elif name.endswith(".npz"):
            yield from _npz(path)
        elif name.endswith((".mtx", ".mtx.gz")):
            yield from _matrix_market(path)
        else:
            yield from _text(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: broken gzip data ({error}); a complete .gz file expected") from None


def _inside(path: Path) -> Path:
    """The edges of an OGB data set's folder."""
    if not path.is_dir():
        return path
    for name in ("raw/edge.csv.gz", "edge.csv.gz", "edge_index.npy", "raw/edge_index.npy", "edge.csv"):
        if (path / name).is_file():
            return path / name
    raise ValueError(f"{path}: no edges in this folder; raw/edge.csv.gz or edge_index.npy expected, as OGB has them")


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


# --------------------------------------------------------------------------------------------- text


def _text(path: Path, skip: int = 0, least: int = 0) -> Iterator[Edges]:
    """Pairs of numbers a line, after `skip` lines; the least number that may occur becomes 0."""
    line, found, rest = skip, False, b""
    with _open(path) as file:
        for _ in range(skip):
            file.readline()
        while True:
            read = file.read(BLOCK)
            whole = rest + read
            cut = whole.rfind(b"\n") + 1 if read else len(whole)
            whole, rest = whole[:cut], whole[cut:]
            if whole:
                yield from _pairs(path, whole, line, found, least)
                found = found or _has_edges(whole)
                line += whole.count(b"\n")
            if not read:
                break
    if not found:
        raise ValueError(f"{path}: no edges; lines of two node numbers expected, such as 3 17")


def _pairs(path: Path, whole: bytes, line: int, found: bool, least: int) -> Iterator[Edges]:
    data = np.frombuffer(whole, np.uint8)
    out = np.empty((whole.count(b"\n") + 1, 2), np.int64)
    count, bad = _parse(data, out, not found)
    if bad >= 0:
        text = whole.split(b"\n")[bad].decode(errors="replace").strip()
        raise ValueError(f"{path}, line {line + bad + 1}: {text!r}; two node numbers expected, such as 3 17")
    edges = out[:count]
    if count:
        edges -= least
        if int(edges.min()) < 0 or int(edges.max()) >= MOST:
            raise ValueError(f"{path}: a node number out of range; {least} to {MOST - 1} expected")
        yield edges


def _has_edges(whole: bytes) -> bool:
    return any(line.strip()[:1].isdigit() for line in whole.split(b"\n"))


@njit(cache=True)
def _parse(data, out, header):
    """Fill `out` with the first two numbers of each line; (how many lines, the first bad line or -1).

    `header`: the first line that is no comment may be words.
    """
    n, i, line, count = len(data), 0, 0, 0
    while i < n:
        while i < n and (data[i] == 32 or data[i] == 9 or data[i] == 13):
            i += 1
        bad = False
        if i < n and data[i] != 10 and data[i] != 35 and data[i] != 37:  # no newline, no #, no %
            for field in range(2):
                begin, value = i, 0
                while i < n and 48 <= data[i] <= 57 and i - begin < 18:
                    value = value * 10 + (data[i] - 48)
                    i += 1
                ends = i == n or data[i] in (9, 10, 13, 32, 44, 59)
                if i == begin or not ends:
                    bad = True
                    break
                out[count, field] = value
                while field == 0 and i < n and data[i] in (9, 32, 44, 59):
                    i += 1
            if bad and not header:
                return count, line
            count += 0 if bad else 1
            header = False
        while i < n and data[i] != 10:
            i += 1
        i += 1
        line += 1
    return count, -1


def _matrix_market(path: Path) -> Iterator[Edges]:
    with _open(path) as file:
        words = file.readline().decode(errors="replace").lower().split()
        if len(words) < 5 or words[0] != "%%matrixmarket" or words[2] != "coordinate":
            raise ValueError(f"{path}, line 1: a '%%MatrixMarket matrix coordinate …' file expected")
        skip, size = 1, file.readline()
        while size.startswith(b"%") or not size.strip():
            if not size:
                raise ValueError(f"{path}: no line of sizes; 'rows columns entries' expected")
            skip, size = skip + 1, file.readline()
    sizes = size.split()
    if len(sizes) != 3 or sizes[0] != sizes[1]:
        raise ValueError(
            f"{path}, line {skip + 1}: {size.decode().strip()!r}; a square matrix, 'n n entries', expected"
        )
    for edges in _text(path, skip + 1, least=1):
        if int(edges.max()) >= int(sizes[0]):
            raise ValueError(f"{path}: node {int(edges.max()) + 1} of a matrix of {int(sizes[0])} rows")
        yield edges
        if words[4] != "general":  # only one triangle is stored
            yield edges[edges[:, 0] != edges[:, 1]][:, ::-1]


# ------------------------------------------------------------------------------------------- arrays


def _npy(path: Path) -> Iterator[Edges]:
    with DiskArray.open(path) as array:
        shape = array.shape
        if len(shape) != 2 or 2 not in shape or array.dtype.kind not in "iu":
            raise ValueError(
                f"{path}: {array.dtype} of shape {shape}; integers of shape (2, edges) or (edges, 2) expected"
            )
        if shape[1] == 2:
            for _, rows in array.stream(BLOCK // array.row_bytes):
                yield _checked(path, rows)
            return
        flat = DiskArray(array.file, (shape[0] * shape[1],), array.dtype, array.offset)
        step = BLOCK // (2 * array.dtype.itemsize)
        for start in range(0, shape[1], step):
            stop = min(start + step, shape[1])
            ends = [flat.rows(row * shape[1] + start, row * shape[1] + stop) for row in range(2)]
            yield _checked(path, np.stack(ends, axis=1))


def _checked(path: Path, rows: Any) -> Edges:
    edges = rows.astype(np.int64)
    if len(edges) and (int(edges.min()) < 0 or int(edges.max()) >= MOST):
        raise ValueError(f"{path}: a node number out of range; 0 to {MOST - 1} expected")
    return edges  # type: ignore[no-any-return]


def _npz(path: Path) -> Iterator[Edges]:
    from scipy.sparse import load_npz

    try:
        loaded: Any = load_npz(path)  # never unpickles
        entries = loaded.tocoo()
    except (ValueError, OSError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path}: {why}; a file by scipy.sparse.save_npz expected") from None
    yield _checked(path, np.stack([entries.row, entries.col], axis=1))
