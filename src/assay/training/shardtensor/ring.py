"""Blocks that go round: every rank meets every other's block, one at a time, and none ever holds them all.

`around` takes any local function of a rank's own tensors and one block. Its results are added up, or laid side by side.
While a block is computed with, the next is on its way. In the backward pass blocks go round again; the function is
differentiated block by block, and what is owed to a block travels with it and ends where it began. `picked` takes rows
out of blocks by their numbers: what is owed to them does not depend on what is in them, so no block is kept for it, and
none goes round again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from assay.training.shardtensor.shards import Domain, Range, ShardTensor, ranges

STRETCHES, LOOKS = 64, 32  # of a rank's own rows, that meet a block or are looked up in it one after another
Meeting = Callable[..., Tensor]  # (range of the block in the whole, own tensors..., block's tensors...)
Numbers = Sequence[Tensor | None]  # one tensor for each dimension of a block that is looked up in, all of one shape


def _stretches(rows: int, many: int) -> list[Range]:
    """Of so many rows, also of none."""
    return [(a, b) for a, b in pairwise([rows * n // many for n in range(many + 1)]) if a < b] or [(0, 0)]


class Rounds:
    """Blocks of every rank in turn, own first: whose they are, and they themselves."""

    def __init__(self, blocks: Sequence[Tensor], axes: Sequence[int], sizes: Sequence[int], domain: Domain) -> None:
        self.axes, self.sizes, self.domain = axes, sizes, domain
        self.blocks, self.whose = list(blocks), domain.rank

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

    def __iter__(self) -> Any:
        for step in range(self.domain.size):
            last = step == self.domain.size - 1
            coming, works, kept = ([], [], []) if last else self.begin(self.blocks, self.whose)
            yield self.whose, self.blocks
            for work in works:
                work.wait()
            del kept
            self.blocks, self.whose = coming, (self.whose - 1) % self.domain.size


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, meet: Meeting, plan: Any, own: int, *tensors: Tensor) -> Tensor:
        axes, sizes, into, over, domain = plan
        have = ranges(sizes)
        found: Any = None
        for whose, blocks in Rounds(tensors[own:], axes, sizes, domain):
            if not sizes[whose]:
                continue
            if into is None:
                part = meet(have[whose], *tensors[:own], *blocks)
                found = part if found is None else found.add_(part)
                continue
            rows = tensors[0].shape[over[0]]
            for start, stop in _stretches(rows, STRETCHES):
                part = meet(have[whose], tensors[0].narrow(over[0], start, stop - start), *tensors[1:own], *blocks)
                if found is None:
                    shape = list(part.shape)
                    shape[into], shape[over[1]] = sum(sizes), rows
                    found = part.new_empty(shape)
                found.narrow(into, have[whose][0], sizes[whose]).narrow(over[1], start, stop - start).copy_(part)
                del part  # before the next is made
        ctx.meet, ctx.plan, ctx.own = meet, plan, own
        ctx.save_for_backward(*tensors)
        return found  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, own = ctx.saved_tensors, ctx.own
        axes, sizes, into, _, domain = ctx.plan
        have: list[Range] = ranges(sizes)
        differs = [t.is_floating_point() for t in tensors]
        sums = [torch.zeros_like(t) for t in tensors[:own]]
        owed = [torch.zeros_like(t) for t in tensors[own:]]
        rounds = Rounds(tensors[own:], axes, sizes, domain)
        for whose, blocks in rounds:
            if sizes[whose]:
                start, stop = have[whose]
                part = gradient if into is None else gradient.narrow(into, start, stop - start)
                _differentiate(ctx.meet, have[whose], (*tensors[:own], *blocks), part, (*sums, *owed))
            if domain.size > 1:  # what is owed goes on with the block, and after the last step home
                owed, works, kept = rounds.begin(owed, whose)
                for work in works:
                    work.wait()
                del kept
        found_all = [s if d else None for s, d in zip((*sums, *owed), differs, strict=True)]
        return (None, None, None, *found_all)


def _differentiate(
    meet: Meeting, at: Range, tensors: Sequence[Tensor], gradient: Tensor, totals: Sequence[Tensor]
) -> None:
    """Add the gradients of one meeting."""
    with torch.enable_grad():
        leaves = [t.detach().requires_grad_(t.is_floating_point()) for t in tensors]
        found = meet(at, *leaves)
    if found.requires_grad:
        asked, end = [leaf for leaf in leaves if leaf.requires_grad], get_gradient_edge(found)
        del found  # what the meeting gave is not needed to differentiate it, unless it keeps it itself
        got = iter(torch.autograd.grad(end, asked, gradient, allow_unused=True))
        for leaf, total in zip(leaves, totals, strict=True):
            change = next(got) if leaf.requires_grad else None
            if change is not None:
                total.add_(change)


def around(
    meet: Meeting, own: Sequence[Tensor], blocks: Sequence[ShardTensor], into: int | None = None,
    over: tuple[int, int] = (0, 0),
) -> Tensor:  # fmt: skip
    """Meet all ranks' blocks (cut into the same sizes); results are added, or side by side along `into`.

    `over`: along which dimension of `own[0]`, and of the result, rows have nothing to do with one another. Results that
    lie side by side are computed so many rows at a time, that no copy of a block's own is needed beside the whole.
    """
    first = blocks[0]
    plan = [b.axis for b in blocks], first.sizes, into, over, first.domain
    return _Around.apply(meet, plan, len(own), *own, *(b.local for b in blocks))  # type: ignore[no-any-return]


def _inside(numbers: Numbers, axis: int, at: Range, over: int, part: Range) -> tuple[list[Tensor | None], Tensor]:
    """Some rows of the numbers, counted from where a block begins, and which of them are not in it."""
    some = [None if n is None else n.narrow(over, part[0], part[1] - part[0]) for n in numbers]
    wanted = some[axis]
    assert wanted is not None
    some[axis] = (wanted - at[0]).clamp_(0, at[1] - at[0] - 1)
    return some, (wanted < at[0]) | (wanted >= at[1])


class _Picked(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, block: Tensor, numbers: Numbers, plan: Any) -> Tensor:
        axis, sizes, place, over, shape, domain = plan
        found = block.new_zeros(shape)
        for whose, (rows,) in Rounds([block], [axis], sizes, domain):
            for part in _stretches(shape[place + over], LOOKS) if sizes[whose] else []:
                some, absent = _inside(numbers, axis, ranges(sizes)[whose], over, part)
                picked = torch.ops.aten.index(rows, some)
                picked.masked_fill_(absent.reshape(*absent.shape, *[1] * (picked.ndim - place - absent.ndim)), 0)
                found.narrow(place + over, part[0], part[1] - part[0]).add_(picked)
                del picked
        ctx.plan, ctx.shape, ctx.looked_up = plan, block.shape, [n is not None for n in numbers]
        ctx.save_for_backward(*(n for n in numbers if n is not None))
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        axis, sizes, place, over, shape, domain = ctx.plan
        rounds, whose, saved = Rounds([], [axis], sizes, domain), domain.rank, iter(ctx.saved_tensors)
        numbers = [next(saved) if looked_up else None for looked_up in ctx.looked_up]
        owed = gradient.new_zeros(ctx.shape)
        for _ in range(domain.size):
            for part in _stretches(shape[place + over], LOOKS) if sizes[whose] else []:
                some, absent = _inside(numbers, axis, ranges(sizes)[whose], over, part)
                change = gradient.narrow(place + over, part[0], part[1] - part[0])
                absent = absent.reshape(*absent.shape, *[1] * (change.ndim - place - absent.ndim))
                torch.ops.aten.index_put_(owed, some, change.masked_fill(absent, 0), True)
            if domain.size > 1:
                (owed,), works, leaving = rounds.begin([owed], whose)
                for work in works:
                    work.wait()
                del leaving
                whose = (whose - 1) % domain.size
        return owed, None, None


def picked(x: ShardTensor, numbers: Numbers, place: int, over: int) -> Tensor:
    """Rows of the whole by their numbers, whoever has them: this rank's are asked for, and laid at dimension `place`.

    Numbers have one shape; along their dimension `over` they are looked up some at a time.
    """
    (first, *_) = [n for n in numbers if n is not None]
    free = [n for n, given in zip(x.local.shape, numbers, strict=True) if given is None]
    plan = x.axis, x.sizes, place, over, (*free[:place], *first.shape, *free[place:]), x.domain
    return _Picked.apply(x.local, list(numbers), plan)  # type: ignore[no-any-return]
