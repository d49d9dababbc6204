"""Triton source for a scheme: its sums unrolled, zeros dropped, every block loaded once.

Kernels: `spread` reads a tile of all blocks of an operand and writes every sum that products take; `collect` reads
a tile of all products and writes every block of the result; `grouped` owns a tile of all blocks of the result,
multiplies product after product and keeps the result's blocks on the chip, so products never go to memory; `fused` also
forms the sums of A while it loads. Those that write the result note entries that are not finite. `repair` is a plain
product that only runs if something was noted: nobody waits for the GPU to find out.
"""

from __future__ import annotations

import linecache
from functools import cache
from typing import Any

import numpy as np

from assay.kernels.falcongemm.schemes import Scheme

HEAD = "import triton\nimport triton.language as tl\n\n"
SPREAD = """
@triton.jit
def {name}(x, out, rows, cols, high, wide, step, WIDE: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    inside = (i < high) & (j < wide)
    put = i.to(tl.int64) * wide + j
    gap = high.to(tl.int64) * wide
{body}
"""
COLLECT = """
@triton.jit
def collect(products, out, flag, rows, cols, high, wide, step, WIDE: tl.constexpr, ROWS: tl.constexpr,
            COLS: tl.constexpr):
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)[:, None]
    j = tl.program_id(0) * COLS + tl.arange(0, COLS)[None, :]
    inside = (i < high) & (j < wide)
    get = i.to(tl.int64) * wide + j
    gap = high.to(tl.int64) * wide
    odd = tl.zeros((ROWS, COLS), tl.int32)
{body}
    if tl.max(tl.max(odd, 1), 0) > 0:
        tl.store(flag, 1)
"""
FUSED = """
@triton.jit
def {name}(a, b, out, flag, rows, deep, cols, high, inner, wide, a_step, c_step, PRECISION: tl.constexpr,
          BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    down, across = tl.cdiv(high, BM), tl.cdiv(wide, BN)
    tile = tl.program_id(0)
    strip = tile // (GROUP * across)
    tall = tl.minimum(down - strip * GROUP, GROUP)
    tile_m = strip * GROUP + (tile % (GROUP * across)) % tall
    tile_n = (tile % (GROUP * across)) // tall
    i = tile_m * BM + tl.arange(0, BM)[:, None]
    j = tile_n * BN + tl.arange(0, BN)[None, :]
    l = tl.arange(0, BK)
    gap = inner.to(tl.int64) * wide
    left = i.to(tl.int64) * a_step
{zeros}
{products}
    odd = tl.zeros((BM, BN), tl.int32)
    inside = (i < high) & (j < wide)
{stores}
    if tl.max(tl.max(odd, 1), 0) > 0:
        tl.store(flag, 1)
"""
REPAIR = """
@triton.jit
def repair(a, b, out, flag, rows, deep, cols, am, ak, bk, bn, c_step, PRECISION: tl.constexpr, BM: tl.constexpr,
           BN: tl.constexpr, BK: tl.constexpr):
    if tl.load(flag) != 0:
        down, across = tl.cdiv(rows, BM), tl.cdiv(cols, BN)
        tile = tl.program_id(0)
        while tile < down * across:
            i = (tile // across) * BM + tl.arange(0, BM)[:, None]
            j = (tile % across) * BN + tl.arange(0, BN)[None, :]
            total = tl.zeros((BM, BN), tl.float32)
            for first in range(0, deep, BK):
                l = first + tl.arange(0, BK)
                d, e = l[None, :], l[:, None]
                x = tl.load(a + i.to(tl.int64) * am + d.to(tl.int64) * ak, mask=(i < rows) & (d < deep), other=0.0)
                y = tl.load(b + e.to(tl.int64) * bk + j.to(tl.int64) * bn, mask=(e < deep) & (j < cols), other=0.0)
                total = tl.dot(x, y, total, input_precision=PRECISION)
            put = i.to(tl.int64) * c_step + j
            tl.store(out + put, total.to(out.dtype.element_ty), mask=(i < rows) & (j < cols))
            tile += tl.num_programs(0)
"""


def _sum(row: Any, name: str) -> str:
    """A linear combination as an expression, zeros dropped."""
    told = ""
    for index in np.flatnonzero(row):
        sign = "-" if row[index] < 0 else "+" if told else ""
        size = abs(float(row[index]))
        told += f" {sign} " if told else sign
        told += f"{name}{index}" if size == 1 else f"{size} * {name}{index}"
    return told


def _spread(name: str, table: Any, across: int) -> str:
    lines = []
    for block in np.flatnonzero(np.any(table, 0)):
        p, q = divmod(int(block), across)
        lines += [
            f"x{block} = tl.load(x + (i + {p} * high).to(tl.int64) * step + (j + {q} * wide), "
            f"mask=inside & (i + {p} * high < rows) & (j + {q} * wide < cols), other=0.0).to(WIDE)",
        ]
    for s, row in enumerate(table):
        lines.append(f"tl.store(out + {s} * gap + put, ({_sum(row, 'x')}).to(out.dtype.element_ty), mask=inside)")
    return SPREAD.format(name=name, body="\n".join("    " + line for line in lines))


def _put(c: int, across: int, value: str, where: str) -> list[str]:
    """Lines that store a block of the result and note what is not finite."""
    p, q = divmod(c, across)
    return [
        f"v{c} = ({value}).to(out.dtype.element_ty)",
        f"in{c} = inside & (i + {p} * high < rows) & (j + {q} * wide < cols)",
        f"tl.store(out + (i + {p} * high).to(tl.int64) * {where} + (j + {q} * wide), v{c}, mask=in{c})",
        f"odd = odd | (in{c} & ((v{c} - v{c}) != 0.0)).to(tl.int32)",
    ]


def _collect(scheme: Scheme) -> str:
    lines = [f"h{r} = tl.load(products + {r} * gap + get, mask=inside, other=0.0).to(WIDE)" for r in range(scheme.rank)]
    for c, row in enumerate(scheme.w):
        lines += _put(c, scheme.n, _sum(row, "h"), "step")
    return COLLECT.format(body="\n".join("    " + line for line in lines))


def _fused(name: str, scheme: Scheme) -> str:
    """`fused` reads A itself, `grouped` the sums of its blocks, one after the other."""
    zeros = [f"c{c} = tl.zeros((BM, BN), tl.float32)" for c in range(scheme.m * scheme.n)]
    lines = []
    for r in range(scheme.rank):
        lines += ["h = tl.zeros((BM, BN), tl.float32)", "for first in range(0, inner, BK):"]
        lines += ["    d = first + l[None, :]", "    e = first + l[:, None]"]
        if name == "grouped":
            lines.append(
                f"    x = tl.load(a + {r} * high.to(tl.int64) * inner + i.to(tl.int64) * inner + d, "
                "mask=(i < high) & (d < inner), other=0.0)"
            )
        for block in np.flatnonzero(scheme.u[r]) if name == "fused" else ():
            p, q = divmod(int(block), scheme.k)
            lines.append(
                f"    x{block} = tl.load(a + left + {p} * high.to(tl.int64) * a_step + ({q} * inner + d), "
                f"mask=(i < high) & (i + {p} * high < rows) & (d < inner) & (d + {q} * inner < deep), other=0.0)"
            )
        lines += [
            f"    y = tl.load(b + {r} * gap + e.to(tl.int64) * wide + j, mask=(e < inner) & (j < wide), other=0.0)",
            f"    h = tl.dot({_sum(scheme.u[r], 'x') if name == 'fused' else 'x'}, y, h, input_precision=PRECISION)",
        ]
        for c in np.flatnonzero(scheme.w[:, r]):
            value = float(scheme.w[c, r])
            lines.append(f"c{c} += {'h' if value == 1 else '-h' if value == -1 else f'{value} * h'}")
    stores = [line for c in range(scheme.m * scheme.n) for line in _put(c, scheme.n, f"c{c}", "c_step")]
    indented = ("\n".join("    " + line for line in part) for part in (zeros, lines, stores))
    return FUSED.format(name=name, **dict(zip(("zeros", "products", "stores"), indented, strict=True)))


def source(scheme: Scheme) -> str:
    """The kernels of one scheme as a module.

    >>> from assay.kernels.falcongemm.schemes import named
    >>> "(x0 + x3).to(" in source(named("strassen"))
    True
    """
    parts = [_spread("spread_a", scheme.u, scheme.k), _spread("spread_b", scheme.v, scheme.n), _collect(scheme)]
    if scheme.m * scheme.n <= 4:
        parts += [_fused("fused", scheme), _fused("grouped", scheme)]
    return HEAD + "".join([*parts, REPAIR])


@cache
def kernels(scheme: Scheme) -> dict[str, Any]:
    """The compiled module's names. The text is kept where tracebacks and Triton look for sources."""
    text, file = source(scheme), f"<falcongemm {scheme.name}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    made: dict[str, Any] = {"__name__": f"falcongemm_{scheme.name}".replace(" ", "_")}
    exec(compile(text, file, "exec"), made)  # our own text, made from numbers that were checked
    return made
