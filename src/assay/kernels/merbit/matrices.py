"""Irregular sparse matrices, drawn: R-MAT graphs, Zipf row lengths, mostly empty rows, a few dense among short ones.

Arrays are NumPy's or CuPy's (`xp`). Only NumPy is imported: `benchmarks/h200_merbit.py` reads this file on machines
that have no assay.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Csr(NamedTuple):
    """Row pointers and columns of a matrix, sorted, none twice; values are drawn apart."""

    start: Any  # int32
    col: Any  # int32
    shape: tuple[int, int]


def _csr(xp: Any, row: Any, col: Any, shape: tuple[int, int]) -> Csr:
    keys = xp.unique(row.astype(xp.int64) * shape[1] + col)
    rows = keys // shape[1]
    start = xp.searchsorted(rows, xp.arange(shape[0] + 1, dtype=xp.int64))
    return Csr(start.astype(xp.int32), (keys - rows * shape[1]).astype(xp.int32), shape)


def rmat(xp: Any, scale: int, degree: int, a: float, b: float, c: float, seed: int) -> Csr:
    """Edges dropped into quadrants of the matrix, again and again (Chakrabarti, Zhan and Faloutsos)."""
    random, edges = xp.random.RandomState(seed), degree << scale
    row, col = xp.zeros(edges, xp.int64), xp.zeros(edges, xp.int64)
    for _ in range(scale):
        draw = random.random_sample(edges).astype(xp.float32)
        down = draw >= a + b
        right = (draw >= a) & ((draw < a + b) | (draw >= a + b + c))
        row, col = 2 * row + down, 2 * col + right
    return _csr(xp, row, col, (1 << scale, 1 << scale))


def _powers(xp: Any, random: Any, count: int, over: int, exponent: float) -> Any:
    """Numbers below `over`, the k-th about k^-exponent as often as the first."""
    u = random.random_sample(count)
    if abs(exponent - 1) < 1e-6:
        drawn = xp.exp(u * float(xp.log(xp.asarray(float(over)))))
    else:
        drawn = ((float(over) ** (1 - exponent) - 1) * u + 1) ** (1 / (1 - exponent))
    return xp.minimum(drawn.astype(xp.int64) - 1, over - 1).clip(0)


def zipf(
    xp: Any, rows: int, cols: int, nonzeros: int, exponent: float, seed: int, near: int = 0, hubs: float = 0
) -> Csr:
    """Row lengths of a power law, in no order; columns anywhere, or near the row's place, or popular by a power too."""
    random = xp.random.RandomState(seed)
    row = random.permutation(rows)[_powers(xp, random, nonzeros, rows, exponent)]
    if near:
        col = (row * cols // rows + random.randint(-near, near, nonzeros)) % cols
    elif hubs:
        col = random.permutation(cols)[_powers(xp, random, nonzeros, cols, hubs)]
    else:
        col = random.randint(0, cols, nonzeros)
    return _csr(xp, row, col, (rows, cols))


def hollow(xp: Any, rows: int, cols: int, nonzeros: int, full: float, seed: int) -> Csr:
    """Nonzeros only in a share of the rows."""
    random = xp.random.RandomState(seed)
    some = random.permutation(rows)[: max(1, int(rows * full))]
    return _csr(
        xp, some[random.randint(0, len(some), nonzeros)], random.randint(0, cols, nonzeros), (rows, cols)
    )  # fmt: skip


def dense_rows(xp: Any, rows: int, cols: int, short: int, dense: int, share: float, seed: int) -> Csr:
    """Short rows near the diagonal, and a few that hold a share of all columns."""
    random = xp.random.RandomState(seed)
    row = xp.repeat(xp.arange(rows, dtype=xp.int64), short)
    col = (row * cols // rows + random.randint(-64, 64, len(row))) % cols
    wide = xp.repeat(xp.asarray(random.permutation(rows)[:dense]), int(share * cols))
    row = xp.concatenate([row, wide])
    col = xp.concatenate([col, random.randint(0, cols, len(wide))])
    return _csr(xp, row, col, (rows, cols))


def web(xp: Any, rows: int, nonzeros: int, near: int, share: float, hubs: float, seed: int) -> Csr:
    """Links as pages have them: a share to pages near by in the order of addresses, the others to popular ones."""
    random = xp.random.RandomState(seed)
    row = random.permutation(rows)[_powers(xp, random, nonzeros, rows, 0.5)]
    close = (row + random.randint(-near, near, nonzeros)) % rows
    popular = random.permutation(rows)[_powers(xp, random, nonzeros, rows, hubs)]
    return _csr(xp, row, xp.where(random.random_sample(nonzeros) < share, close, popular), (rows, rows))


def shuffled(xp: Any, a: Csr, seed: int) -> Csr:
    """The same graph with its nodes in no order."""
    place = xp.random.RandomState(seed).permutation(a.shape[0])
    row = xp.searchsorted(a.start[1:], xp.arange(len(a.col), dtype=a.start.dtype), side="right")
    return _csr(xp, place[row], place[a.col], a.shape)


def irregular(xp: Any, size: float = 1.0, seed: int = 0) -> dict[str, Callable[[], Csr]]:
    """The 30 matrices of the study by name; `size` scales rows and nonzeros (1: 16 to 130 million nonzeros)."""

    def scaled(n: float) -> int:
        return max(64, int(n * size))

    shift = round(math.log2(size)) if size != 1 else 0
    made: dict[str, Callable[[], Csr]] = {}
    graphs = [
        (20, 16, 0.57, 0.19, 0.19), (20, 64, 0.57, 0.19, 0.19), (21, 32, 0.57, 0.19, 0.19), (22, 16, 0.57, 0.19, 0.19),
        (22, 4, 0.57, 0.19, 0.19), (23, 8, 0.57, 0.19, 0.19), (21, 16, 0.45, 0.22, 0.22), (22, 16, 0.45, 0.22, 0.22),
        (20, 32, 0.65, 0.15, 0.15), (22, 24, 0.25, 0.25, 0.25),
    ]  # fmt: skip
    for scale, degree, a, b, c in graphs:
        at = max(6, scale + shift)
        made[f"rmat-{scale}-{degree}-{a:g}"] = partial(rmat, xp, at, degree, a, b, c, seed)
    laws: list[tuple[str, float, float, float, float, dict[str, Any]]] = [
        ("zipf-0.6", 2e6, 2e6, 3.2e7, 0.6, {}), ("zipf-0.8", 2e6, 2e6, 3.2e7, 0.8, {}),
        ("zipf-1.0", 4e6, 4e6, 4.8e7, 1.0, {}), ("zipf-wide", 2e5, 8e6, 3.2e7, 0.7, {}),
        ("zipf-tall", 8e6, 2e5, 3.2e7, 0.7, {}), ("zipf-near", 4e6, 4e6, 6.4e7, 0.6, {"near": 2000}),
        ("zipf-near-steep", 2e6, 2e6, 4.8e7, 0.9, {"near": 20_000}),
        ("zipf-hubs", 2e6, 2e6, 3.2e7, 0.6, {"hubs": 0.8}), ("zipf-short", 1.2e7, 1.2e7, 3.6e7, 0.5, {}),
        ("zipf-long", 1.5e5, 1e6, 6.4e7, 0.5, {}),
    ]  # fmt: skip
    for name, rows, cols, nonzeros, exponent, how in laws:
        sizes = (scaled(rows), scaled(cols), scaled(nonzeros), exponent, seed)
        made[name] = partial(zipf, xp, *sizes, **how)
    made["hollow-5%"] = lambda: hollow(xp, scaled(8e6), scaled(2e6), scaled(1.6e7), 0.05, seed)
    made["hollow-30%"] = lambda: hollow(xp, scaled(8e6), scaled(4e6), scaled(3.2e7), 0.3, seed)
    made["dense-rows"] = lambda: dense_rows(xp, scaled(2e6), scaled(2e6), 8, 16, 0.3, seed)
    made["dense-rows-short"] = lambda: dense_rows(xp, scaled(6e6), scaled(6e6), 3, 4, 0.5, seed)
    made["web-near"] = lambda: web(xp, scaled(4e6), scaled(6.4e7), 200, 0.8, 0.9, seed)
    made["web-far"] = lambda: web(xp, scaled(2e6), scaled(3.2e7), 2000, 0.5, 0.8, seed)
    made["web-short"] = lambda: web(xp, scaled(8e6), scaled(4e7), 50, 0.7, 0.9, seed)
    made["ratings"] = lambda: zipf(xp, scaled(4e6), scaled(4e5), scaled(4.8e7), 0.6, seed, hubs=0.9)
    made["social"] = lambda: shuffled(xp, rmat(xp, max(6, 21 + shift), 24, 0.57, 0.19, 0.19, seed), seed)
    made["social-sparse"] = lambda: shuffled(xp, rmat(xp, max(6, 22 + shift), 8, 0.5, 0.2, 0.2, seed), seed)
    return made
