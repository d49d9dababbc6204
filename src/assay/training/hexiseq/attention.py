"""Attention over unequal shares of one sequence: ragged all-to-alls in groups, rings of keys and values between them.

Every rank holds some tokens with all their heads. Within its group it swaps: afterwards it has its own heads of all the
group's tokens. Groups cut their heads at different places, so keys and values go round in sub-rings: one for every
interval of heads that no group cuts (the common refinement), over the interval's owners, one in each group. While a
block is attended to, the next is on its way. Backwards the gradients of keys and values travel with them and end where
they began. Needs the extra `torch` and a process group; heads are whole groups of a head of keys.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from assay.sim.row_exchange import exchange
from assay.training.engine.attention import Span, accumulate, differentiate
from assay.training.hexiseq.pace import Split, laid
from assay.training.hexiseq.shares import Shares, intervals, positions


class Seat:
    """What a rank knows of a split: its group, its heads, whom it meets in which sub-ring."""

    def __init__(self, split: Split, kv_heads: int, rank: int) -> None:
        order, ptr = laid(split.group)
        self.split, self.rank, self.kv_heads = split, rank, kv_heads
        self.heads = int(np.bincount(split.group, weights=split.heads)[0])
        self.shared = self.heads // kv_heads
        self.members = [order[ptr[j] : ptr[j + 1]] for j in range(split.groups)]
        self.group = int(split.group[rank])
        self.shares = Shares(split, kv_heads)

    @property
    def keys(self) -> slice:
        """This rank's heads of keys."""
        first, last = self.shares.keys[self.rank]
        return slice(int(first), int(last))

    def spans(self, group: int) -> list[Span]:
        """A group's tokens as they lie on its ranks after the swap."""
        found, row = [], 0
        for start, stop in positions(self.split.lengths)[group]:
            found.append(Span(0, start, stop, row))
            row += stop - start
        return found

    @cached_property
    def rings(self) -> list[tuple[int, slice, int, int]]:
        """Of each sub-ring this rank is in: its number, the heads among this rank's own, from whom and to whom."""
        found, k = [], self.split.groups
        for number, (first, last) in enumerate(intervals(self.split, self.kv_heads)):
            owners = [self.shares.owner(group, first) for group in range(k)]
            if owners[self.group] == self.rank:
                mine = slice(first - self.keys.start, last - self.keys.start)
                found.append((number, mine, owners[(self.group - 1) % k], owners[(self.group + 1) % k]))
        return found


def attend(q: Tensor, k: Tensor, v: Tensor, split: Split) -> Tensor:
    """Attention of this rank's tokens `[token, head, width]`, all heads of them, to the whole sequence before them."""
    seat = Seat(split, k.shape[1], dist.get_rank())
    heads = exchange_heads(seat, q, k, v)
    mixed: Tensor = _Ring.apply(*heads, seat)
    return exchange_tokens(seat, mixed)


def exchange_heads(seat: Seat, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
    """All heads of own tokens become own heads of the group's tokens; rows are (token, head), by receiver."""
    me, members, size = seat.rank, seat.members[seat.group], len(seat.split.group)
    own, parts, sizes = seat.shares.keys[me], [], []
    for rows, times in ((q, seat.shared), (k, 1), (v, 1)):
        out, into, leaving = [0] * size, [0] * size, []
        for r in members:
            first, last = (times * int(at) for at in seat.shares.keys[r])
            leaving.append(rows[:, first:last].reshape(-1, rows.shape[-1]))
            out[r] = len(leaving[-1])
            into[r] = int(seat.split.tokens[r]) * times * int(own[1] - own[0])
        parts.append(torch.cat(leaving))
        sizes.append((out, into))
    wide = [seat.shared * int(own[1] - own[0]), *2 * [int(own[1] - own[0])]]
    length = int(seat.split.lengths[seat.group])
    return tuple(x.reshape(length, n, x.shape[-1]) for x, n in zip(exchange(sizes, *parts), wide, strict=True))


def exchange_tokens(seat: Seat, mixed: Tensor) -> Tensor:
    """The way back: own heads of the group's tokens become all heads of own tokens."""
    members, size = seat.members[seat.group], len(seat.split.group)
    counts = [int(seat.split.tokens[r]) for r in members]
    mine, width = int(seat.split.tokens[seat.rank]), mixed.shape[-1]
    out, into = [0] * size, [0] * size
    for r, part in zip(members, mixed.split(counts), strict=True):
        out[r], into[r] = part.shape[0] * part.shape[1], mine * int(seat.split.heads[r])
    (got,) = exchange([(out, into)], mixed.reshape(-1, width))
    pieces = got.split([into[r] for r in members])
    return torch.cat(
        [x.reshape(mine, int(seat.split.heads[r]), width) for r, x in zip(members, pieces, strict=True)], dim=1
    )


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, seat: Seat) -> Tensor:
        out, lse = torch.zeros_like(q), q.new_full(q.shape[:2], -torch.inf)
        groups, mine = seat.split.groups, seat.spans(seat.group) if q.shape[1] else []
        block = torch.stack([k, v])
        for step in range(groups):
            at = (seat.group - step) % groups
            coming = _pass_on(seat, block, (at - 1) % groups) if step < groups - 1 else None
            accumulate(out, lse, q, mine, block[0], block[1], seat.spans(at), causal=True)
            block = coming.wait() if coming else block
        ctx.seat = seat
        ctx.save_for_backward(q, k, v, out, lse)
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        seat: Seat = ctx.seat
        groups, mine = seat.split.groups, seat.spans(seat.group) if q.shape[1] else []
        dq, block = torch.zeros_like(q), torch.stack([k, v])
        state = q, lse, gradient, (gradient * out).sum(-1)
        owed = torch.zeros_like(block)
        for step in range(groups):
            at = (seat.group - step) % groups
            coming = _pass_on(seat, block, (at - 1) % groups) if step < groups - 1 else None
            differentiate(state, dq, mine, block, owed, seat.spans(at), causal=True)
            if groups > 1:  # what is owed goes where the block goes, and after the last step home
                owed = _pass_on(seat, owed, (at - 1) % groups, tag=len(seat.split.group) + 1).wait()
            block = coming.wait() if coming else block
        return dq, owed[0], owed[1], None


class _Coming:
    """Keys and values (or their gradients) of a group on their way in, piece by piece."""

    def __init__(self, into: Tensor, works: list[Any], pieces: list[tuple[slice, Tensor]], kept: list[Tensor]) -> None:
        self.into, self.works, self.pieces = into, works, pieces
        self.kept = kept  # what is being sent must not be collected

    def wait(self) -> Tensor:
        """All of it, once it is here."""
        for work in self.works:
            work.wait()
        for heads, piece in self.pieces:
            self.into[:, :, heads] = piece
        return self.into


def _pass_on(seat: Seat, block: Tensor, group: int, tag: int = 0) -> _Coming:
    """Send each interval of heads to its next owner, and receive that of the block of `group` from the one before."""
    length = int(seat.split.lengths[group])
    into = block.new_empty((2, length, *block.shape[2:]))
    works, pieces, kept = [], [], []
    for number, heads, before, after in seat.rings:
        leaving = block[:, :, heads].contiguous()
        piece = into.new_empty((2, length, heads.stop - heads.start, block.shape[-1]))
        works += [dist.isend(leaving, after, tag=tag + number), dist.irecv(piece, before, tag=tag + number)]
        pieces.append((heads, piece))
        kept.append(leaving)
    return _Coming(into, works, pieces, kept)
