"""Ring attention over stretches of any lengths: keys and values go round, and what a query saw is merged exactly.

A part is an average and the logarithm of its softmax's sum (`lse`); two parts merge into one. The backward pass takes
the merged sum for every block, so no block's gradient depends on another. On the CPU a part is torch's own fused
kernel, elsewhere it is written out for so many queries at a time.

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

ROWS = 512  # queries whose scores are written out at a time


def _fused(q: Tensor, v: Tensor) -> bool:
    return q.device.type == "cpu" and q.shape[-1] == v.shape[-1]


def _rows(q: Tensor, v: Tensor) -> Iterator[slice]:
    """Queries `[batch, head, token, width]` that are looked at together: all, where no score is written out."""
    step = max(q.shape[2], 1) if _fused(q, v) else ROWS
    for start in range(0, q.shape[2], step):
        yield slice(start, start + step)


def _scores(q: Tensor, k: Tensor, first: int | None, scale: float) -> Tensor:
    found = (q @ k.transpose(-2, -1)).to(torch.promote_types(q.dtype, torch.float32)).mul_(scale)
    if first is not None:
        rows, keys = (torch.arange(n, device=q.device) for n in found.shape[-2:])
        found.masked_fill_(keys > first + rows[:, None], -torch.inf)
    return found


def seen(q: Tensor, k: Tensor, v: Tensor, first: int | None, scale: float) -> tuple[Tensor, Tensor]:
    """What queries see of some keys, and the logarithm of its weight.

    Where `first` is given it is the number of the first query, and each sees only the keys up to its own number.
    """
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, first is not None, scale=scale)  # type: ignore
    scores = _scores(q, k, first, scale)
    lse = scores.logsumexp(-1)
    return scores.sub_(lse[..., None]).exp_().to(v.dtype) @ v, lse


def owed(
    gradient: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, first: int | None, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, keys and values by what queries saw of some keys, from the merged output and sum."""
    if _fused(q, v):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(  # type: ignore[no-any-return]
            gradient, q, k, v, out, lse, 0.0, first is not None, scale=scale
        )
    weight = _scores(q, k, first, scale).sub_(lse[..., None]).exp_().to(q.dtype)
    inner = (gradient * out).sum(-1, keepdim=True)
    change = (gradient @ v.transpose(-2, -1)).sub_(inner).mul_(weight).mul_(scale)
    return change @ k, change.transpose(-2, -1) @ q, weight.transpose(-2, -1) @ gradient


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, plan: Any) -> Tensor:
        causal, scale, sizes, domain = plan
        wide = torch.promote_types(q.dtype, torch.float32)
        batch, heads, rows = q.shape[:3]
        # Laid out by tokens, as torch's kernel does: a model that joins the heads next needs no copy.
        found = q.new_zeros((batch, rows, heads, v.shape[-1]), dtype=wide).transpose(1, 2)
        lse = q.new_full(q.shape[:3], -torch.inf, dtype=wide)
        for whose, at, (some, values) in Rounds([k, v], (2, 2), sizes, domain):
            if at[0] == at[1] or (causal and whose > domain.rank):
                continue
            for part in _rows(q, v):  # merged into what they saw before
                first = part.start if causal and whose == domain.rank else None
                more, weight = seen(q[:, :, part], some, values, first, scale)
                before = lse[:, :, part]
                both = torch.logaddexp(before, weight)
                found[:, :, part].mul_(before.sub_(both).exp_()[..., None])
                found[:, :, part].add_(more.mul_(weight.sub_(both).exp_()[..., None]))
                before.copy_(both)
        out = found.to(q.dtype)
        ctx.plan = plan
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        causal, scale, sizes, domain = ctx.plan
        by_q, *sums = (torch.zeros_like(t, dtype=lse.dtype) for t in (q, k, v))
        rounds = Rounds([k, v], (2, 2), sizes, domain)
        for whose, at, (some, values) in rounds:
            if at[0] < at[1] and not (causal and whose > domain.rank):
                for part in _rows(q, v):
                    first = part.start if causal and whose == domain.rank else None
                    slope, asked, seen_by, weight = (x[:, :, part] for x in (gradient, q, out, lse))
                    changes = iter(owed(slope, asked, some, values, seen_by, weight, first, scale))
                    for total in (by_q[:, :, part], *sums):
                        total.add_(next(changes))
                    del changes  # before the others' blocks come
            sums = rounds.onward(sums, whose)
        return by_q.to(q.dtype), sums[0].to(k.dtype), sums[1].to(v.dtype), None


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
