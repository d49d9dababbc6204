"""Bilinear schemes <m,k,n;r>: r products of combined blocks that make up an m x k times k x n product of blocks.

A scheme is three tables: `u` (r x mk) says which blocks of A each product adds up, `v` (r x kn) which of B, `w`
(mn x r) which products each block of C adds up. It is right if and only if Brent's equations hold, which is decided
exactly, in whole numbers. Schemes turn into others: by the symmetries of the product, and by nesting.

Those shipped (`schemes.txt`) were found by a walk of our own on the flip graph, beside Strassen's and Winograd's.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.errors import BadInput

SIGNS = {"0": 0, "+": 1, "-": -1}


@dataclass(frozen=True, eq=False)
class Scheme:
    """One scheme; tables hold whole numbers, or halves."""

    name: str
    m: int
    k: int
    n: int
    u: Any
    v: Any
    w: Any

    @property
    def rank(self) -> int:
        """How many products of blocks it takes."""
        return len(self.u)

    @property
    def size(self) -> str:
        """As the literature writes it."""
        return f"<{self.m},{self.k},{self.n};{self.rank}>"

    @property
    def saved(self) -> float:
        """The share of multiplications that it saves.

        >>> named("strassen").saved
        0.125
        """
        return 1 - self.rank / (self.m * self.k * self.n)


def brent(scheme: Scheme) -> bool:
    """Whether the scheme computes the product, whatever the blocks hold.

    The sum over products of u[(i,l)] v[(l',j)] w[(i',j')] must be one where i = i', l = l' and j = j', zero elsewhere.

    >>> brent(named("strassen"))
    True
    """
    m, k, n = scheme.m, scheme.k, scheme.n
    twice = [np.asarray(2 * np.asarray(table, np.float64)) for table in (scheme.u, scheme.v, scheme.w)]
    whole = [table.astype(np.int64) for table in twice]
    shapes = [table.shape for table in whole]
    if shapes != [(scheme.rank, m * k), (scheme.rank, k * n), (m * n, scheme.rank)]:
        return False
    if any((table != doubled).any() for table, doubled in zip(whole, twice, strict=True)):
        return False
    made = np.einsum("ra,rb,cr->abc", *whole, optimize=True).reshape(m, k, k, n, m, n)
    eye = [np.eye(size, dtype=np.int64) for size in (m, k, n)]
    right = 8 * np.einsum("ip,lq,js->ilqjps", *eye)  # each table was doubled
    return bool((made == right).all())


def tidy(scheme: Scheme) -> Scheme:
    """The same with signs moved into `w`, so that a product of single blocks takes them as they are."""
    u, v, w = (np.array(table, np.float64) for table in (scheme.u, scheme.v, scheme.w))
    for table in (u, v):
        for r, row in enumerate(table):
            if row[np.flatnonzero(row)[0]] < 0:
                table[r], w[:, r] = -row, -w[:, r]
    return Scheme(scheme.name, scheme.m, scheme.k, scheme.n, u, v, w)


def rotated(scheme: Scheme) -> Scheme:
    """<k,n,m;r> from <m,k,n;r>: the trace of ABC does not change when its factors move round.

    >>> rotated(library()["2x3x4"]).size
    '<3,4,2;20>'
    """
    m, k, n, r = scheme.m, scheme.k, scheme.n, scheme.rank
    as_factor = scheme.w.reshape(m, n, r).transpose(2, 1, 0).reshape(r, n * m)
    as_result = scheme.u.reshape(r, m, k).transpose(2, 1, 0).reshape(k * m, r)
    return tidy(Scheme(f"{k}x{n}x{m}", k, n, m, scheme.v, as_factor, as_result))


def transposed(scheme: Scheme) -> Scheme:
    """<n,k,m;r> from <m,k,n;r>: the transposed product has its factors swapped and transposed.

    >>> transposed(library()["2x3x4"]).size
    '<4,3,2;20>'
    """
    m, k, n, r = scheme.m, scheme.k, scheme.n, scheme.rank
    u = scheme.v.reshape(r, k, n).transpose(0, 2, 1).reshape(r, n * k)
    v = scheme.u.reshape(r, m, k).transpose(0, 2, 1).reshape(r, k * m)
    w = scheme.w.reshape(m, n, r).transpose(1, 0, 2).reshape(n * m, r)
    return tidy(Scheme(f"{n}x{k}x{m}", n, k, m, u, v, w))


def nested(outer: Scheme, inner: Scheme) -> Scheme:
    """Every product of the outer scheme done by the inner one, as one flat scheme.

    >>> nested(named("strassen"), named("strassen")).size
    '<4,4,4;49>'
    """

    def blocks(x: Any, y: Any, rows: int, cols: int, down: int, across: int) -> Any:
        table = np.einsum("rab,scd->rsacbd", x.reshape(-1, rows, cols), y.reshape(-1, down, across))
        return table.reshape(len(x) * len(y), rows * down * cols * across)

    o, i = outer, inner
    return tidy(
        Scheme(
            f"{o.name} of {i.name}", o.m * i.m, o.k * i.k, o.n * i.n, blocks(o.u, i.u, o.m, o.k, i.m, i.k),
            blocks(o.v, i.v, o.k, o.n, i.k, i.n), blocks(o.w.T, i.w.T, o.m, o.n, i.m, i.n).T,
        )
    )  # fmt: skip


def _row(text: str) -> Any:
    return np.array([[SIGNS[sign] for sign in word] for word in text.split()], np.float64)


@cache
def library() -> dict[str, Scheme]:
    """The shipped schemes by name, in all orders of their sizes, and those nested of two.

    >>> sorted(name for name in library() if name.startswith("w"))
    ['winograd', 'winograd of winograd']
    """
    lines = Path(__file__).with_name("schemes.txt").read_text(encoding="ascii").splitlines()
    lines = [line for line in lines if line and not line.startswith("#")]
    found: dict[str, Scheme] = {}
    for head, u, v, w in zip(*[iter(lines)] * 4, strict=True):
        name, m, k, n = head.split()
        one = tidy(Scheme(name, int(m), int(k), int(n), _row(u), _row(v), _row(w).T))
        found[name] = one
        if name in ("strassen", "winograd"):
            continue
        for turned in (one, rotated(one), rotated(rotated(one))):
            for way in (turned, transposed(turned)):
                found.setdefault(way.name, way)
    two = nested(found["winograd"], found["winograd"])
    return found | {two.name: two}


def named(name: str) -> Scheme:
    """A shipped scheme.

    >>> named("coppersmith")
    Traceback (most recent call last):
    assay.record.errors.BadInput: no scheme 'coppersmith'; strassen, winograd and others: see schemes.txt
    """
    if name not in library():
        raise BadInput(f"no scheme '{name}'; strassen, winograd and others: see schemes.txt")
    return library()[name]


def read_scheme(path: Path) -> Scheme:
    """A scheme of one's own: JSON with u, v, w and sizes m, k, n (or `n`: [m, k, n]), or an .npz of AlphaTensor's form.

    Tables may lie either way round; the result may be numbered by rows or by columns. What does not satisfy Brent's
    equations is refused.
    """
    try:
        if path.suffix == ".npz":
            with np.load(path, allow_pickle=False) as file:
                key = file.files[0]
                tables, sizes = list(file[key]), [int(size) for size in key.split(",")]
        else:
            told = json.loads(path.read_text(encoding="utf-8"))
            n = told["n"]
            sizes = [int(size) for size in (n if isinstance(n, list) else (told["m"], told["k"], n))]
            tables = [np.array(told[name], np.float64) for name in "uvw"]
        m, k, n = sizes
    except (OSError, ValueError, KeyError, TypeError, IndexError, zipfile.BadZipFile) as error:
        raise BadInput(f"{path}: not a scheme ({' '.join(str(error).split())}); JSON with m, k, n, u, v, w") from None
    lengths = (m * k, k * n, m * n)
    if min(sizes) < 1 or max(lengths) > 64 or any(np.ndim(table) != 2 for table in tables):
        raise BadInput(f"{path}: sizes {m}, {k}, {n}: blocks of 1 to 8 by 1 to 8, and tables of two dimensions")
    rows = [np.asarray(t, np.float64) if t.shape[1] == size else np.asarray(t, np.float64).T
            for t, size in zip(tables, lengths, strict=True)]  # fmt: skip
    for by_columns in (False, True):
        w = rows[2].reshape(-1, n, m).transpose(0, 2, 1).reshape(-1, m * n) if by_columns else rows[2]
        found = Scheme(path.stem, m, k, n, rows[0], rows[1], w.T)
        if brent(found) and all(np.any(table, 1).all() for table in (found.u, found.v)):
            return tidy(found)
    raise BadInput(f"{path}: Brent's equations do not hold: this is no scheme for {m} x {k} times {k} x {n}")
