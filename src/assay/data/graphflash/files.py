"""Edges with weights from the files people have: text, CSV, parquet, Matrix Market, and what `read_edges` knows."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from assay.data.disk.edges import read_edges
from assay.data.graphflash.parts import Network, network

SOURCE = ("source", "src", "from", "fromnodeid", "u")
TARGET = ("target", "dst", "to", "tonodeid", "v")
WEIGHT = ("weight", "w", "cost", "distance", "length")


def read_network(path: Path) -> Network:
    """Read a graph; vertices may have any whole numbers, and keep them as names. A ValueError tells what is wrong.

    A third column is the weight of an edge. Text is separated by blanks, tabs or commas, may be gzipped, may have
    comments after # or %, and a line of names at the top.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "roads.csv")
    ...     _ = file.write_text("from,to,weight\\n70,10,2.5\\n10,30,1\\n")
    ...     graph = read_network(file)
    >>> graph.names.tolist(), graph.edges.tolist(), graph.weights.tolist()
    ([10, 30, 70], [[0, 1], [2, 0]], [1.0, 2.5])
    """
    name = path.name.lower()
    try:
        if path.is_dir() or name.endswith((".npy", ".npz")):
            return _named(np.concatenate([np.empty((0, 2), np.int64), *read_edges(path)]), None)
        if name.endswith(".parquet"):
            return _parquet(path)
        if name.endswith((".mtx", ".mtx.gz")):
            return _matrix_market(path)
        return _text(path)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{path}: broken gzip data ({error}); a complete .gz file expected") from None


def _named(edges: Any, weights: Any) -> Network:
    names, numbers = np.unique(edges, return_inverse=True)
    return network(numbers.reshape(-1, 2), weights, len(names), names)


def _open(path: Path) -> IO[str]:
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def _text(path: Path) -> Network:
    header, sample, skip = "", "", 0
    with _open(path) as file:
        try:
            for number, line in enumerate(file, 1):
                if not line.strip() or line.lstrip()[0] in "#%":
                    continue
                if not header and not sample and line.lstrip()[0].isalpha():
                    header, skip = line, number
                    continue
                sample = line
                break
        except UnicodeDecodeError:
            raise ValueError(f"{path}: not UTF-8 text; lines of two vertices and perhaps a weight expected") from None
    if not sample:
        raise ValueError(f"{path}: no edges; lines of two vertices expected, such as 3 17")
    comma = "," in sample
    columns = len(sample.split("," if comma else None))
    if columns < 2:
        raise ValueError(f"{path}: {sample.strip()!r} is no edge; two vertices expected, such as 3 17")
    with _open(path) as file:
        try:
            found = np.loadtxt(
                file, np.float64, comments=("#", "%"), delimiter="," if comma else None, skiprows=skip,
                usecols=range(min(columns, 3)), ndmin=2,
            )  # fmt: skip
        except (ValueError, IndexError) as error:
            why = " ".join(str(error).split()).split(";")[0]
            raise ValueError(f"{path}: {why}; two vertices and perhaps a weight a line expected") from None
    return _checked(path, found[:, :2], found[:, 2] if columns > 2 else None)


def _checked(path: Path, ends: Any, weights: Any) -> Network:
    if not len(ends):
        raise ValueError(f"{path}: no edges; two vertices and perhaps a weight a row expected")
    whole = np.rint(ends)
    if not np.isfinite(ends).all() or (whole != ends).any() or np.abs(whole).max() > 2**53:
        raise ValueError(f"{path}: a vertex that is no whole number; two whole numbers a row expected")
    if weights is not None and not np.isfinite(weights).all():
        raise ValueError(f"{path}: a weight that is no number; a finite one for every edge expected")
    return _named(whole.astype(np.int64), weights)


def _parquet(path: Path) -> Network:
    import polars as pl

    try:
        table = pl.read_parquet(path)
    except FileNotFoundError:
        raise
    except Exception as error:  # each version of the reader has kinds of its own
        why = " ".join(str(error).split())
        raise ValueError(f"{path}: {why}; a complete parquet file expected") from None
    lower = {name.lower(): name for name in table.columns}
    chosen = [next((lower[one] for one in known if one in lower), None) for known in (SOURCE, TARGET, WEIGHT)]
    if chosen[0] is None or chosen[1] is None:
        chosen = [*table.columns, None, None, None][:3]
    if chosen[1] is None:
        raise ValueError(f"{path}: columns {', '.join(table.columns)}; source, target and perhaps weight expected")
    try:
        columns = [table[name].cast(pl.Float64).to_numpy() for name in chosen if name is not None]
    except pl.exceptions.PolarsError as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path}: {why[:120]}; columns of numbers expected") from None
    return _checked(path, np.stack(columns[:2], axis=1), columns[2] if len(columns) > 2 else None)


def _matrix_market(path: Path) -> Network:
    from scipy.io import mminfo, mmread

    try:
        rows, columns, _, layout, kind, _ = mminfo(path)
        if layout != "coordinate" or rows != columns:
            raise ValueError(f"a matrix of {rows} rows and {columns} columns, {layout}")
        found: Any = mmread(path, spmatrix=False)
        entries = found.tocoo()
    except (ValueError, OverflowError, TypeError) as error:
        why = " ".join(str(error).split())
        raise ValueError(f"{path}: {why}; a square MatrixMarket 'coordinate' matrix expected") from None
    edges = np.stack([entries.coords[0], entries.coords[1]], axis=1).astype(np.int64)
    weights = None if kind == "pattern" else np.asarray(entries.data, np.float64)
    if weights is not None and not np.isfinite(weights).all():
        raise ValueError(f"{path}: a weight that is no number; a finite one for every edge expected")
    return network(edges, weights, rows, np.arange(1, rows + 1))
