"""Graphs and opinions from files, in the formats people already have.

:func:`read_graph` takes what SNAP, SuiteSparse, KONECT and SciPy publish:

- edge lists, ``.gz`` or plain: two names a line between blanks, tabs or commas; further columns
  (weights, times) are ignored, lines starting with ``#`` or ``%`` are comments, and a first line such
  as ``source,target`` is a header;
- MatrixMarket coordinate files, ``.mtx`` or ``.mtx.gz``;
- SciPy sparse matrices, ``.npz``. Nothing is unpickled.

Directions, repeats, weights and self-loops are dropped. Bad input is a ValueError of one line: file,
line, what is wrong, what would be right.
"""

from __future__ import annotations

import csv
import gzip
import zipfile
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from assay.sim.graphs import CSR

Labels = npt.NDArray[Any]

_BLOCK = 1 << 22  # bytes of an edge list held as text at a time
_FROM = {b"source", b"src", b"from", b"fromnodeid", b"u", b"node1", b"node_1", b"id_1"}
_TO = {b"target", b"dst", b"to", b"tonodeid", b"v", b"node2", b"node_2", b"id_2"}


class GraphFile(NamedTuple):
    """A graph, and the name that each of its nodes has in the file: int64, or strings."""

    graph: CSR
    labels: Labels


def read_graph(path: str | PathLike[str]) -> GraphFile:
    """Read an edge list, a MatrixMarket file or a SciPy ``.npz``, by the name of the file.

    Nodes of an edge list are numbered in the order of their names: as integers if all are, else as
    strings. Rows of a MatrixMarket file are named 1..n, of an ``.npz`` 0..n-1.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "edges.txt")
    ...     _ = file.write_text("# FromNodeId ToNodeId\\n30 10\\n10 20\\n")
    ...     graph, labels = read_graph(file)
    >>> graph.m, labels.tolist(), graph.neighbours(0).tolist()
    (2, [10, 20, 30], [1, 2])
    """
    path = Path(path)
    name = path.name.lower()
    try:
        if name.endswith((".mtx", ".mtx.gz")):
            return _matrix_market(path)
        return _npz(path) if name.endswith(".npz") else _edge_list(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: broken gzip data ({error}); a complete .gz file expected") from None


def read_opinions(path: str | PathLike[str], labels: Labels) -> npt.NDArray[np.int64]:
    """Read a CSV of ``node,opinion`` (header optional): one integer for each of the graph's nodes.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "opinions.csv")
    ...     _ = file.write_text("node,opinion\\nbob,3\\nann,-1\\n")
    ...     read_opinions(file, np.array(["ann", "bob"])).tolist()
    [-1, 3]
    """
    number = {str(label): i for i, label in enumerate(labels.tolist())}
    opinions = np.zeros(len(number), np.int64)
    seen = np.zeros(len(number), bool)
    for line, row in _csv_rows(Path(path)):
        where = f"{path}, line {line}"
        if len(row) != 2:
            raise ValueError(f"{where}: {len(row)} fields in {','.join(row)!r}; node,opinion expected")
        node, opinion = row[0].strip(), row[1].strip()
        if opinion.lower() == "opinion" and not seen.any():
            continue
        u = number.get(node)
        if u is None:
            raise ValueError(f"{where}: the graph has no node {node!r}; a name from the graph file expected")
        if seen[u]:
            raise ValueError(f"{where}: a second opinion of node {node!r}; one line a node expected")
        try:
            opinions[u] = int(opinion)
        except (ValueError, OverflowError):
            raise ValueError(f"{where}: the opinion {opinion!r} is no integer; for example {node},3 expected") from None
        seen[u] = True
    if not seen.all():
        first = labels[int(np.argmin(seen))]
        raise ValueError(f"{path}: {int((~seen).sum())} nodes without opinion, first {first}; one line a node expected")
    return opinions


def _csv_rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, fields) of the lines that are neither blank nor comments."""
    with _open(path) as file:
        lines = (_text(line, f"{path}, line {i}") for i, line in enumerate(file, 1))
        rows = csv.reader(lines)
        for row in rows:
            if any(row) and not row[0].lstrip().startswith(("#", "%")):
                yield rows.line_num, row


def _open(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _text(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{where}: not UTF-8 text; a text file in UTF-8 expected") from None


# --------------------------------------------------------------------------------------- edge lists


def _edge_list(path: Path) -> GraphFile:
    try:
        ends = np.concatenate([_integers(names) for names in _name_blocks(path)])
        labels, numbers = np.unique(ends, return_inverse=True)
    except _NotIntegers:
        labels, numbers = _string_names(path)
    return GraphFile(CSR.from_edges(numbers.reshape(-1, 2), labels.size), labels)


class _NotIntegers(Exception):  # noqa: N818 - no error: the names are strings, then
    pass


def _integers(names: list[bytes]) -> npt.NDArray[np.int64]:
    if b"_" in b"".join(names):  # int() reads 1_000 as 1000; in a file it is a name
        raise _NotIntegers
    try:
        return np.fromiter(map(int, names), np.int64, len(names))
    except (ValueError, OverflowError):
        raise _NotIntegers from None


def _string_names(path: Path) -> tuple[Labels, npt.NDArray[np.int64]]:
    """Return the sorted names, and each end of each edge as its number among them."""
    met: dict[bytes, int] = {}
    ends = [np.fromiter((met.setdefault(name, len(met)) for name in names), np.int64) for names in _name_blocks(path)]
    labels, rank = np.unique(np.array([name.decode() for name in met]), return_inverse=True)
    return labels, rank[np.concatenate(ends)]


def _name_blocks(path: Path) -> Iterator[list[bytes]]:
    """Yield the names of both ends of each edge, edge after edge, a block of lines at a time."""
    found = False
    line_number = 0
    with _open(path) as file:
        while lines := file.readlines(_BLOCK):
            names: list[bytes] = []
            for line in lines:
                line_number += 1
                if not line.isascii():
                    line = _text(line, f"{path}, line {line_number}").encode()  # checks, and drops a byte order mark
                fields = line.replace(b",", b" ").split()
                if not fields or fields[0][0] in b"#%":
                    continue
                if len(fields) < 2:
                    name = fields[0].decode()
                    raise ValueError(f"{path}, line {line_number}: one name, {name!r}; two expected, such as 3 17")
                if not found and not names and fields[0].lower() in _FROM and fields[1].lower() in _TO:
                    continue
                names += fields[:2]
            if names:
                found = True
                yield names
    if not found:
        raise ValueError(f"{path}: no edges; lines of two node names expected, such as 3 17")


# ----------------------------------------------------------------------------------------- matrices


def _matrix_market(path: Path) -> GraphFile:
    from scipy.io import mminfo, mmread

    try:
        rows, columns, _, layout, _, _ = mminfo(path)
        if layout != "coordinate":
            raise ValueError(f"a dense matrix ({layout})")
        if rows != columns:
            raise ValueError(f"{rows} rows and {columns} columns")
        graph = CSR.from_scipy(mmread(path, spmatrix=False))
    except (ValueError, OverflowError, TypeError) as error:
        raise ValueError(f"{path}: {_one_line(error)}; a square MatrixMarket 'coordinate' matrix expected") from None
    return GraphFile(graph, np.arange(1, graph.n + 1))


def _npz(path: Path) -> GraphFile:
    from scipy.sparse import load_npz

    with path.open("rb") as file:
        if not zipfile.is_zipfile(file):
            raise ValueError(f"{path}: no zip archive; a file by scipy.sparse.save_npz expected")
    try:
        graph = CSR.from_scipy(load_npz(path))  # never unpickles
    except (ValueError, OSError, EOFError, KeyError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: {_one_line(error)}; a file by scipy.sparse.save_npz expected") from None
    return GraphFile(graph, np.arange(graph.n))


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()).strip(".'") or type(error).__name__
