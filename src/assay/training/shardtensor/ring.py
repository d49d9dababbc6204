"""Blocks that go round: every rank meets every other's block, one at a time, and none ever holds them all.

`around` takes any local function of a rank's own tensor and one block. Its results are added up, or laid side by side.
While a block is computed with, the next is on its way. In the backward pass blocks go round again; the function is
differentiated block by block, and what is owed to a block travels with it and ends where it began.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.training.shardtensor.shards import Domain, Range, ShardTensor, ranges

Meeting = Callable[[Range, Tensor, Tensor], Tensor]  # of the block's range in the whole, one's own and the block


class Rounds:
    """Blocks of every rank in turn, own first: whose they are, where they lie in the whole, and they themselves."""

    def __init__(self, blocks: Sequence[Tensor], axes: Sequence[int], sizes: Sequence[int], domain: Domain) -> None:
        self.at, self.axes, self.sizes, self.domain = ranges(sizes), axes, sizes, domain
        self.blocks = list(blocks)

    def begin(self, blocks: Sequence[Tensor], whose: int) -> tuple[list[Tensor], list[Any], list[Tensor]]:
        """Send blocks on; those of the rank before `whose` begin to come."""
        domain = self.domain
        after, before = (domain.rank + 1) % domain.size, (domain.rank - 1) % domain.size
        coming, works, kept = [], [], []
        for block, axis in zip(blocks, self.axes, strict=True):
            shape = list(block.shape)
            shape[axis] = self.sizes[(whose - 1) % domain.size]
            coming.append(block.new_empty(shape))
            kept.append(block.contiguous())
            works += [domain.send(kept[-1], after)] if block.numel() else []
            works += [domain.receive(coming[-1], before)] if coming[-1].numel() else []
        return coming, works, kept

    def onward(self, owed: list[Tensor], whose: int) -> list[Tensor]:
        """What is owed to blocks goes on with them, after the last step home; what came instead."""
        if self.domain.size == 1:
            return owed
        coming, works, _kept = self.begin(owed, whose)
        for work in works:
            work.wait()
        return coming

    def __iter__(self) -> Any:
        blocks, domain = self.blocks, self.domain
        for step in range(domain.size):
            whose = (domain.rank - step) % domain.size
            last = step == domain.size - 1
            coming, works, _kept = ([], [], []) if last else self.begin(blocks, whose)
            yield whose, self.at[whose], blocks
            for work in works:
                work.wait()
            blocks = coming


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, meet: Meeting, plan: Any, own: Tensor, goes: Tensor) -> Tensor:
        axis, sizes, into, domain = plan
        found: Any = None
        for _, at, (block,) in Rounds([goes], [axis], sizes, domain):
            if at[0] == at[1] and sum(sizes):
                continue
            part = meet(at, own, block)
            if into is None:
                found = part if found is None else found.add_(part)
                continue
            if found is None:
                shape = list(part.shape)
                shape[into] = sum(sizes)
                found = part.new_empty(shape)
            found.narrow(into, at[0], at[1] - at[0]).copy_(part)
        ctx.meet, ctx.plan = meet, plan
        ctx.save_for_backward(own, goes)
        return found  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        own, goes = ctx.saved_tensors
        axis, sizes, into, domain = ctx.plan
        mine, owed = torch.zeros_like(own), [torch.zeros_like(goes)]
        rounds = Rounds([goes], [axis], sizes, domain)
        for whose, (start, stop), (block,) in rounds:
            if start < stop:
                part = gradient if into is None else gradient.narrow(into, start, stop - start)
                with torch.enable_grad():
                    leaves = own.detach().requires_grad_(), block.detach().requires_grad_()
                    met = ctx.meet((start, stop), *leaves)
                for total, change in zip((mine, *owed), torch.autograd.grad(met, leaves, part), strict=True):
                    total.add_(change)
            owed = rounds.onward(owed, whose)
        return None, None, mine, owed[0]


def around(meet: Meeting, own: Tensor, goes: ShardTensor, into: int | None = None) -> Tensor:
    """Meet all ranks' blocks; results are added, or side by side along `into`."""
    return _Around.apply(meet, (goes.axis, goes.sizes, into, goes.domain), own, goes.local)  # type: ignore[no-any-return]
