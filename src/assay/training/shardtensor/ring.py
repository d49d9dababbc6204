"""Blocks that go round: every rank meets every other's block, one at a time, and none ever holds them all.

`around` takes any local function of a rank's own tensors and one block. Its results are added up, or laid side by side.
While a block is computed with, the next is on its way. Where stretches are unequal, blocks go round in pieces, one ring
after another: a rank that has little never holds much of another's. In the backward pass blocks go round again; the
function is differentiated block by block, and what is owed to a block travels with it and ends where it began. `picked`
takes rows out of blocks by their numbers: what is owed to them does not depend on what is in them, so no block is kept
for it, and none goes round again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.autograd.graph import get_gradient_edge

from assay.training.shardtensor.shards import Domain, Range, ShardTensor, ranges

STRETCHES, LOOKS = 64, 32  # of a rank's own rows, that meet a block or are looked up in it one after another
PIECES = 32  # of a block at most: each has its messages and its calls
Meeting = Callable[..., Tensor]  # (range of the block in the whole, own tensors..., block's tensors...)
Numbers = Sequence[Tensor | None]  # one tensor for each dimension of a block that is looked up in, all of one shape


def _stretches(rows: int, many: int) -> list[Range]:
    """Of so many rows, also of none."""
    return [(a, b) for a, b in pairwise([rows * n // many for n in range(many + 1)]) if a < b] or [(0, 0)]


def pieces(sizes: Sequence[int]) -> list[Range]:
    """Which rows of every stretch go round together: all, unless the longest is over 3/2 of the shortest.

    >>> pieces([256, 257, 0]), pieces([100, 30])
    ([(0, 257)], [(0, 34), (34, 68), (68, 100)])
    """
    longest, shortest = max(sizes), min((n for n in sizes if n), default=1)
    step = max(1, ceil(longest / min(PIECES, max(1, ceil(2 * longest / (3 * shortest))))))
    return [(start, min(start + step, longest)) for start in range(0, longest, step)] or [(0, 0)]


class Rounds:
    """Blocks of every rank in turn, own first: whose they are, and they themselves.

    They are a piece of each stretch: `at` says which rows of the whole, `start` where this rank's begins in its own.
    """

    def __init__(
        self, blocks: Sequence[Tensor], axes: Sequence[int], sizes: Sequence[int], piece: Range, domain: Domain
    ) -> None:
        first, last = ([min(end, n) for n in sizes] for end in piece)
        self.at = [(begin + a, begin + b) for (begin, _), a, b in zip(ranges(sizes), first, last, strict=True)]
        self.sizes = [b - a for a, b in self.at]
        self.axes, self.domain, self.whose = axes, domain, domain.rank
        self.start = first[domain.rank]
        self.blocks = [self.own(block, axis) for block, axis in zip(blocks, axes, strict=True)]

    def own(self, x: Tensor, axis: int) -> Tensor:
        """The rows of this rank's that take part."""
        return x.narrow(axis, self.start, self.sizes[self.domain.rank])

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

    def home(self, found: list[Tensor], whole: list[Tensor], like: Sequence[Tensor]) -> list[Tensor]:
        """Pieces where they belong in tensors like these; if a piece is all there is, it is the whole."""
        if not whole and [x.shape for x in found] == [x.shape for x in like]:
            return found
        whole = whole or [x.new_empty(y.shape) for x, y in zip(found, like, strict=True)]
        for x, y, axis in zip(found, whole, self.axes, strict=True):
            if x.numel():
                self.own(y, axis).copy_(x)
        return whole

    def __iter__(self) -> Any:
        for step in range(self.domain.size):
            last = step == self.domain.size - 1
            coming, works, kept = ([], [], []) if last else self.begin(self.blocks, self.whose)
            yield self.whose, self.blocks
            for work in works:
                work.wait()
            del kept
            self.blocks.clear()  # whoever met them has that list: let go of them before more begins to come
            self.blocks, self.whose = coming, (self.whose - 1) % self.domain.size


def turns(blocks: Sequence[Tensor], axes: Sequence[int], sizes: Sequence[int], domain: Domain) -> Iterator[Rounds]:
    """Rounds of all blocks, one piece after another."""
    for piece in pieces(sizes):
        yield Rounds(blocks, axes, sizes, piece, domain)


class _Around(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, meet: Meeting, plan: Any, own: int, *tensors: Tensor) -> Tensor:
        axes, sizes, into, over, domain = plan
        found: Any = None
        rows = tensors[0].shape[over[0]]
        stretches = _stretches(rows, ceil(STRETCHES / len(pieces(sizes))))
        for rounds in turns(tensors[own:], axes, sizes, domain):
            for whose, blocks in rounds:
                at = rounds.at[whose]
                if at[0] == at[1]:
                    continue
                if into is None:
                    part = meet(at, *tensors[:own], *blocks)
                    found = part if found is None else found.add_(part)
                    continue
                for start, stop in stretches:
                    part = meet(at, tensors[0].narrow(over[0], start, stop - start), *tensors[1:own], *blocks)
                    if found is None:
                        shape = list(part.shape)
                        shape[into], shape[over[1]] = sum(sizes), rows
                        found = part.new_empty(shape)
                    found.narrow(into, at[0], at[1] - at[0]).narrow(over[1], start, stop - start).copy_(part)
                    del part  # before the next is made
        ctx.meet, ctx.plan, ctx.own = meet, plan, own
        ctx.save_for_backward(*tensors)
        return found  # type: ignore[no-any-return]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        tensors, own = ctx.saved_tensors, ctx.own
        axes, sizes, into, _, domain = ctx.plan
        differs = [t.is_floating_point() for t in tensors]
        sums = [torch.zeros_like(t) for t in tensors[:own]]
        whole: list[Tensor] = []
        for rounds in turns(tensors[own:], axes, sizes, domain):
            owed = [torch.zeros_like(t) for t in rounds.blocks]
            for whose, blocks in rounds:
                start, stop = rounds.at[whose]
                if start < stop:
                    part = gradient if into is None else gradient.narrow(into, start, stop - start)
                    _differentiate(ctx.meet, (start, stop), (*tensors[:own], *blocks), part, (*sums, *owed))
                owed = rounds.onward(owed, whose)
            whole = rounds.home(owed, whole, tensors[own:])
        found_all = [s if d else None for s, d in zip((*sums, *whole), differs, strict=True)]
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
        for rounds in turns([block], [axis], sizes, domain):
            for whose, blocks in rounds:
                for part in _stretches(shape[place + over], LOOKS) if rounds.sizes[whose] else []:
                    some, absent = _inside(numbers, axis, rounds.at[whose], over, part)
                    picked = torch.ops.aten.index(blocks[0], some)
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
        saved = iter(ctx.saved_tensors)
        numbers = [next(saved) if looked_up else None for looked_up in ctx.looked_up]
        like, whole = [gradient.new_empty(1).expand(ctx.shape)], list[Tensor]()
        for rounds in turns(like, [axis], sizes, domain):
            owed = torch.zeros_like(rounds.blocks[0], memory_format=torch.contiguous_format)
            for step in range(domain.size):
                whose = (domain.rank - step) % domain.size
                for part in _stretches(shape[place + over], LOOKS) if rounds.sizes[whose] else []:
                    some, absent = _inside(numbers, axis, rounds.at[whose], over, part)
                    change = gradient.narrow(place + over, part[0], part[1] - part[0])
                    absent = absent.reshape(*absent.shape, *[1] * (change.ndim - place - absent.ndim))
                    torch.ops.aten.index_put_(owed, some, change.masked_fill(absent, 0), True)
                (owed,) = rounds.onward([owed], whose)
            whole = rounds.home([owed], whole, like)
        return whole[0], None, None


def picked(x: ShardTensor, numbers: Numbers, place: int, over: int) -> Tensor:
    """Rows of the whole by their numbers, whoever has them: this rank's are asked for, and laid at dimension `place`.

    Numbers have one shape; along their dimension `over` they are looked up some at a time.
    """
    (first, *_) = [n for n in numbers if n is not None]
    free = [n for n, given in zip(x.local.shape, numbers, strict=True) if given is None]
    plan = x.axis, x.sizes, place, over, (*free[:place], *first.shape, *free[place:]), x.domain
    return _Picked.apply(x.local, list(numbers), plan)  # type: ignore[no-any-return]
