"""Ring attention over stretches of any lengths: keys and values go round, and what a query saw is merged exactly.

A part is an average and the logarithm of its softmax's sum (`lse`); two parts merge into one. The backward pass takes
the merged sum for every block, so no block's gradient depends on another. On the CPU a block is torch's own fused
kernel, which lays out no scores; elsewhere it is written out, so many queries at a time.

- Liu, Zaharia, Abbeel, Ring Attention, ICLR 2024; Dao et al., FlashAttention, NeurIPS 2022.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.training.shardtensor.ring import Rounds
from assay.training.shardtensor.shards import ShardTensor, like

ROWS = 512  # queries whose scores are laid out at a time


def _fused(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _stretches(q: Tensor) -> Iterator[slice]:
    for start in range(0, q.shape[2], ROWS):
        yield slice(start, min(start + ROWS, q.shape[2]))


def _scores(q: Tensor, k: Tensor, rows: slice, causal: bool, scale: float) -> Tensor:
    found = q[:, :, rows] @ k.transpose(-2, -1) * scale
    if causal:
        numbers = torch.arange(k.shape[2], device=q.device)
        found = found.masked_fill(numbers > numbers[rows, None], -torch.inf)
    return found


def seen(q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """What queries `[batch, head, token, width]` see in one block, and the logarithm of its weight."""
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, scale=scale)  # type: ignore
    parts = []
    for rows in _stretches(q):
        scores = _scores(q, k, rows, causal, scale)
        lse = scores.logsumexp(-1)
        parts.append(((scores - lse[..., None]).exp() @ v, lse))
    return torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2)


def owed(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values by one block, from the merged output and sum."""
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            gradient, q, k, v, out, lse, 0.0, causal, scale=scale
        )
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for rows in _stretches(q):
        weight = (_scores(q, k, rows, causal, scale) - lse[:, :, rows, None]).exp()
        back = gradient[:, :, rows]
        dv += weight.transpose(-2, -1) @ back
        inner = (back * out[:, :, rows]).sum(-1, keepdim=True)
        change = weight * (back @ v.transpose(-2, -1) - inner) * scale
        dq[:, :, rows] = change @ k
        dk += change.transpose(-2, -1) @ q[:, :, rows]
    return dq, dk, dv


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        causal, scale, sizes, domain = plan
        out: Tensor | None = None
        lse = q.new_full(q.shape[:3], -torch.inf)
        for whose, (keys, values) in Rounds([k, v], (2, 2), sizes, domain):
            if not _meets(q, whose, plan):
                continue
            part, weight = seen(q, keys, values, causal and whose == domain.rank, scale)
            if out is None:
                out, lse = part, weight
                continue
            both = torch.logaddexp(lse, weight)
            out.mul_((lse - both).exp_()[..., None]).addcmul_(part, (weight - both).exp_()[..., None])
            lse = both
        if out is None:  # no queries here, or no keys at all
            out = q.new_zeros((*q.shape[:3], v.shape[-1]))
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        found = [torch.zeros_like(q)]
        for some in _heads(q):
            own = [t[:, some] for t in (gradient, q, k, v, out, lse)]
            changes = _back(found[0][:, some], own, ctx.plan)
            found += [torch.empty_like(t) for t in (k, v)] if len(found) == 1 else []
            for whole, change in zip(found[1:], changes, strict=True):
                whole[:, some] = change
            del changes, change
        return *found, None


def _back(queries: Tensor, own: list[Tensor], plan: Any) -> list[Tensor]:
    """Add to the gradients of some heads' queries; those of their keys and values come round with the blocks."""
    gradient, q, k, v, out, lse = own
    causal, scale, sizes, domain = plan
    sums = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (k, v)]
    rounds = Rounds([k, v], (2, 2), sizes, domain)
    for whose, (keys, values) in rounds:
        if _meets(q, whose, plan):
            changes = owed(gradient, q, keys, values, out, lse, causal and whose == domain.rank, scale)
            for total, change in zip([queries, *sums], changes, strict=True):
                total.add_(change)
            del changes, change
        if domain.size > 1:
            sums, works, kept = rounds.begin(sums, whose)
            for work in works:
                work.wait()
            del kept
    return sums


def _heads(q: Tensor) -> list[slice]:
    """Two halves of the heads: what is under way, and a block's gradients, are half as large then."""
    half = q.shape[1] // 2
    return [slice(0, half), slice(half, None)] if half else [slice(None)]


def _meets(q: Tensor, whose: int, plan: Any) -> bool:
    causal, _, sizes, domain = plan
    return bool(q.shape[2] and sizes[whose] and not (causal and whose > domain.rank))


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
