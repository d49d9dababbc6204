"""The boundary on real tensors: rows to whoever needs them, gradients home the same way, added where they meet.

Needs the extra `torch` and a process group whose ranks are the boundary's. A rank that has nothing gives no rows and
gets none; it takes part all the same, forward and backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from assay.sim.grids import Box, Move
from assay.training.hetpar.boundary import Boundary


def group_of(ranks: Sequence[int]) -> Any:
    """The process group of some ranks, None for one alone; all ranks ask for the same groups, in the same order.

    Ranks that meet anew take longer than a step of a small model: a group is made once.
    """
    return _made(dist.group.WORLD, tuple(ranks)) if len(ranks) > 1 else None


@cache
def _made(world: Any, ranks: tuple[int, ...]) -> Any:
    return dist.new_group(list(ranks))


class Communicator:
    """Sends by boundaries, and counts the bytes that leave this rank.

    Args:
        groups: sets of ranks that hold the same rows, over all boundaries to come; made once, by all ranks in order.
    """

    def __init__(self, groups: Sequence[tuple[int, ...]] = ()) -> None:
        self.groups = {group: group_of(group) for group in dict.fromkeys(groups)}
        self.sent = 0

    def __call__(self, rows: Tensor, boundary: Boundary) -> Tensor:
        """The rows that this rank needs, in their order, from those that every rank has."""
        found: Tensor = _Cross.apply(rows, boundary, self)
        return found


class _Cross(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, boundary: Boundary, by: Communicator) -> Tensor:
        ctx.boundary, ctx.by, ctx.shape = boundary, by, rows.shape
        me = dist.get_rank()
        have, need = boundary.have.get(me, []), boundary.need.get(me, [])
        out = rows.new_empty(_shape(need, rows.shape[1]))
        out_of, into = _sides(boundary.moves, me)
        got = _swap(rows, out_of, have, into, by)
        for peer, moves in into.items():
            at = 0
            for move in moves:
                out[_view(need, move)] = got[peer][at : at + move.items].view(_size(move))
                at += move.items
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        boundary, by, me = ctx.boundary, ctx.by, dist.get_rank()
        have, need = boundary.have.get(me, []), boundary.need.get(me, [])
        total = gradient.new_zeros(ctx.shape)
        home, out_of = _sides(boundary.back, me)  # what was sent comes back: the map's transpose
        got = _swap(gradient, out_of, need, home, by)
        for peer, moves in home.items():
            at = 0
            for move in moves:
                total[_view(have, move)] += got[peer][at : at + move.items].view(_size(move))
                at += move.items
        for group in boundary.copies:
            if me in group:
                dist.all_reduce(total, group=by.groups[group])
                by.sent += 2 * (len(group) - 1) * total.numel() * total.element_size() // len(group)
        return total, None, None


def _sides(moves: Sequence[Move], me: int) -> tuple[dict[int, list[Move]], dict[int, list[Move]]]:
    """Moves from this rank by their target, and moves to it by their source."""
    out_of: dict[int, list[Move]] = {}
    into: dict[int, list[Move]] = {}
    for move in moves:
        if move.source == me:
            out_of.setdefault(move.target, []).append(move)
        if move.target == me:
            into.setdefault(move.source, []).append(move)
    return out_of, into


def _swap(
    rows: Tensor, out_of: dict[int, list[Move]], held: Sequence[Box], into: dict[int, list[Move]], by: Communicator
) -> dict[int, Tensor]:
    """One message for every peer, its slices one after the other; what stays here does not touch a wire."""
    me = dist.get_rank()
    works: list[Any] = []
    got: dict[int, Tensor] = {}
    for peer, moves in into.items():
        if peer != me:
            got[peer] = rows.new_empty(sum(move.items for move in moves))
            works.append(dist.irecv(got[peer], peer))
    leaving = []
    for peer, moves in out_of.items():
        flat = torch.cat([rows[_view(held, move)].reshape(-1) for move in moves])
        if peer == me:
            got[me] = flat
            continue
        leaving.append(flat)  # alive until it has left
        by.sent += flat.numel() * flat.element_size()
        works.append(dist.isend(flat, peer))
    for work in works:
        work.wait()
    return got


def _view(boxes: Sequence[Box], move: Move) -> tuple[slice, slice]:
    """Where a slice lies in a rank's tensor: its boxes one below the other, all of the same columns."""
    row = 0
    for (low, high), (left, right) in boxes:
        if low <= move.low[0] and move.high[0] <= high and left <= move.low[1] and move.high[1] <= right:
            first = row + move.low[0] - low
            return slice(first, first + move.high[0] - move.low[0]), slice(move.low[1] - left, move.high[1] - left)
        row += high - low
    raise AssertionError(f"{move} is not of these boxes")


def _size(move: Move) -> tuple[int, int]:
    return move.high[0] - move.low[0], move.high[1] - move.low[1]


def _shape(boxes: Sequence[Box], otherwise: int) -> tuple[int, int]:
    if not boxes:
        return 0, otherwise
    return sum(high - low for (low, high), _ in boxes), boxes[0][1][1] - boxes[0][1][0]
