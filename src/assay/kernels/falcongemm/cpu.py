"""Schemes on a processor: two passes that combine blocks, and the vendor's product between them.

Each operand is read once: a piece of a row of every block lies in the first-level cache while all sums that want it are
formed, and whatever is only one block is not copied at all but handed to the product as it lies. Products are combined
the same way, each read once, and every block of the result is written once. Sizes that the scheme does not divide are
filled up with zeros on the way.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numba
import numpy as np

from assay.kernels.falcongemm.schemes import Scheme
from assay.sim.compiled import njit

APART = 1088  # bytes between blocks: at powers of two all of them would want the same lines of the cache
PIECE = 1024  # entries of a row that are combined at once: sixteen of them fit the second-level cache


# Pieces are slices walked from their beginning: an index that might be negative keeps the compiler from using vectors.


@njit(cache=True, nogil=True)
def _spread(first, last, flat, ld, rows, cols, high, wide, across, begin, block, factor, out, gap):
    """The s-th combination, `gap` entries after the one before: factor * block added up; what lies outside is zero.

    Pieces `first` to `last` of it, as in `_collect`.
    """
    pieces = (wide + PIECE - 1) // PIECE
    for t in range(first, last):
        i, left = t // pieces, (t % pieces) * PIECE
        right = min(wide, left + PIECE)
        for s in range(len(begin) - 1):
            into = out[s * gap + i * wide + left : s * gap + i * wide + right]
            for e in range(begin[s], begin[s + 1]):
                row, col, f = (block[e] // across) * high + i, (block[e] % across) * wide, factor[e]
                end = max(left, min(right, cols - col)) if row < rows else left
                piece = flat[row * ld + col + left : row * ld + col + end]
                if e == begin[s]:
                    for j in range(len(piece)):
                        into[j] = f * piece[j]
                    into[len(piece) :] = 0
                else:
                    for j in range(len(piece)):
                        into[j] += f * piece[j]


@njit(cache=True, nogil=True)
def _collect(
    first,
    last,
    products,
    gap,
    high,
    wide,
    begin,
    source,
    factor,
    flat,
    ld,
    rows,
    cols,
    across,
    bits,
    endless,
    sign,
    odd,
):
    """Block c of the result = the sum of factor * product; `odd` notes entries that are not finite.

    `bits` is the result as whole numbers: at or over `endless`, without the sign, is no finite number.
    """
    pieces = (wide + PIECE - 1) // PIECE
    for t in range(first, last):
        i, left = t // pieces, (t % pieces) * PIECE
        most = 0
        for c in range(len(begin) - 1):
            row, col = (c // across) * high + i, (c % across) * wide
            right = min(min(wide, left + PIECE), cols - col)
            if row < rows and right > left:
                at, stop = row * ld + col + left, row * ld + col + right
                into = flat[at:stop]
                for e in range(begin[c], begin[c + 1]):
                    place, f = source[e] * gap + i * wide, factor[e]
                    piece = products[place + left : place + right]
                    if e == begin[c]:
                        for j in range(len(into)):
                            into[j] = f * piece[j]
                    else:
                        for j in range(len(into)):
                            into[j] += f * piece[j]
                seen = bits[at:stop]
                for j in range(len(seen)):
                    most = max(most, seen[j] & sign)
        odd[t] = most >= endless


@dataclass(frozen=True)
class Sums:
    """Linear combinations as flat tables: the s-th sums factor[e] * block[e] for e in begin[s]:begin[s + 1]."""

    begin: Any
    block: Any
    factor: Any

    @classmethod
    def of(cls, table: Any, dtype: Any) -> Sums:
        """The rows of a table with zeros dropped."""
        rows, blocks = np.nonzero(table)
        begin = np.searchsorted(rows, np.arange(len(table) + 1))
        return cls(begin.astype(np.int64), blocks.astype(np.int64), table[rows, blocks].astype(dtype))


def flat(x: Any) -> tuple[Any, int]:
    """A matrix whose rows are contiguous as one vector from its first to its last entry, and the step between rows."""
    step = x.strides[0] // x.itemsize if len(x) > 1 else x.shape[1]
    size = (len(x) - 1) * step + x.shape[1]
    return np.lib.stride_tricks.as_strided(x, (size,), (x.itemsize,)), step


def by_rows(x: Any) -> bool:
    """Whether rows are contiguous and do not overlap: what the passes and BLAS can read as it lies."""
    return bool(x.strides[1] == x.itemsize and x.strides[0] >= x.shape[1] * x.itemsize)


def room_for(count: int, high: int, wide: int, dtype: Any, room: Callable[[int], Any]) -> tuple[Any, int, list[Any]]:
    """Room for some blocks, a little apart: the vector that holds them, the step between them, and each as a matrix."""
    gap = high * wide + APART // np.dtype(dtype).itemsize
    vector = room(count * gap)
    return vector, gap, [vector[s * gap : s * gap + high * wide].reshape(high, wide) for s in range(count)]


def combined(x: Any, table: Any, down: int, across: int, room: Callable[[int], Any]) -> list[Any]:
    """The combinations of a matrix's blocks that a scheme's products take, in order.

    `table` has a row a product and a column a block, numbered by rows. A matrix that lies by columns is combined as it
    lies. `room` gives space for what must be written.
    """
    if not by_rows(x):
        if by_rows(x.T):
            turned = table.reshape(-1, down, across).transpose(0, 2, 1).reshape(len(table), -1)
            return [one.T for one in combined(x.T, turned, across, down, room)]
        x = np.ascontiguousarray(x)
    high, wide = -(-x.shape[0] // down), -(-x.shape[1] // across)
    views: dict[int, Any] = {}
    for s, row in enumerate(table):
        (found,) = np.nonzero(row)
        i, j = (found[0] // across) * high, (found[0] % across) * wide
        if len(found) == 1 and row[found[0]] == 1 and i + high <= x.shape[0] and j + wide <= x.shape[1]:
            views[s] = x[i : i + high, j : j + wide]
    rest = [s for s in range(len(table)) if s not in views]
    if rest:
        sums, (vector, step) = Sums.of(table[rest], x.dtype), flat(x)
        out, gap, made = room_for(len(rest), high, wide, x.dtype, room)
        told = vector, step, *x.shape, high, wide, across, sums.begin, sums.block, sums.factor, out, gap
        _shared(high * -(-wide // PIECE), lambda first, last: _spread(first, last, *told))
        views |= dict(zip(rest, made, strict=True))
    return [views[s] for s in range(len(table))]


def collect(products: Any, gap: int, size: tuple[int, int], scheme: Scheme, out: Any) -> bool:
    """Write the result's blocks from the products, `gap` entries apart; whether every entry is a finite number."""
    sums, (high, wide) = Sums.of(scheme.w, out.dtype), size
    vector, step = flat(out)
    whole = np.dtype(f"i{out.itemsize}")
    endless, sign = int(np.array(np.inf, out.dtype).view(whole)), int(np.iinfo(whole).max)
    odd = np.zeros(high * -(-wide // PIECE), np.bool_)
    told = (products, gap, high, wide, sums.begin, sums.block, sums.factor, vector, step, *out.shape, scheme.n,
            vector.view(whole), endless, sign, odd)  # fmt: skip
    _shared(len(odd), lambda first, last: _collect(first, last, *told))
    return not odd.any()


# A product by a scheme takes all cores, a workspace, and OpenBLAS's one setting of how many threads it uses. Threads
# that want one take turns: two at once would write into each other's sums, and gain nothing if they did not.
_TURN = threading.RLock()


def turn() -> AbstractContextManager[object]:
    """To be held by the one thread of this process that multiplies by a scheme, or measures what one takes."""
    return _TURN


class Workspace:
    """Room that is kept between calls: fresh pages cost as much as a pass over them."""

    def __init__(self) -> None:
        self.kept: dict[str, Any] = {}

    def room(self, name: str, dtype: Any) -> Callable[[int], Any]:
        """Entries by name, of the last call if that was enough."""

        def give(count: int) -> Any:
            size = count * np.dtype(dtype).itemsize
            if self.kept.get(name) is None or self.kept[name].nbytes < size:
                self.kept.pop(name, None)
                self.kept[name] = np.empty(size, np.uint8)
            return self.kept[name][:size].view(dtype)

        return give


def multiply(a: Any, b: Any, scheme: Scheme, out: Any, space: Workspace, weights: list[Any] | None = None) -> bool:
    """The product by a scheme into `out`; whether every entry is finite. `weights` are B's sums, made before."""
    with turn():
        left = combined(a, scheme.u, scheme.m, scheme.k, space.room("a", a.dtype))
        right = weights or combined(b, scheme.v, scheme.k, scheme.n, space.room("b", b.dtype))
        size = left[0].shape[0], right[0].shape[1]
        products, gap, each = room_for(scheme.rank, *size, a.dtype, space.room("products", a.dtype))
        vendor(list(zip(left, right, each, strict=True)))
        return collect(products, gap, size, scheme, out)


# The threads of OpenMP and of OpenBLAS spin for a while when they have nothing to do. Passes by the ones and products
# by the others would wait for each other's spinning: 8 ms instead of 0.7 for a pass. So both run on threads that sleep.


@cache
def _pool(team: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(team, thread_name_prefix="assay-products")


def _forked() -> None:
    """A forked child has none of its parent's threads, and perhaps a turn that nobody will end."""
    global _TURN
    _TURN = threading.RLock()
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _shared(count: int, work: Callable[[int, int], object]) -> None:
    """`work(first, last)` of all pieces of a pass, on as many threads as the vendor's product uses."""
    team = threads()
    if team == 1:
        work(0, count)
    else:
        list(_pool(team).map(lambda t: work(count * t // team, count * (t + 1) // team), range(team)))


def vendor(products: list[tuple[Any, Any, Any]]) -> None:
    """x @ y into out for all (x, y, out): each on a thread of its own as far as that is even, the rest cut by rows."""
    team = threads() if _told("set_num_threads") else 1
    even = len(products) - len(products) % team
    parts = products[:even]
    for x, y, out in products[even:]:
        borders = [len(x) * t // team for t in range(team + 1)]
        parts += [(x[a:b], y, out[a:b]) for a, b in pairwise(borders)]
    if team == 1:
        for x, y, out in parts:
            np.matmul(x, y, out=out)
        return
    with one_thread():
        list(_pool(team).map(lambda one: np.matmul(one[0], one[1], out=one[2]), parts))


def unfused(a: Any, b: Any, scheme: Scheme) -> Any:
    """The textbook way, a baseline: every sum is an array of its own, every product a call, one after the other."""
    high, deep, wide = a.shape[0] // scheme.m, a.shape[1] // scheme.k, b.shape[1] // scheme.n
    blocks_a = [
        a[i * high : (i + 1) * high, j * deep : (j + 1) * deep] for i in range(scheme.m) for j in range(scheme.k)
    ]
    blocks_b = [
        b[i * deep : (i + 1) * deep, j * wide : (j + 1) * wide] for i in range(scheme.k) for j in range(scheme.n)
    ]

    def total(row: Any, blocks: list[Any]) -> Any:
        first, *rest = np.flatnonzero(row)
        made = blocks[first] if row[first] == 1 else row[first].astype(a.dtype) * blocks[first]
        for index in rest:
            one = blocks[index]
            made = made + one if row[index] == 1 else made - one if row[index] == -1 else made + row[index] * one
        return made

    products = [total(u, blocks_a) @ total(v, blocks_b) for u, v in zip(scheme.u, scheme.v, strict=True)]
    rows = [[total(scheme.w[i * scheme.n + j], products) for j in range(scheme.n)] for i in range(scheme.m)]
    return np.block(rows)


@cache
def _openblas() -> Any:
    """The OpenBLAS that NumPy brought, to ask it for its threads."""
    with suppress(OSError):
        for line in Path("/proc/self/maps").read_text(encoding="ascii", errors="replace").splitlines():
            path = line.split()[-1]
            if "openblas" in path and "numpy" in path:
                return ctypes.CDLL(path)
    return None


def _told(action: str) -> Any:
    """A function of OpenBLAS's, under whichever name this build has it."""
    for name in (f"scipy_openblas_{action}64_", f"openblas_{action}64_", f"openblas_{action}"):
        if (function := getattr(_openblas(), name, None)) is not None:
            return function
    return None


def threads() -> int:
    """How many threads the vendor's product uses; passes take as many."""
    most = int(numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined]
    if asked := _told("get_num_threads"):
        with turn():  # whose turn it is has set it to one for a while
            return max(1, min(int(asked()), most))
    told = os.environ.get("OMP_NUM_THREADS", "")
    return min(int(told), most) if told.isdigit() and int(told) else most


@contextmanager
def one_thread() -> Iterator[None]:
    """Products and passes on one thread meanwhile: its processor time is then the time it takes."""
    with turn():
        before, told = threads(), _told("set_num_threads")
        if told:
            told(ctypes.c_int(1))
        try:
            yield
        finally:
            if told:
                told(ctypes.c_int(before))
