"""Blocks that go round: every rank meets every other's block, one at a time, and none ever holds them all.

`around` takes any local function of a rank's own tensors and one block. Its results are added up, or laid side by side.
While a block is computed with, the next is on its way. In the backward pass blocks go round again; the function is
differentiated block by block, and what is owed to a block travels with it and ends where it began. `picked` takes rows
out of blocks by their numbers: what is owed to them does not depend on what is in them, so no block is kept for it, and
none goes round again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from assay.training.shardtensor.shards import Domain, Range, ShardTensor, ranges

Meeting = Callable[..., Tensor]  # (range of the block in the whole, own tensors..., block's tensors...)
Numbers = Sequence[Tensor | None]  # one tensor for each dimension of a block that is looked up in, all of one shape


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
    def forward(ctx: Any, meet: Meeting, plan: Any, own: int, *tensors: Tensor) -> Tensor:
        axes, sizes, into, domain = plan
        found: Any = None
        for _, at, blocks in Rounds(tensors[own:], axes, sizes, domain):
            if at[0] == at[1] and sum(sizes):
                continue
            part = meet(at, *tensors[:own], *blocks)
            if into is None:
                found = part if found is None else found.add_(part)
                continue
            if found is None:
                shape = list(part.shape)
                shape[into] = sum(sizes)
                found = part.new_empty(shape)
            found.narrow(into, at[0], at[1] - at[0]).copy_(part)
        ctx.meet, ctx.plan, ctx.own = meet, plan, own
        ctx.save_for_backward(*tensors)
        return found  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, own = ctx.saved_tensors, ctx.own
        axes, sizes, into, domain = ctx.plan
        sums = [torch.zeros_like(t) for t in tensors]
        mine, owed = sums[:own], sums[own:]
        rounds = Rounds(tensors[own:], axes, sizes, domain)
        for whose, (start, stop), blocks in rounds:
            if start < stop:
                part = gradient if into is None else gradient.narrow(into, start, stop - start)
                _differentiate(ctx.meet, (start, stop), (*tensors[:own], *blocks), part, (*mine, *owed))
            owed = rounds.onward(owed, whose)
        differs = [t.is_floating_point() for t in tensors]
        return (None, None, None, *(s if d else None for s, d in zip((*mine, *owed), differs, strict=True)))


def _differentiate(
    meet: Meeting, at: Range, tensors: Sequence[Tensor], gradient: Tensor, totals: Sequence[Tensor]
) -> None:
    """Add the gradients of one meeting."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        found = meet(at, *leaves)
    if found.requires_grad:
        asked = [(leaf, total) for leaf, total in zip(leaves, totals, strict=True) if leaf.requires_grad]
        changes = torch.autograd.grad(found, [leaf for leaf, _ in asked], gradient, allow_unused=True)
        for (_, total), change in zip(asked, changes, strict=True):
            if change is not None:
                total.add_(change)


def around(meet: Meeting, own: Sequence[Tensor], blocks: Sequence[ShardTensor], into: int | None = None) -> Tensor:
    """Meet all ranks' blocks (cut into the same sizes); results are added, or side by side along `into`."""
    first = blocks[0]
    plan = [b.axis for b in blocks], first.sizes, into, first.domain
    return _Around.apply(meet, plan, len(own), *own, *(b.local for b in blocks))  # type: ignore[no-any-return]


def _inside(numbers: Numbers, axis: int, at: Range, behind: int) -> tuple[list[Tensor | None], Tensor]:
    """Numbers counted from where a block begins, and which rows of what they pick are not in it."""
    wanted = numbers[axis]
    assert wanted is not None
    some = [*numbers[:axis], (wanted - at[0]).clamp_(0, at[1] - at[0] - 1), *numbers[axis + 1 :]]
    absent = (wanted < at[0]) | (wanted >= at[1])
    return some, absent.reshape(*absent.shape, *[1] * behind)


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Tensor, numbers: Numbers, plan: Any) -> Tensor:
        axis, sizes, behind, shape, domain = plan
        found = block.new_zeros(shape)
        for _, at, blocks in Rounds([block], [axis], sizes, domain):
            if at[0] < at[1]:
                some, absent = _inside(numbers, axis, at, behind)
                found.add_(torch.ops.aten.index(blocks[0], some).masked_fill_(absent, 0))
        ctx.plan, ctx.shape, ctx.looked_up = plan, block.shape, [n is not None for n in numbers]
        ctx.save_for_backward(*(n for n in numbers if n is not None))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        axis, sizes, behind, _, domain = ctx.plan
        saved = iter(ctx.saved_tensors)
        numbers = [next(saved) if looked_up else None for looked_up in ctx.looked_up]
        owed = gradient.new_zeros(ctx.shape)
        rounds = Rounds([owed], [axis], sizes, domain)
        for step in range(domain.size):
            whose = (domain.rank - step) % domain.size
            at = rounds.at[whose]
            if at[0] < at[1]:
                some, absent = _inside(numbers, axis, at, behind)
                torch.ops.aten.index_put_(owed, some, gradient.masked_fill(absent, 0), True)
            (owed,) = rounds.onward([owed], whose)
        return owed, None, None


def picked(x: ShardTensor, numbers: Numbers, place: int) -> Tensor:
    """Rows of the whole by their numbers, whoever has them: those this rank asks for, laid at dimension `place`."""
    (first, *_) = [n for n in numbers if n is not None]
    free = [n for n, given in zip(x.local.shape, numbers, strict=True) if given is None]
    plan = x.axis, x.sizes, len(free) - place, (*free[:place], *first.shape, *free[place:]), x.domain
    return _Picked.apply(x.local, list(numbers), plan)  # type: ignore[no-any-return]
