"""One decode step on a GPU over heads of different block sizes, in Triton: estimate, choose, attend, merge.

Only torch and Triton are imported (and a file that needs torch alone), and CuPy where it is at hand, so that
`benchmarks/h200_ab_sparse.py` can load this file without assay.

- *estimate*: programs share out runs of the flat list of all heads' blocks; which head a run belongs to is looked up. A
  byte holds both corners of a channel; they become numbers in half precision on the chip, 16 blocks with one scale and
  zero a channel, so that products run on tensor cores. Where CuPy is at hand, `estimate.cu` does the same a warp at a
  time with all its loads on their way at once: at one cache the wait for memory is most of the time.
- *choose*: one program a head and cache; the bound above which so many blocks lie is found by bisection over the
  bits of the scores, stopping as soon as the count fits; equal scores go by place. Where CuPy is at hand, `choose.cu`
  does the same by histograms: a head of 16,000 blocks takes half the time or less.
- *attend*: the tokens of a head's chosen blocks, behind sink and window, are one list that splits share out; a token's
  place is its block's, and its row is where the page table says (pages of 16 tokens, laid out page, head, token).
- *merge*: splits by their maxima and sums.
"""

# mypy: ignore-errors
# ruff: noqa: D102

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import triton
import triton.language as tl

from assay.kernels.ab_sparse.codes_torch import codes

PAGE = 16  # tokens of a physical page
ROWS = 16  # queries of a group, padded to what tensor cores take
SINK, WINDOW, LARGEST = 16, 16, 128
GROUP = 2048  # tokens whose blocks share scales and zeros
TOGETHER = GROUP // LARGEST  # so many blocks in a row lie in one group, whatever their size


@triton.jit
def halves(q, pair, group, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """The queries of a head, what is below zero and what is above, as columns [width, rows]."""
    row, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    x = tl.load(q + (pair * group + row[None, :]) * WIDTH + c[:, None], mask=row[None, :] < group, other=0.0)
    x = x.to(tl.float32)
    return tl.minimum(x, 0.0), tl.maximum(x, 0.0)


@triton.jit
def small(code):
    """Whole numbers below 1024 in half precision: the last bits of 1024 + code are the code. Faster than converting."""
    return (code.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0


# Four bytes become four numbers and four more, two an instruction: codes below 16 are the last bits of 1024 + code, and
# those four bits further up of 1024 + 16 code; then times scale, plus zero. The compiler would do one at a time.
PACKED: tl.constexpr = tl.constexpr("""
{
    .reg .b32 p, q, low, high, large, part, minus;
    mov.b32 large, 0x64006400;
    mov.b32 part, 0x2c002c00;
    mov.b32 minus, 0xd400d400;
    prmt.b32 p, $4, 0, 0x4140;
    prmt.b32 q, $4, 0, 0x4342;
    lop3.b32 low, p, 0x000f000f, large, 0xea;
    lop3.b32 high, p, 0x00f000f0, large, 0xea;
    sub.rn.f16x2 low, low, large;
    fma.rn.f16x2 high, high, part, minus;
    fma.rn.f16x2 $0, low, $5, $7;
    fma.rn.f16x2 $2, high, $9, $11;
    lop3.b32 low, q, 0x000f000f, large, 0xea;
    lop3.b32 high, q, 0x00f000f0, large, 0xea;
    sub.rn.f16x2 low, low, large;
    fma.rn.f16x2 high, high, part, minus;
    fma.rn.f16x2 $1, low, $6, $8;
    fma.rn.f16x2 $3, high, $10, $12;
}
""")
REGISTERS: tl.constexpr = tl.constexpr("=&r,=&r,=&r,=&r,r,r,r,r,r,r,r,r,r")


@triton.jit
def numbers(code, scale, WIDTH: tl.constexpr, FAST: tl.constexpr):
    """Lower and upper corners from their codes, in half precision."""
    s, z, t, y = tl.load(scale), tl.load(scale + WIDTH), tl.load(scale + 2 * WIDTH), tl.load(scale + 3 * WIDTH)
    if FAST:
        return tl.inline_asm_elementwise(
            PACKED, REGISTERS, [code, s, z, t, y], dtype=(tl.float16, tl.float16), is_pure=True, pack=4
        )
    return small(code & 15) * s + z, small(code >> 4) * t + y


@triton.jit
def estimate_codes(
    q, codes, fold, tiles, scored, blocks, heads, groups, group, WIDTH: tl.constexpr, TILE: tl.constexpr,
    ROWS: tl.constexpr, TOGETHER: tl.constexpr, STAGES: tl.constexpr, FAST: tl.constexpr,
):  # fmt: skip
    """The best score that any query of a group can reach in each block, from corners of 4 bits."""
    tile, cache = tiles + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    head, begin, end, first, bits = (
        tl.load(tile), tl.load(tile + 1), tl.load(tile + 2), tl.load(tile + 3), tl.load(tile + 4)
    )  # fmt: skip
    pair = cache * heads + head
    down, up = halves(q, pair, group, WIDTH, ROWS)
    down, up = down.to(tl.float16), up.to(tl.float16)
    some, i = tl.arange(0, TILE // TOGETHER)[:, None, None], tl.arange(0, TOGETHER)[None, :, None]
    c, row = tl.arange(0, WIDTH)[None, None, :], tl.arange(0, ROWS)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        at = start + some * TOGETHER
        code = tl.load(codes + (cache * blocks + at + i) * WIDTH + c, mask=at + i < end, other=0)
        scale = fold + (pair * groups + tl.minimum((at - first) >> bits, groups - 1)) * 4 * WIDTH + c
        lower, upper = numbers(code, scale, WIDTH, FAST)
        scores = tl.dot(tl.reshape(lower, (TILE, WIDTH)), down)
        scores += tl.dot(tl.reshape(upper, (TILE, WIDTH)), up)
        scores = tl.where(row[None, :] < group, scores, float("-inf"))
        place = start + tl.arange(0, TILE)
        tl.store(scored + cache * blocks + place, tl.max(scores, 1), mask=place < end)


@triton.jit
def estimate_corners(
    q, corners, tiles, scored, blocks, heads, group,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """The same from corners in half precision."""
    tile, cache = tiles + tl.program_id(0) * 5, tl.program_id(1).to(tl.int64)
    head, begin, end = tl.load(tile), tl.load(tile + 1), tl.load(tile + 2)
    down, up = halves(q, cache * heads + head, group, WIDTH, ROWS)
    down, up = down.to(corners.dtype.element_ty), up.to(corners.dtype.element_ty)
    c, row = tl.arange(0, WIDTH)[None, :], tl.arange(0, ROWS)
    for start in tl.range(begin, end, TILE, num_stages=STAGES):
        at = start + tl.arange(0, TILE)
        place = corners + (cache * blocks + at[:, None]) * 2 * WIDTH + c
        lower = tl.load(place, mask=at[:, None] < end, other=0.0)
        upper = tl.load(place + WIDTH, mask=at[:, None] < end, other=0.0)
        scores = tl.dot(lower, down)
        scores += tl.dot(upper, up)
        scores = tl.where(row[None, :] < group, scores, float("-inf"))
        tl.store(scored + cache * blocks + at, tl.max(scores, 1), mask=at < end)


@triton.jit
def choose(scored, first, begin, chosen, blocks, picks, MOST: tl.constexpr):
    """The blocks of each head with the highest scores, in the order of their places."""
    head, cache = tl.program_id(0), tl.program_id(1)
    start, out = tl.load(first + head), tl.load(begin + head)
    size, want = tl.load(first + head + 1) - start, tl.load(begin + head + 1) - out
    i = tl.arange(0, MOST)
    real = i < size
    x = tl.load(scored + cache * blocks + start + i, mask=real, other=float("-inf"))
    bits = x.to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # whole numbers in the order of the scores
    lo = tl.min(tl.where(real, key, 2147483647), 0)  # at least `want` keys are >= lo
    hi = tl.max(tl.where(real, key, -2147483648), 0) + 1  # fewer are >= hi
    at_lo, at_hi = size, size * 0
    middle = (lo & hi) + ((lo ^ hi) >> 1)  # the mean, rounded down, without overflow
    while (middle != lo) & (at_lo != want):
        count = tl.sum((real & (key >= middle)).to(tl.int32), 0)
        enough = count >= want
        lo, at_lo = tl.where(enough, middle, lo), tl.where(enough, count, at_lo)
        hi, at_hi = tl.where(enough, hi, middle), tl.where(enough, at_hi, count)
        middle = (lo & hi) + ((lo ^ hi) >> 1)
    sure = real & (key >= hi)
    perhaps = real & (key >= lo) & (key < hi)
    take = sure | (perhaps & (tl.cumsum(perhaps.to(tl.int32), 0) <= want - at_hi))
    place = tl.cumsum(take.to(tl.int32), 0) - 1
    tl.store(chosen + cache * picks + out + place, i, mask=take & (place < want))


@triton.jit
def attend(
    q, keys, values, pages, chosen, begin, shift, parts, most, total, tokens, sink, end, picks, heads, group, scale,
    WIDTH: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Attention of a split's tokens: sums of weighted values, with their maxima and sums of weights."""
    split, head, cache = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(0)
    at, bits = tl.load(begin + head), tl.load(shift + head)
    always = sink + tokens - end
    length = always + ((tl.load(begin + head + 1) - at) << bits)
    each = tl.cdiv(tl.cdiv(length, splits), TILE) * TILE
    lo = split * each
    hi = tl.minimum(lo + each, length)
    row, c = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    pair = cache.to(tl.int64) * heads + head
    x = tl.load(q + (pair * group + row[:, None]) * WIDTH + c[None, :], mask=row[:, None] < group, other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    sums = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(lo, hi, TILE):
        t = first + tl.arange(0, TILE)
        real = t < hi
        inside = tl.maximum(t - always, 0)
        block = tl.load(chosen + cache * picks + at + (inside >> bits), mask=real & (t >= always), other=0)
        token = sink + (block << bits) + (inside & ((1 << bits) - 1))
        token = tl.where(t < always, end + t - sink, token)
        token = tl.where(t < sink, t, token)
        page = tl.load(pages + cache * tl.cdiv(tokens, PAGE) + token // PAGE, mask=real, other=0).to(tl.int64)
        place = ((page * heads + head) * PAGE + token % PAGE)[:, None] * WIDTH + c[None, :]
        k = tl.load(keys + place, mask=real[:, None], other=0.0)
        s = tl.dot(x, tl.trans(k)) * scale
        s = tl.where(real[None, :], s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        shrink, p = tl.exp2(top - higher), tl.exp2(s - higher[:, None])
        sums = sums * shrink + tl.sum(p, 1)
        v = tl.load(values + place, mask=real[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v)
        top = higher
    where = (pair * splits + split) * group + row
    tl.store(most + where, top, mask=row < group)
    tl.store(total + where, sums, mask=row < group)
    tl.store(parts + where[:, None] * WIDTH + c[None, :], acc, mask=row[:, None] < group)


@triton.jit
def merge(parts, most, total, out, splits, group, WIDTH: tl.constexpr, SPLITS: tl.constexpr):
    """The splits of each query head, weighed by their maxima and sums."""
    pair, g = tl.program_id(0).to(tl.int64), tl.program_id(1)
    s, c = tl.arange(0, SPLITS), tl.arange(0, WIDTH)
    where = (pair * splits + s) * group + g
    top = tl.load(most + where, mask=s < splits, other=float("-inf"))
    weight = tl.exp2(top - tl.max(top, 0))
    sums = tl.sum(weight * tl.load(total + where, mask=s < splits, other=0.0), 0)
    acc = tl.load(parts + where[:, None] * WIDTH + c[None, :], mask=s[:, None] < splits, other=0.0)
    mixed = tl.sum(acc * weight[:, None], 0) / sums
    tl.store(out + (pair * group + g) * WIDTH + c, mixed.to(out.dtype.element_ty))


def compiled(name, **defines):
    """The kernel of that name in `name.cu`, or None without CuPy."""
    try:
        import cupy
    except ImportError:
        return None
    code = Path(__file__).with_name(f"{name}.cu").read_text(encoding="utf-8")
    options = ("--std=c++17", *(f"-D{key}={value}" for key, value in defines.items()))
    return cupy.RawModule(code=code, options=options).get_function(name)


@functools.cache
def histograms(most, threads=1024):
    """The kernel of `choose.cu` for so many scores of a head at most, or None without CuPy."""
    bits = 10 if most <= 1 << 14 else 11  # so many steps that a warp can hold what lies in one
    return compiled("choose", THREADS=threads, EACH=triton.cdiv(most, threads), BITS=bits)


@functools.cache
def by_warps(heads, group, width, bits, brain, warps, run):
    """The kernel of `estimate.cu` for such heads, or None without CuPy."""
    return compiled(
        "estimate", HEADS=heads, GROUP=group, WIDTH=width, BITS=bits, BRAIN=int(brain), WARPS=warps, RUN=run
    )


def start(kernel, grid, threads, *arguments):
    """A compiled kernel on torch's stream: tensors by their addresses, NumPy arrays by value."""
    import cupy

    given = [x.data_ptr() if isinstance(x, torch.Tensor) else cupy.int32(x) if isinstance(x, int) else x
             for x in arguments]  # fmt: skip
    with cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream):
        kernel((grid,), (threads,), tuple(given))


# ---------------------------------------------------------------------------------------------- the step


@dataclass(frozen=True)
class Setting:
    """What can be chosen about the kernels: tiles, warps and splits."""

    tile: int = 64  # blocks that an estimating program takes at once
    tile_warps: int = 4
    run: int = 1  # tiles that it takes one after the other
    tile_stages: int = 1
    tile_of_warp: int = 0  # tiles of 16 blocks that a warp takes by `estimate.cu`, with CuPy; 0: by Triton, as above
    choose_warps: int = 16
    choose_threads: int = 0  # by histograms with so many threads, with CuPy; 0: by bisection with those warps
    read: int = 64  # tokens that an attending program reads at once
    read_warps: int = 4
    stages: int = 2
    splits: int = 16


@dataclass
class Step:
    """Paged caches of equal length on a GPU, their summaries, and the buffers of a decode step.

    keys, values [pages, heads, 16, width]; pages [caches, tokens / 16]. `sizes` are the heads' block sizes, `bits` 4 or
    16. Without sizes every token is read: full attention by the same kernel. `carry` says how 4-bit summaries are
    rounded (order [heads, 2 width] and shares [heads, 2 width, 2 width]); without it, to the nearest step.
    """

    keys: torch.Tensor
    values: torch.Tensor
    pages: torch.Tensor
    tokens: int
    group: int
    budget: int
    sizes: tuple[int, ...] = ()
    bits: int = 4
    setting: Setting = field(default_factory=Setting)
    carry: tuple[torch.Tensor, torch.Tensor] | None = None

    def __post_init__(self):
        self.caches, self.heads, self.width = len(self.pages), self.keys.shape[1], self.keys.shape[3]
        self.device = self.keys.device
        body = max(0, self.tokens - SINK - WINDOW) // LARGEST * LARGEST if self.sizes else 0
        self.sink, self.end = (SINK, SINK + body) if body else (0, 0)
        sizes = self.sizes or (LARGEST,) * self.heads
        self.shift = self.ints([size.bit_length() - 1 for size in sizes])
        counts = [body // size for size in sizes]
        wanted = [min(self.budget, body) // size for size in sizes]
        self.starts = [sum(counts[:h]) for h in range(self.heads + 1)]
        self.first, self.groups = self.ints(self.starts), triton.cdiv(body, GROUP)
        self.begin = self.ints([sum(wanted[:h]) for h in range(self.heads + 1)])
        self.blocks, self.picks = sum(counts), sum(wanted)
        self.most_blocks = triton.next_power_of_2(max(*counts, 16))
        self.summaries, self.fold = self.summarise() if body else (None, None)
        self.scored = torch.empty(self.caches, max(1, self.blocks), device=self.device)
        self.chosen = torch.zeros(self.caches, max(1, self.picks), dtype=torch.int32, device=self.device)
        self.out = torch.empty(self.caches, self.heads * self.group, self.width, dtype=self.keys.dtype,
                               device=self.device)  # fmt: skip
        self.set(self.setting)

    def ints(self, values):
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def set(self, setting):
        """Take another setting; buffers follow."""
        self.setting = setting
        self.runs = self.ints([row for h in range(self.heads) for row in self.runs_of(h)])
        self.where = self.runs_of_warps()
        rows = self.caches * self.heads * setting.splits * self.group
        self.parts = torch.empty(rows * self.width, device=self.device)
        self.most, self.total = (torch.empty(rows, device=self.device) for _ in range(2))
        return self

    def runs_of(self, head):
        """Head, first block, block behind the last, the head's first, and blocks of a group as a power of two."""
        first, last = self.starts[head], self.starts[head + 1]
        each = self.setting.tile * self.setting.run
        bits = (GROUP // self.sizes[head]).bit_length() - 1 if self.sizes else 0
        return [(head, at, min(at + each, last), first, bits) for at in range(first, last, each)]

    def runs_of_warps(self):
        """For `estimate.cu`: the heads' first blocks, their warps' first runs, blocks of a group as powers of two."""
        if not (each := 16 * self.setting.tile_of_warp):
            return None
        runs = [0]
        for h in range(self.heads):
            runs.append(runs[-1] + triton.cdiv(self.starts[h + 1] - self.starts[h], each))
        bits = [(GROUP // size).bit_length() - 1 for size in self.sizes]
        every = [*self.starts, *runs, *bits]
        return np.array((every,), [("where", np.int32, len(every))])  # one number of many words: passed by value

    def head(self, cache, head):
        """The keys of one head in the order of tokens [tokens, width]."""
        return self.keys[self.pages[cache].long(), head].reshape(-1, self.width)[: self.tokens]

    def summarise(self):
        """Corners of every block, flat over heads: bytes of two codes with scales and zeros, or 16-bit numbers."""
        shape = (self.caches, self.blocks, self.width)
        kind = self.keys.dtype
        stored = torch.empty(shape if self.bits == 4 else (*shape[:2], 2, self.width),
                             dtype=torch.uint8 if self.bits == 4 else kind, device=self.device)  # fmt: skip
        fold = torch.zeros(self.caches, self.heads, self.groups, 4, self.width, dtype=torch.half, device=self.device)
        for cache in range(self.caches):
            for h, size in enumerate(self.sizes):
                cut = self.head(cache, h)[self.sink : self.end].float().reshape(-1, size, self.width)
                rows = slice(self.starts[h], self.starts[h + 1])
                both = torch.cat([cut.amin(1), cut.amax(1)], 1)
                if self.bits == 16:
                    stored[cache, rows] = both.unflatten(1, (2, -1)).to(kind)
                    continue
                carry = None if self.carry is None else tuple(x[h : h + 1] for x in self.carry)
                code, *steps = (x[0] for x in codes(both[None], 4, GROUP // size, carry))
                stored[cache, rows] = code[:, : self.width] | (code[:, self.width :] << 4)
                for i, x in enumerate(steps):  # scale and zero of the lower corner, then of the upper
                    fold[cache, h, :, i::2] = x.unflatten(1, (2, -1))
        return stored, fold

    @property
    def nbytes(self):
        """What a step must read at least: summaries, keys and values of what is read, queries; the result written."""
        read = self.caches * self.heads * (self.tokens - self.end + self.sink)
        read += self.caches * sum(min(self.budget, self.end - self.sink) for _ in self.sizes)
        held = [self.summaries, self.fold][: 2 if self.bits == 4 else 1] if self.blocks else []
        seen = sum(x.numel() * x.element_size() for x in held)
        return seen + 2 * read * self.width * self.keys.element_size() + 2 * self.out.numel() * self.out.element_size()

    def estimate(self, q):
        grid, s = (len(self.runs), self.caches), self.setting
        if s.tile_of_warp:
            brain = self.keys.dtype == torch.bfloat16
            kernel = by_warps(
                self.heads, self.group, self.width, self.bits, brain, s.tile_warps, s.tile_of_warp
            )  # fmt: skip
            runs = int(self.where["where"][2 * self.heads + 1]) * self.caches
            start(
                kernel, triton.cdiv(runs, s.tile_warps), 32 * s.tile_warps, q, self.summaries, self.fold, self.scored,
                self.where, self.blocks, self.groups, self.caches,
            )  # fmt: skip
            return
        fixed = {"WIDTH": self.width, "TILE": s.tile, "ROWS": ROWS, "STAGES": s.tile_stages, "num_warps": s.tile_warps}
        if self.bits == 4:
            estimate_codes[grid](
                q, self.summaries, self.fold, self.runs, self.scored, self.blocks, self.heads, self.groups,
                self.group, TOGETHER=TOGETHER, FAST=self.keys.is_cuda, **fixed,
            )  # fmt: skip
        else:
            estimate_corners[grid](
                q, self.summaries, self.runs, self.scored, self.blocks, self.heads, self.group, **fixed
            )

    def choose(self):
        if threads := self.setting.choose_threads:
            start(
                histograms(self.most_blocks, threads), self.heads * self.caches, threads, self.scored, self.first,
                self.begin, self.chosen, self.blocks, self.picks, self.heads,
            )  # fmt: skip
            return
        choose[(self.heads, self.caches)](
            self.scored, self.first, self.begin, self.chosen, self.blocks, self.picks, MOST=self.most_blocks,
            num_warps=self.setting.choose_warps,
        )  # fmt: skip

    def attend(self, q):
        s = self.setting
        attend[(s.splits, self.heads, self.caches)](
            q, self.keys, self.values, self.pages, self.chosen, self.begin, self.shift, self.parts, self.most,
            self.total, self.tokens, self.sink, self.end, self.picks, self.heads, self.group,
            self.width**-0.5 * 1.4426950408889634, WIDTH=self.width, TILE=s.read, ROWS=ROWS, PAGE=PAGE,
            num_warps=s.read_warps, num_stages=s.stages,
        )  # fmt: skip
        merge[(self.caches * self.heads, self.group)](
            self.parts, self.most, self.total, self.out, s.splits, self.group, WIDTH=self.width,
            SPLITS=triton.next_power_of_2(s.splits), num_warps=4,
        )  # fmt: skip

    def __call__(self, q):
        """Attention of queries [caches, query heads, width]."""
        if self.blocks:
            self.estimate(q)
            self.choose()
        self.attend(q)
        return self.out

    # ------------------------------------------------------------------------------------------ what is right

    def right_scores(self, q, cache, head):
        """Scores of a head's blocks by plain tensor operations on what the summaries hold."""
        x = q[cache, head * self.group : (head + 1) * self.group].float()
        rows = slice(self.starts[head], self.starts[head + 1])
        if self.bits == 16:
            lower, upper = self.summaries[cache, rows].float().unbind(1)
        else:
            code = self.summaries[cache, rows]
            fold = self.fold[cache, head].float().repeat_interleave(GROUP // self.sizes[head], 0)[: len(code)]
            lower = (code & 15) * fold[:, 0] + fold[:, 1]
            upper = (code >> 4) * fold[:, 2] + fold[:, 3]
        return (x.clamp_min(0) @ upper.T + x.clamp_max(0) @ lower.T).amax(0)

    def right(self, q, cache, head):
        """Attention of a head's queries over the blocks in `chosen`, as a masked softmax."""
        x = q[cache, head * self.group : (head + 1) * self.group].float()
        keep = torch.ones(self.tokens, dtype=torch.bool, device=self.device)
        if self.blocks:
            keep[self.sink : self.end] = False
            begin, size = self.begin.tolist(), self.sizes[head]
            for block in self.chosen[cache, begin[head] : begin[head + 1]].tolist():
                keep[self.sink + block * size : self.sink + (block + 1) * size] = True
        values = self.values[self.pages[cache].long(), head].reshape(-1, self.width)[: self.tokens].float()
        logits = x @ self.head(cache, head).float().T * self.width**-0.5
        return logits.masked_fill(~keep, float("-inf")).softmax(1) @ values
