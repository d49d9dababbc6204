"""MLA decode on a GPU in two forms, in Triton: the context on the tall side of the tensor core, or the heads.

A tile of the tensor core has at least 64 rows (WGMMA), and columns by the eight. `transposed` (the paper's pipeline)
puts a block's tokens on the rows and the few heads on the columns; `upright` puts the heads on the rows, and fills them
up with zeros (FlashMLA's way with 64 rows; with 16 the older, slower `mma.sync` is used, which has such tiles). Both
read each latent once, take V from the same tile as K, walk the shares of `plan.py` and leave partial results, which
`combine` adds up. Tokens past the end of a sequence are never multiplied: their tile is read with zeros in their place.

Needs torch and Triton, and no assay: the benchmark reads this file as it is. With TRITON_INTERPRET=1 the same lines run
without a GPU.
"""

# Triton's functions take whatever types it infers; only Python-facing ones are annotated.
# mypy: ignore-errors

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

LATENT, ROPE = 512, 64  # DeepSeek's: V is the latent, K the latent and 64 rotated entries
WIDTH = LATENT + ROPE
LOG2E = 1.4426950408889634


@triton.jit
def _page(pages, block, end, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """The page of a block, or of each of its tokens where blocks are larger than pages."""
    if PAGE % BLOCK == 0:
        page = tl.load(pages + block * BLOCK // PAGE, mask=block * BLOCK < end, other=0)
    else:
        token = block * BLOCK + tl.arange(0, BLOCK)
        page = tl.load(pages + token // PAGE, mask=token < end, other=0)
    return page


@triton.jit
def _tile(cache, page, block, end, BLOCK: tl.constexpr, PAGE: tl.constexpr):
    """Latents and rotated parts of a block's tokens: zeros after the end, whatever the page holds there."""
    token = block * BLOCK + tl.arange(0, BLOCK)
    live = token < end
    if PAGE % BLOCK == 0:
        base = cache + (page.to(tl.int64) * PAGE + block * BLOCK % PAGE) * 576
        rows = tl.arange(0, BLOCK) * 576
    else:
        base = cache
        rows = (page.to(tl.int64) * PAGE + token % PAGE) * 576
    k = tl.load(base + (rows[:, None] + tl.arange(0, 512)[None, :]), mask=live[:, None], other=0.0)
    r = tl.load(base + (rows[:, None] + (512 + tl.arange(0, 64))[None, :]), mask=live[:, None], other=0.0)
    return k, r, live


@triton.jit
def _transposed(q, t, k, r, live, scale, top, total, out):
    """S^T = K Q^T, softmax along the columns, O^T += V^T P^T: tokens are the rows of a tile, heads its columns."""
    score = tl.dot(r, t, tl.dot(k, q, input_precision="ieee"), input_precision="ieee")
    score = tl.where(live[:, None], score * scale, float("-inf"))
    new = tl.maximum(top, tl.max(score, 0))
    p = tl.exp2(score - new[None, :])
    fade = tl.exp2(top - new)
    out = tl.dot(tl.trans(k), p.to(k.dtype), out * fade[None, :], input_precision="ieee")
    return new, total * fade + tl.sum(p, 0), out


@triton.jit
def _upright(q, t, k, r, live, scale, top, total, out):
    """S = Q K^T, softmax along the rows, O += P V: heads are the rows of a tile, tokens its columns."""
    score = tl.dot(q, tl.trans(k), input_precision="ieee")
    score = tl.dot(t, tl.trans(r), score, input_precision="ieee")
    score = tl.where(live[None, :], score * scale, float("-inf"))
    new = tl.maximum(top, tl.max(score, 1))
    p = tl.exp2(score - new[:, None])
    fade = tl.exp2(top - new)
    out = tl.dot(p.to(k.dtype), k, out * fade[:, None], input_precision="ieee")
    return new, total * fade + tl.sum(p, 1), out


@triton.jit
def _step(q, t, k, r, live, scale, top, total, out, TALL: tl.constexpr):
    if TALL:
        top, total, out = _transposed(q, t, k, r, live, scale, top, total, out)
    else:
        top, total, out = _upright(q, t, k, r, live, scale, top, total, out)
    return top, total, out


@triton.jit
def _walk(
    q, t, cache, latents, turned, pages, first, last, length, scale, top, total, out,
    TALL: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, LOADS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """A piece's blocks. How its tiles come is a matter of tuning, and the same for both forms."""
    end = tl.minimum(length, last * BLOCK)
    if LOADS == "ahead":  # the next block is on its way to registers while this one is multiplied
        k, r, live = _tile(cache, _page(pages, first, end, BLOCK, PAGE), first, end, BLOCK, PAGE)
        page = _page(pages, first + 1, end, BLOCK, PAGE)
        for block in tl.range(first, last, num_stages=1):
            k_next, r_next, coming = _tile(cache, page, block + 1, end, BLOCK, PAGE)
            page = _page(pages, block + 2, end, BLOCK, PAGE)
            top, total, out = _step(q, t, k, r, live, scale, top, total, out, TALL)
            k, r, live = k_next, r_next, coming
    elif LOADS == "bulk":  # the tensor memory accelerator copies whole blocks; it cannot leave out tokens past the end
        whole = tl.minimum(last, length // BLOCK)
        for block in tl.range(first, whole, num_stages=STAGES):
            row = tl.load(pages + block * BLOCK // PAGE) * PAGE + block * BLOCK % PAGE
            k = latents.load([row, 0])
            r = turned.load([row, 512])
            every = tl.full([BLOCK], 1, tl.int1)
            top, total, out = _step(q, t, k, r, every, scale, top, total, out, TALL)
        if whole < last:
            k, r, live = _tile(cache, _page(pages, whole, end, BLOCK, PAGE), whole, end, BLOCK, PAGE)
            top, total, out = _step(q, t, k, r, live, scale, top, total, out, TALL)
    else:  # asynchronous copies, as many blocks ahead as there are stages; whole blocks need no mask
        whole = tl.maximum(first, tl.minimum(last, length // BLOCK)) if PAGE % BLOCK == 0 else first
        for block in tl.range(first, whole, num_stages=STAGES):
            row = tl.load(pages + block * BLOCK // PAGE).to(tl.int64) * PAGE + block * BLOCK % PAGE
            at = cache + row * 576 + tl.arange(0, BLOCK)[:, None] * 576
            k = tl.load(at + tl.arange(0, 512)[None, :])
            r = tl.load(at + (512 + tl.arange(0, 64))[None, :])
            every = tl.full([BLOCK], 1, tl.int1)
            top, total, out = _step(q, t, k, r, every, scale, top, total, out, TALL)
        for block in tl.range(whole, last, num_stages=STAGES):
            k, r, live = _tile(cache, _page(pages, block, end, BLOCK, PAGE), block, end, BLOCK, PAGE)
            top, total, out = _step(q, t, k, r, live, scale, top, total, out, TALL)
    return top, total, out


@triton.jit(do_not_specialize=["stride", "heads"])
def transposed(
    query, cache, latents, turned, table, lengths, workers, pieces, partial, weight, scale, stride, heads,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, LOADS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One worker's pieces with the context on the tall side."""
    worker = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    wide, narrow = tl.arange(0, 512), tl.arange(0, 64)
    real = head[None, :] < heads
    for piece in range(tl.load(workers + worker), tl.load(workers + worker + 1)):
        own = pieces + 3 * piece
        sequence, first, last = tl.load(own), tl.load(own + 1), tl.load(own + 2)
        rows = query + sequence.to(tl.int64) * heads * 576 + head[None, :] * 576
        q = tl.load(rows + wide[:, None], mask=real, other=0.0)
        t = tl.load(rows + 512 + narrow[:, None], mask=real, other=0.0)
        top, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
        top, total, out = _walk(
            q, t, cache, latents, turned, table + sequence.to(tl.int64) * stride, first, last,
            tl.load(lengths + sequence), scale, top, total, tl.zeros([512, HEADS], tl.float32),
            True, BLOCK, PAGE, LOADS, STAGES,
        )  # fmt: skip
        at = partial + (piece * heads + head[None, :]) * 512 + wide[:, None]
        tl.store(at, out / total[None, :], mask=real)
        tl.store(weight + piece * heads + head, top + tl.log2(total), mask=head < heads)


@triton.jit(do_not_specialize=["stride", "heads"])
def upright(
    query, cache, latents, turned, table, lengths, workers, pieces, partial, weight, scale, stride, heads,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, LOADS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """One worker's pieces with the heads on the tall side, filled up to HEADS rows."""
    worker = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    wide, narrow = tl.arange(0, 512), tl.arange(0, 64)
    real = head[:, None] < heads
    for piece in range(tl.load(workers + worker), tl.load(workers + worker + 1)):
        own = pieces + 3 * piece
        sequence, first, last = tl.load(own), tl.load(own + 1), tl.load(own + 2)
        rows = query + sequence.to(tl.int64) * heads * 576 + head[:, None] * 576
        q = tl.load(rows + wide[None, :], mask=real, other=0.0)
        t = tl.load(rows + 512 + narrow[None, :], mask=real, other=0.0)
        top, total = tl.full([HEADS], float("-inf"), tl.float32), tl.zeros([HEADS], tl.float32)
        top, total, out = _walk(
            q, t, cache, latents, turned, table + sequence.to(tl.int64) * stride, first, last,
            tl.load(lengths + sequence), scale, top, total, tl.zeros([HEADS, 512], tl.float32),
            False, BLOCK, PAGE, LOADS, STAGES,
        )  # fmt: skip
        at = partial + (piece * heads + head[:, None]) * 512 + wide[None, :]
        tl.store(at, out / total[:, None], mask=real)
        tl.store(weight + piece * heads + head, top + tl.log2(total), mask=head < heads)


@triton.jit(do_not_specialize=["heads"])
def combine(partial, weight, sequences, result, heads, SPLITS: tl.constexpr, SLICE: tl.constexpr):
    """A head's pieces, weighed by their shares of the softmax; zeros for a sequence without tokens."""
    sequence, head, entry = tl.program_id(0), tl.program_id(1), tl.program_id(2) * SLICE + tl.arange(0, SLICE)
    begin, end = tl.load(sequences + sequence), tl.load(sequences + sequence + 1)
    piece = begin + tl.arange(0, SPLITS)
    live = piece < end
    logs = tl.load(weight + piece * heads + head, mask=live, other=float("-inf"))
    share = tl.where(live, tl.exp2(logs - tl.where(begin < end, tl.max(logs, 0), 0.0)), 0.0)
    part = tl.load(partial + (piece * heads + head)[:, None] * 512 + entry[None, :], mask=live[:, None], other=0.0)
    total = tl.sum(share, 0)
    out = tl.sum(part * share[:, None], 0) / tl.where(total > 0, total, 1.0)
    at = result + (sequence.to(tl.int64) * heads + head) * 512 + entry
    tl.store(at, out.to(result.dtype.element_ty))


# ------------------------------------------------------------------------------------------- settings and launches


@dataclass(frozen=True)
class Setting:
    """How a form is cut and fed: tokens a block, warps, how tiles come, stages, workers on each multiprocessor."""

    block: int
    warps: int
    loads: str  # async, bulk, ahead
    stages: int = 1
    on_each: int = 1
    registers: int | None = None  # at most so many a thread, where two workers share a multiprocessor
    columns: int = 8  # the least heads of a transposed tile; Triton's compiler takes WGMMA from 16 on
    whole: bool = False  # no worker goes on into another sequence

    def __str__(self) -> str:
        limit = f" r{self.registers}" if self.registers else ""
        wide = f" c{self.columns}" if self.columns > 8 else ""
        whole = " whole" if self.whole else ""
        return f"{self.loads} b{self.block} w{self.warps} s{self.stages} x{self.on_each}{limit}{wide}{whole}"


def _some(loads: str, blocks: Any, warps: Any, stages: Any = (1,), on_each: Any = (1,)) -> list[Setting]:
    return [Setting(b, w, loads, s, x) for b in blocks for w in warps for s in stages for x in on_each]


# Two workers of the transposed form fit on a multiprocessor: 64 heads of 512 sums each would fill its registers, 16 do
# not. Blocks of the upright form may be shorter than 64 tokens; the tall side of the transposed form may not.
SETTINGS: dict[str, list[Setting]] = {
    "transposed": [
        *(Setting(64, 8, loads, 1, 2, 128) for loads in ("bulk", "async")),
        Setting(64, 4, "bulk", 1, 2),
        *_some("async", (64,), (4, 8), (2, 3)),
        *_some("bulk", (64,), (4, 8), (2, 3)),
        *_some("ahead", (64,), (8, 16)),
        *_some("async", (128,), (8,), (1,)),
        *_some("ahead", (128,), (8, 16)),
    ],
    "padded": [
        *_some("async", (32, 64), (8,), (1, 2, 3)),
        *_some("bulk", (32, 64), (8,), (2, 3)),
        *_some("async", (16,), (8,), (3, 4)),
        *_some("async", (32, 64), (16,), (2, 3)),
        *_some("bulk", (64,), (16,), (2, 3)),
        *_some("ahead", (32,), (8, 16)),
        *_some("ahead", (64,), (16,)),
    ],
    "narrow": [
        *_some("async", (32, 64), (4,), (1, 2, 3), (1, 2)),
        *_some("async", (16,), (4,), (3, 4), (2, 4)),
        *_some("async", (64, 128), (8,), (1, 2)),
        *_some("ahead", (32,), (4,), (1,), (2,)),
        *_some("ahead", (64,), (8,)),
    ],
}
FIRST = {"transposed": Setting(64, 8, "bulk", 1, 2, 128), "padded": Setting(64, 8, "async", 2),
         "narrow": Setting(32, 4, "async", 3, 2)}  # fmt: skip


def tile_heads(form: str, heads: int, columns: int = 8) -> int:
    """How many heads a tile holds, with those that are only there to fill it.

    >>> [tile_heads("transposed", h) for h in (5, 8, 16, 128)], tile_heads("padded", 16), tile_heads("narrow", 8)
    ([8, 8, 16, 64], 64, 16)
    """
    least = {"transposed": columns, "padded": 64, "narrow": 16}[form]
    return min(64, max(least, triton.next_power_of_2(heads)))


class Decoder:
    """A form at a setting on one cache, with all it needs allocated: `run` only launches two kernels.

    `cache` is [pages, page, 576], `table` [batch, pages of the longest] gives each sequence its pages in order, `plan`
    comes from plan.py for the setting's block. The result is [batch, heads, 512], in the query's precision or `dtype`.
    """

    def __init__(
        self, form: str, setting: Setting, query: Any, cache: Any, table: Any, lengths: Any, plan: Any, scale: float,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        assert plan.block == setting.block, "the plan was made for another block"
        device, (batch, heads, _) = query.device, query.shape
        page, count = cache.shape[1], max(len(plan.pieces), 1)
        latents = turned = None
        if setting.loads == "bulk":
            from triton.tools.tensor_descriptor import TensorDescriptor

            assert page % setting.block == 0, "bulk copies need blocks that divide pages"
            flat = cache.view(-1, WIDTH)
            latents = TensorDescriptor.from_tensor(flat, [setting.block, LATENT])
            turned = TensorDescriptor.from_tensor(flat, [setting.block, ROPE])

        def there(array: Any) -> Any:
            return torch.from_numpy(np.ascontiguousarray(array, np.int32)).to(device)

        wide = tile_heads(form, heads, setting.columns)
        self.kernel = transposed if form == "transposed" else upright
        self.grid = (len(plan.workers) - 1, triton.cdiv(heads, wide))
        self.partial = torch.empty(count, heads, LATENT, dtype=torch.float32, device=device)
        self.weight = torch.empty(count, heads, dtype=torch.float32, device=device)
        self.result = torch.empty(batch, heads, LATENT, dtype=dtype or query.dtype, device=device)
        self.arguments = (
            query, cache, latents, turned, table, lengths, there(plan.workers), there(plan.pieces), self.partial,
            self.weight, scale * LOG2E, table.shape[1], heads,
        )  # fmt: skip
        self.constants = {"HEADS": wide, "BLOCK": setting.block, "PAGE": page, "LOADS": setting.loads,
                          "STAGES": setting.stages, "num_warps": setting.warps}  # fmt: skip
        if setting.registers:
            self.constants["maxnreg"] = setting.registers
        self.sequences, self.splits = there(plan.sequences), triton.next_power_of_2(max(plan.splits, 1))
        self.any = len(plan.pieces) > 0

    def main(self) -> None:
        """The kernel that reads the cache."""
        self.kernel[self.grid](*self.arguments, **self.constants)

    def run(self) -> Any:
        """Both kernels; the result stays the same tensor."""
        if self.any:
            self.main()
        batch, heads, _ = self.result.shape
        part = 32 if self.splits > 64 else 128
        combine[(batch, heads, LATENT // part)](
            self.partial, self.weight, self.sequences, self.result, heads, SPLITS=self.splits, SLICE=part,
            num_warps=8 if self.splits > 64 else 4,
        )  # fmt: skip
        return self.result
