"""Ring attention over stretches of any lengths: keys and values go round, and what a query saw is merged exactly.

A part is an average and the logarithm of its softmax's sum (`lse`); two parts merge into one. The backward pass takes
the merged sum for every block, so no block's gradient depends on another. On the CPU a part is torch's own fused
kernel, elsewhere it is written out. Either is given a tile of queries and keys at a time: what it lays out, which for
the fused kernel is up to a megabyte however few the queries, stays small beside them.

- Liu, Zaharia, Abbeel, Ring Attention, ICLR 2024; Dao et al., FlashAttention, NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.training.shardtensor.ring import Rounds, turns
from assay.training.shardtensor.shards import ShardTensor, like

ROWS = 512  # queries whose scores are written out at a time
# The fused kernel lays out scores of so many queries, by how many it is given at most, and of up to KEYS keys.
SPLITS, KEYS = ((256, 1 << 40), (64, 767), (32, 191)), 512
FEW = 128  # keys of the smallest tile
LOOK, OWE = 0.5, 0.06  # parts of the queries' bytes that a tile may lay out: there is more room before the way back
Tile = tuple[slice, slice, bool]  # of the queries, of the keys, and whether queries see only keys up to their own


def _fused(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def tile_size(q: Tensor, v: Tensor, part: float) -> tuple[int, int]:
    """How many queries and keys at a time: all, unless what the kernel then lays out is over a part of the queries."""
    if not _fused(q, v):
        return ROWS, 1 << 40
    for split, rows in SPLITS:
        if split * KEYS * max(q.element_size(), 4) <= q.nbytes * part:
            return rows, 1 << 40
    return SPLITS[-1][1], FEW


def tiles(q: Tensor, k: Tensor, v: Tensor, causal: bool, part: float) -> Iterator[Tile]:
    """Which queries `[batch, head, token, width]` meet which keys; where it is causal, tiles are as high as wide."""
    rows, keys = tile_size(q, v, part)
    rows, keys = (min(rows, keys),) * 2 if causal else (rows, keys)
    for row in range(0, q.shape[2], rows):
        for key in range(0, min(row + 1, k.shape[2]) if causal else k.shape[2], keys):
            yield slice(row, row + rows), slice(key, key + keys), causal and row == key


def _scores(q: Tensor, k: Tensor, causal: bool, scale: float) -> Tensor:
    found = _wide(q @ k.transpose(-2, -1)).mul_(scale)
    if causal:
        rows, keys = (torch.arange(n, device=q.device) for n in found.shape[-2:])
        found.masked_fill_(keys > rows[:, None], -torch.inf)
    return found


def seen(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """What queries see of some keys, and the logarithm of its weight."""
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)  # type: ignore
    scores = _scores(q, k, causal, scale)
    lse = scores.logsumexp(-1)
    return scores.sub_(lse[..., None]).exp_().to(v.dtype) @ v, lse


def owed(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values by what queries saw of some keys, from the merged output and sum."""
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            gradient, q, k, v, out, lse, 0.0, causal, scale=scale
        )
    weight = _scores(q, k, causal, scale).sub_(lse[..., None]).exp_().to(q.dtype)
    inner = (gradient * out).sum(-1, keepdim=True)
    change = (gradient @ v.transpose(-2, -1)).sub_(inner).mul_(weight).mul_(scale)
    return change @ k, change.transpose(-2, -1) @ q, weight.transpose(-2, -1) @ gradient


def look(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float) -> None:
    """Merge what queries see in one block into what they saw before."""
    for rows, keys, own in tiles(q, k, v, causal, LOOK):
        part, weight = seen(q[:, :, rows], k[:, :, keys], v[:, :, keys], own, scale)
        merged, before = out[:, :, rows], lse[:, :, rows]
        both = torch.logaddexp(before, weight)
        merged.mul_(before.sub_(both).exp_()[..., None]).add_(part.mul_(weight.sub_(both).exp_()[..., None]))
        before.copy_(both)
        del part, weight, both  # before the next tile's are made


def owe(kept: list[Tensor], block: list[Tensor], totals: list[Tensor], causal: bool, scale: float) -> None:
    """Add the gradients of queries, keys and values by one block to their totals."""
    (gradient, q, out, lse), (k, v), (by_q, by_k, by_v) = kept, block, totals
    for rows, keys, own in tiles(q, k, v, causal, OWE):
        of, by = (gradient[:, :, rows], q[:, :, rows]), (k[:, :, keys], v[:, :, keys])
        changes = owed(*of, *by, out[:, :, rows], lse[:, :, rows], own, scale)
        for total, some, change in zip((by_q, by_k, by_v), (rows, keys, keys), changes, strict=True):
            total[:, :, some].add_(change)
        del changes, change


def _wide(x: Tensor) -> Tensor:
    """In the precision in which parts are added up: never less than single."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        causal, scale, sizes, domain = plan
        wide = torch.promote_types(q.dtype, torch.float32)
        batch, heads, rows = q.shape[:3]
        # Laid out by tokens, as torch's kernel does: a model that joins the heads next needs no copy.
        found = q.new_zeros((batch, rows, heads, v.shape[-1]), dtype=wide).transpose(1, 2)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=wide)
        for rounds in turns([k, v], (2, 2), sizes, domain):
            for whose, block in rounds:
                if _meets(q, whose, rounds, causal):
                    own = causal and whose == domain.rank
                    some, merged, weight = _behind([q, found, lse], rounds, own)
                    look(some, block[0], block[1], merged, weight, own, scale)
        out = found.to(q.dtype)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        by_q = torch.zeros_like(q, dtype=lse.dtype)
        rest: list[Tensor] = []
        for head in range(q.shape[1]):  # one after another: what is under way is as small then
            some = slice(head, head + 1)
            kept, block = [t[:, some] for t in (gradient, q, out, lse)], [t[:, some] for t in (k, v)]
            for rounds in turns(block, (2, 2), ctx.plan[2], ctx.plan[3]):
                changes = _back(by_q[:, some], kept, rounds, ctx.plan)
                rest = rest or [torch.empty_like(t) for t in (k, v)]
                for whole, change in zip(rest, changes, strict=True):
                    rounds.own(whole[:, some], 2).copy_(change)
                del changes, change
        return by_q.to(q.dtype), *rest, None


def _back(by_q: Tensor, kept: list[Tensor], rounds: Rounds, plan: Any) -> list[Tensor]:
    """Add to the gradients of a head's queries; those of its keys and values come round with the blocks."""
    causal, scale, _, domain = plan
    sums = [torch.zeros_like(t, dtype=by_q.dtype, memory_format=torch.contiguous_format) for t in rounds.blocks]
    for whose, block in rounds:
        if _meets(by_q, whose, rounds, causal):
            own = causal and whose == domain.rank
            owe(_behind(kept, rounds, own), block, [*_behind([by_q], rounds, own), *sums], own, scale)
        sums = rounds.onward(sums, whose)
    return sums


def _meets(q: Tensor, whose: int, rounds: Rounds, causal: bool) -> bool:
    return bool(q.shape[2] and rounds.sizes[whose] and not (causal and whose > rounds.domain.rank))


def _behind(rows: list[Tensor], rounds: Rounds, own: bool) -> list[Tensor]:
    """Of queries that see only keys up to their own, those that see any of a piece: from its first key on."""
    return [x[:, :, rounds.start :] for x in rows] if own else rows


def ring_attention(q: ShardTensor, k: ShardTensor, v: ShardTensor, causal: bool, scale: float | None) -> ShardTensor:
    """Attention of all queries to all keys (causal: to those before); all three are cut along their tokens."""
    plan = causal, q.shape[-1] ** -0.5 if scale is None else scale, k.sizes, q.domain
    rows = torch.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    heads = rows[-1] if rows else 1
    fours = []
    for x in (q, k, v):
        whole = x.local.expand(*rows, *x.local.shape[-2:])
        fours.append(whole.reshape(prod(rows) // max(heads, 1), heads, *whole.shape[-2:]))
    found = _Ring.apply(*fours, plan)
    return like(q, found.reshape(*rows, *found.shape[-2:]), axis=len(rows))
