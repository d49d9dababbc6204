"""Schemes on a GPU: Triton kernels that combine, the vendor's products between them, or one kernel that does both.

Ways: `staged` hands the sums to the vendor product by product, `batched` in one call, `grouped` multiplies in a kernel
of ours that keeps the result's blocks on the chip, `fused` also forms A's sums while it loads. The study's script tries
all of them on an H200. `gemm` has the model name what may pay, and on the first product of a shape tries that beside
the vendor.

Nothing here imports the rest of assay beside schemes and the decision, so the script runs where assay is not installed.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import log
from typing import Any, NamedTuple

from assay.kernels.falcongemm.decision import (
    VENDOR,
    Plan,
    Profile,
    blocks,
    doubt,
    hope,
    plausible,
    settle,
    work,
)
from assay.kernels.falcongemm.schemes import Scheme, named
from assay.kernels.falcongemm.triton_source import kernels
from assay.record.errors import BadInput

SCHEMES = ("winograd", "winograd of winograd", "2x3x3", "3x2x3", "3x3x2")
GRID = (512, 1024, 2048, 4096, 8192, 16384)
KINDS = {"float32": "f32", "float64": "f64", "bfloat16": "bf16", "float16": "f16"}
# Tiles of the fused kernels: BM, BN, BK, warps, stages.
TILES = ((128, 64, 64, 8, 3), (64, 128, 64, 8, 3), (64, 64, 64, 4, 3), (64, 64, 32, 8, 3), (64, 64, 16, 8, 2))
PASS = (4, 256, 4)  # rows and columns of a tile of a pass, and warps
ALIGN = 16  # entries that blocks are filled up to: vector loads, and the vendor's tensor cores, want it
FEW = 16  # products up to which they may go to the vendor one by one
ROUNDS = 5  # of a trial
SHORT = 0.05  # seconds of the longest product that is run to check a profile
# Shapes that a profile's errors are measured on: of no model, and between the grid's sizes. As many as fit.
HELD_OUT = (
    (3008, 3008, 3008), (6016, 2496, 4992), (2624, 8960, 3520), (9984, 3328, 7040), (5312, 11008, 5312),
    (8960, 8960, 8960), (13056, 6528, 9984), (12032, 13952, 12032),
)  # fmt: skip
MOST = 0.8  # of the free memory that a scheme may take


def _wide(dtype: Any) -> Any:
    import torch
    import triton.language as tl  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return tl.float64 if dtype == torch.float64 else tl.float32


def precision(dtype: Any) -> str:
    """How the vendor multiplies this dtype now: float32 exactly, or as TF32 where torch is told to."""
    import torch

    return "tf32" if dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32 else "ieee"


def _spread(x: Any, kernel: Any, count: int, down: int, across: int, out: Any = None) -> Any:
    """All sums of an operand's blocks: count x high x wide."""
    import torch

    high, wide = (-(-size // (parts * ALIGN)) * ALIGN for size, parts in zip(x.shape, (down, across), strict=True))
    out = torch.empty((count, high, wide), dtype=x.dtype, device=x.device) if out is None else out
    rows, cols, warps = PASS
    grid = (-(-wide // cols), -(-high // rows))
    kernel[grid](x, out, *x.shape, high, wide, x.stride(0), _wide(x.dtype), rows, cols, num_warps=warps)
    return out


def _turned(scheme: Scheme, which: str) -> Scheme:
    """A scheme whose table for one operand numbers the blocks of its transpose: what lies by columns is read so."""
    table, down, across = (scheme.u, scheme.m, scheme.k) if which == "a" else (scheme.v, scheme.k, scheme.n)
    return _turned_kept(scheme, which, table.reshape(-1, down, across).shape)


@cache
def _turned_kept(scheme: Scheme, which: str, shape: tuple[int, ...]) -> Scheme:
    table = scheme.u if which == "a" else scheme.v
    swapped = table.reshape(shape).transpose(0, 2, 1).reshape(shape[0], -1)
    if which == "a":
        return Scheme(f"{scheme.name} a turned", scheme.k, scheme.m, scheme.n, swapped, scheme.v, scheme.w)
    return Scheme(f"{scheme.name} b turned", scheme.m, scheme.n, scheme.k, scheme.u, swapped, scheme.w)


def sums(x: Any, scheme: Scheme, which: str) -> Any:
    """All sums of one operand; one that lies by columns is read, and its sums lie, by columns."""
    down, across = (scheme.m, scheme.k) if which == "a" else (scheme.k, scheme.n)
    if x.stride(1) != 1 and x.stride(0) == 1:
        turned = kernels(_turned(scheme, which))[f"spread_{which}"]
        return _spread(x.T, turned, scheme.rank, across, down).transpose(1, 2)
    x = x if x.stride(1) == 1 else x.contiguous()
    return _spread(x, kernels(scheme)[f"spread_{which}"], scheme.rank, down, across)


def collect(products: Any, scheme: Scheme, out: Any, flag: Any) -> None:
    """The result's blocks from the products; the flag is set where an entry is not finite."""
    _, high, wide = products.shape
    rows, cols, warps = PASS
    grid = (-(-wide // cols), -(-high // rows))
    kernels(scheme)["collect"][grid](
        products, out, flag, *out.shape, high, wide, out.stride(0), _wide(out.dtype), rows, cols, num_warps=warps
    )


def repair(a: Any, b: Any, scheme: Scheme, out: Any, flag: Any, programs: int = 264) -> None:
    """The plain product, if the flag is set; else the programs return at once."""
    import torch

    if a.dtype == torch.float64:  # its products have no kernel of ours: ask, and wait
        if flag.item():
            torch.mm(a, b, out=out)
        return
    kernels(scheme)["repair"][(programs,)](
        a, b, out, flag, *a.shape, b.shape[1], *a.stride(), *b.stride(), out.stride(0), precision(a.dtype), 64, 64, 32,
        num_warps=4, num_stages=2,
    )  # fmt: skip


def multiply(
    a: Any, b: Any, scheme: Scheme, way: str = "", weights: Any = None, tile: Any = TILES[0], flag: Any = None
) -> Any:
    """The product by a scheme on the GPU. `weights` are B's sums made before; a given flag is not acted upon."""
    import torch

    way = way or "batched"
    right = sums(b, scheme, "b") if weights is None else weights
    out = torch.empty((a.shape[0], b.shape[1]), dtype=a.dtype, device=a.device)
    seen = torch.zeros(1, dtype=torch.int32, device=a.device) if flag is None else flag
    if way in ("fused", "grouped"):
        _on_chip(a, right, scheme, way, tile, out, seen)
    else:
        left = sums(a, scheme, "a")
        size = (scheme.rank, left.shape[1], right.shape[2])
        products = torch.empty(size, dtype=a.dtype, device=a.device)
        if way == "batched":
            torch.bmm(left, right, out=products)
        else:
            for r in range(scheme.rank):
                torch.mm(left[r], right[r], out=products[r])
        collect(products, scheme, out, seen)
    if flag is None:
        repair(a, b, scheme, out, seen)
    return out


def _on_chip(a: Any, right: Any, scheme: Scheme, way: str, tile: Any, out: Any, flag: Any) -> None:
    """One kernel for all products and the result."""
    high, inner, wide = blocks((a.shape[0], a.shape[1], out.shape[1]), scheme, ALIGN)
    a = a if a.stride(1) == 1 else a.contiguous()
    left = a if way == "fused" else sums(a, scheme, "a").contiguous()
    bm, bn, bk, warps, stages = tile
    grid = (-(-high // bm) * -(-wide // bn),)
    kernels(scheme)[way][grid](
        left, right.contiguous(), out, flag, *a.shape, out.shape[1], high, inner, wide, a.stride(0), out.stride(0),
        precision(a.dtype), bm, bn, bk, 8, num_warps=warps, num_stages=stages,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ the profile


def timed(runs: dict[str, Any], rounds: int = 5) -> dict[str, list[float]]:
    """Seconds by CUDA events of each contender in each round, in turns, the L2 cache overwritten before each."""
    import torch

    flush = _flush()
    marks: dict[str, list[Any]] = {name: [] for name in runs}
    names = list(runs)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            flush.fill_(turn)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            runs[name]()
            end.record()
            marks[name].append((begin, end))
    torch.cuda.synchronize()
    return {name: [begin.elapsed_time(end) / 1e3 for begin, end in pairs] for name, pairs in marks.items()}


@cache
def _flush() -> Any:
    import torch

    return torch.empty(256 << 20, dtype=torch.uint8, device="cuda")


def kind(dtype: Any) -> str:
    """The dtype as profiles name it."""
    name = str(dtype).removeprefix("torch.")
    return "tf32" if precision(dtype) == "tf32" else KINDS[name]


@cache
def plans() -> tuple[Plan, ...]:
    """All that `gemm` chooses from: every scheme in one call, those of few products also one by one."""
    some = [named(name) for name in SCHEMES]
    return (*(Plan(one, "batched") for one in some), *(Plan(one, "staged") for one in some if one.rank <= FEW))


def _rates(dtype: Any, sizes: tuple[int, ...], together: int) -> tuple[float, ...]:
    """FLOP/s of the vendor over a grid of sizes, by so many products in a call."""
    import numpy as np
    import torch

    top, rates = sizes[-1], []
    x, y = (torch.randn(together * top * top, device="cuda", dtype=torch.float32).to(dtype) for _ in range(2))
    out = torch.empty(together * top * top, device="cuda", dtype=dtype)
    for m in sizes:
        for k in sizes:
            for n in sizes:
                p, q, r = (
                    part[: together * i * j].view(together, i, j) for part, i, j in ((x, m, k), (y, k, n), (out, m, n))
                )
                run = {
                    "": lambda p=p, q=q, r=r: torch.bmm(p, q, out=r) if together > 1 else torch.mm(p[0], q[0], out=r[0])
                }
                timed(run, 1)
                rates.append(together * 2.0 * m * k * n / float(np.median(timed(run, 3)[""])))
    return tuple(rates)


def measure(dtype: Any, largest: int = GRID[-1]) -> Profile:
    """This GPU's profile: the vendor's products over a grid of sizes, alone and seven in a call, the passes of two
    schemes, and how far it is off on shapes held out."""
    import numpy as np
    import torch

    sizes = tuple(size for size in GRID if size <= largest)
    n, taken, rows = min(8192, sizes[-1]), [], []
    a, out = torch.randn((n, n), device="cuda").to(dtype), torch.empty((n, n), dtype=dtype, device="cuda")
    flag = torch.zeros(1, dtype=torch.int32, device="cuda")
    for name in ("winograd", "winograd of winograd"):
        scheme = named(name)
        high, _, wide = blocks((n, n, n), scheme, ALIGN)
        products = torch.ones((scheme.rank, high, wide), dtype=dtype, device="cuda")

        def go(scheme=scheme, products=products):
            sums(a, scheme, "a")
            collect(products, scheme, out, flag)

        go()
        taken.append(float(np.median(timed({"": go}, 5)[""])))
        rows.append([a.element_size() * count for count in work((n, n, n), scheme, True, ALIGN)])
    moving, adding = np.linalg.solve(np.array(rows, float), np.array(taken))
    if adding < 0 or moving < 0:
        moving, adding = max(t / row[0] for t, row in zip(taken, rows, strict=True)), 0.0
    small = {"": lambda: multiply(a[:64, :64], a[:64, :64], named("winograd"))}
    timed(small, 2)
    # Blocks are half a matrix at most, so seven of the largest would only take memory: its rate is that of the next.
    few = _rates(dtype, sizes[:-1], 7)
    kept = np.pad(np.reshape(few, (len(sizes) - 1,) * 3), (0, 1), mode="edge")
    found = Profile(torch.cuda.get_device_name(), kind(dtype), a.element_size(), sizes, _rates(dtype, sizes, 1),
                    float(moving), float(adding), 5e-6, align=ALIGN, threads=0, batched=tuple(kept.ravel().tolist()),
                    floor=float(np.median(timed(small, 5)[""])))  # fmt: skip
    return _checked(found, dtype)


def _checked(profile: Profile, dtype: Any) -> Profile:
    """The same with how much too well and too badly it thinks of schemes on shapes that it was not fitted to."""
    import numpy as np
    import torch

    best: list[float] = []
    every: list[float] = []
    for shape in HELD_OUT:
        if profile.seconds(shape, None) > SHORT:
            continue
        m, k, n = shape
        a, b = (torch.randn(size, device="cuda").to(dtype) for size in ((m, k), (k, n)))
        seconds = {name: float(np.median(x)) for name, x in timed_ways(a, b, plans()).items()}
        logs = {}
        for plan in plans():
            predicted = profile.seconds(shape, plan.scheme, way=plan.way) / profile.seconds(shape, None)
            logs[predicted] = log(seconds[plan.name] / seconds[VENDOR] / predicted)
        best.append(logs[min(logs)])  # what the model would take, and so the one it may think too well of
        every += logs.values()
    return replace(profile, off=hope(best), shy=doubt(every))


def timed_ways(a: Any, b: Any, some: Any, rounds: int = ROUNDS, weights: Any = None) -> dict[str, list[float]]:
    """Seconds of the vendor and of some plans in each round, in turns, each run once before."""
    import torch

    kept = weights or {}
    runs = {VENDOR: lambda: torch.mm(a, b)}
    runs |= {
        plan.name: lambda plan=plan: multiply(a, b, plan.scheme, plan.way, kept.get(plan.scheme.name)) for plan in some
    }
    timed(runs, 1)
    return timed(runs, rounds)


_PROFILES: dict[str, Profile] = {}
_SETTLED: dict[tuple[Any, ...], Plan | None] = {}


def _profile(dtype: Any) -> Profile:
    name = kind(dtype)
    if name not in _PROFILES:
        _PROFILES[name] = measure(dtype, 8192)
    return _PROFILES[name]


def tried(a: Any, b: Any, profile: Profile, weights: Any = None) -> Plan | None:
    """Who a trial on these matrices takes: a plan, or None for the vendor. Without plausible plans there is none."""
    shape = (a.shape[0], a.shape[1], b.shape[1])
    some = [plan for plan in plausible(profile, shape, plans(), bool(weights)) if _fits(shape, plan, a.element_size())]
    if weights:
        some = [plan for plan in some if plan.scheme.name in weights]
    if not some:
        return None
    taken = settle(timed_ways(a, b, some, weights=weights), VENDOR)
    return next((plan for plan in some if plan.name == taken), None)


def _fits(shape: tuple[int, int, int], plan: Plan, size: int) -> bool:
    """Whether sums and products have room in what is free."""
    import torch

    high, deep, wide = blocks(shape, plan.scheme, ALIGN)
    free = torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return size * plan.scheme.rank * (high * deep + deep * wide + high * wide) <= MOST * free


class Kept(NamedTuple):
    """A right operand whose sums were made before, and by which plan; without one the vendor multiplies."""

    b: Any
    plan: Plan | None
    sums: Any


def weights(b: Any, rows: int) -> Kept:
    """A right operand on the GPU for many products with about `rows` rows: its sums are made once, where that pays."""
    import torch

    a = torch.randn((rows, b.shape[0]), device=b.device).to(b.dtype)
    _checked_pair(a, b)
    if min(rows, *b.shape) < GRID[0]:
        return Kept(b, None, None)
    some = plausible(_profile(b.dtype), (rows, *b.shape), plans(), True)
    plan = tried(a, b, _profile(b.dtype), {one.scheme.name: sums(b, one.scheme, "b") for one in some})
    return Kept(b, plan, sums(b, plan.scheme, "b") if plan else None)


def _checked_pair(a: Any, b: Any) -> None:
    import torch

    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, torch.Tensor) or x.ndim != 2 or not x.is_cuda:
            raise BadInput(f"{name}: a matrix of two dimensions on the GPU expected")
        if str(x.dtype).removeprefix("torch.") not in KINDS:
            raise BadInput(f"{name}: {x.dtype} is not multiplied here; cast to float32, bfloat16 or float16")
        if not x.numel():
            raise BadInput(f"{name}: {x.shape[0]} x {x.shape[1]} is empty: there is nothing to multiply")
    if a.dtype != b.dtype or a.shape[1] != b.shape[0]:
        raise BadInput(f"a is {tuple(a.shape)} of {a.dtype} and b {tuple(b.shape)} of {b.dtype}: they do not match")
    size, free = a.shape[0] * b.shape[1] * a.element_size(), torch.cuda.mem_get_info()[0]
    if size > free:
        raise BadInput(f"the product takes {size / 1e9:.1f} GB and {free / 1e9:.1f} are free: multiply a part at once")


def gemm(a: Any, b: Any, scheme: str = "auto") -> Any:
    """The product of two matrices on the GPU by what pays there. The first of a dtype measures the GPU, the first of a
    shape tries what may pay on it."""
    import torch

    if isinstance(b, Kept):
        _checked_pair(a, b.b)
        return multiply(a, b.b, b.plan.scheme, b.plan.way, b.sums) if b.plan else torch.mm(a, b.b)
    _checked_pair(a, b)
    shape = (a.shape[0], a.shape[1], b.shape[1])
    plan = None if scheme in ("auto", VENDOR) else Plan(named(scheme), "batched")
    if scheme == "auto" and min(shape) >= GRID[0]:
        key = (kind(a.dtype), shape, a.stride(), b.stride())
        if key not in _SETTLED:
            _SETTLED[key] = tried(a, b, _profile(a.dtype))
        plan = _SETTLED[key]
    fits = plan and _fits(shape, plan, a.element_size())
    return multiply(a, b, plan.scheme, plan.way) if plan and fits else torch.mm(a, b)
