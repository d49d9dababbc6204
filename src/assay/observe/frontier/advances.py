"""The frontier of a group of ranks: how far the slowest has come at each stage boundary, and who it is.

In synchronised training everybody waits for the slowest, so a delay on one rank shows up as waiting on all others, in
another stage. Cumulative time undoes that. With C[r,s] the time rank r has spent when it leaves stage s, the frontier
F[s] is the largest C[·,s]; its advance F[s] − F[s−1] is what stage s added to the group's step, and the ranks that only
wait add nothing: they are catching up. Advances telescope, so they add up to the slowest rank's step, exactly.

Durations are integers (nanoseconds), each rank's by its own clock; clocks of two ranks are never compared.

>>> d = np.array([[[9, 5, 3, 1], [2, 5, 10, 1]]])  # rank 0 stalls 7 in its data, rank 1 waits 7 in its backward pass
>>> advances, leaders, slack = frontier(d)
>>> advances.tolist(), leaders.tolist()
([[9, 5, 3, 1]], [[0, 0, 0, 0]])
>>> slack[0, 1].tolist()
[7, 7, 0, 0]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.record.errors import BadInput
from assay.sim.compiled import njit

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
WAIT = "sync"  # a stage of this name is nothing but waiting for the others and the transfer


class Frontier(NamedTuple):
    """For each step and stage: the group's advance, the rank (its place) that leads; and how far each rank is ahead."""

    advances: Ints  # (steps, stages)
    leaders: Ints  # (steps, stages); −1 where no rank reported
    slack: Ints  # (steps, ranks, stages); −1 where the rank did not report


@njit(cache=True, nogil=True)
def _sweep(d: Ints, valid: Bools, advances: Ints, leaders: Ints, slack: Ints) -> bool:
    """Fill the three; False if a duration is negative."""
    steps, ranks, stages = d.shape
    front = np.empty(stages, np.int64)
    signs = 0  # of all durations: the sign bit of any is the sign bit of this
    for w in range(steps):
        front[:] = -1
        for r in range(ranks):
            if not valid[w, r]:
                continue
            spent = 0
            for s in range(stages):
                signs |= d[w, r, s]
                spent += d[w, r, s]
                slack[w, r, s] = spent
                if spent > front[s]:
                    front[s] = spent
                    leaders[w, s] = r
        before = 0
        for s in range(stages):
            if front[s] >= 0:
                advances[w, s] = front[s] - before
                before = front[s]
        for r in range(ranks):
            if valid[w, r]:
                for s in range(stages):
                    slack[w, r, s] = front[s] - slack[w, r, s]
    return signs >= 0


def frontier(durations: ArrayLike, valid: ArrayLike | None = None) -> Frontier:
    """The frontier of every step, for durations (steps, ranks, stages); of several leaders the first is named.

    `valid` (steps, ranks) says which rank reported which step; the others are left out, not taken for zero.

    Raises:
        BadInput: the shape is wrong, or a duration is negative.
    """
    d, mask = checked(durations, valid)
    steps, _, stages = d.shape
    advances, leaders = np.zeros((steps, stages), np.int64), np.full((steps, stages), -1, np.int64)
    slack = np.full(d.shape, -1, np.int64) if not mask.all() else np.empty(d.shape, np.int64)
    if not _sweep(d, mask, advances, leaders, slack):
        step, rank, stage = (int(i[0]) for i in np.nonzero((d < 0) & mask[:, :, None]))
        raise BadInput(f"frontier: step {step}, rank {rank}, stage {stage}: a duration is negative")
    return Frontier(advances, leaders, slack)


def checked(durations: ArrayLike, valid: ArrayLike | None) -> tuple[Ints, Bools]:
    """The durations as whole nanoseconds and the mask, or what is wrong with them."""
    d = np.asarray(durations)
    if d.ndim != 3:
        raise BadInput(f"frontier: durations have {d.ndim} axes; they are (steps, ranks, stages)")
    if not np.issubdtype(d.dtype, np.integer):
        raise BadInput(f"frontier: durations are {d.dtype}; whole nanoseconds (int64) keep the accounting exact")
    mask = np.ones(d.shape[:2], bool) if valid is None else np.asarray(valid, bool)
    if mask.shape != d.shape[:2]:
        raise BadInput(f"frontier: the mask is {mask.shape}, the steps and ranks are {d.shape[:2]}")
    return np.ascontiguousarray(d, np.int64), mask


@dataclass(frozen=True)
class Rows:
    """Steps cut where the ranks are together: each row begins and ends when a synchronising stage does."""

    durations: Ints  # (rows, ranks, stages)
    valid: Bools
    stages: tuple[str, ...]  # in the order of a row
    synchronising: tuple[bool, ...]


def synchronising_in(stages: Sequence[str]) -> tuple[str, ...]:
    """The stage in which a data-parallel step waits for the others, where nobody said: the wait itself, or backward.

    >>> synchronising_in(["data", "forward", "backward", "other"])
    ('backward',)
    """
    return next(((name,) for name in (WAIT, "backward") if name in stages), ())


def between_syncs(d: Ints, valid: Bools, stages: Sequence[str], synchronising: Sequence[str]) -> Rows:
    """Rows from one synchronisation to the next: what follows it in a step, then the next step up to it.

    A job's step ends where its loop does, but its ranks are together when the gradients are: what a rank loses after
    that (in the optimizer, a checkpoint) makes the others wait in the *next* step. A row of the recorded step would
    blame their waiting; a row that begins where all ranks leave together does not. A lone step stays as it is.

    >>> step = np.arange(8).reshape(2, 1, 4)
    >>> rows = between_syncs(step, np.ones((2, 1), bool), ["data", "backward", "optimizer", "other"], ["backward"])
    >>> rows.stages, rows.durations.tolist()
    (('optimizer', 'other', 'data', 'backward'), [[[2, 3, 4, 5]]])
    """
    waits = tuple(name in synchronising for name in stages)
    cut = len(stages) - waits[::-1].index(True) if any(waits) else len(stages)
    if cut == len(stages) or len(d) < 2:
        return Rows(d, valid, tuple(stages), waits)
    rows = np.concatenate([d[:-1, :, cut:], d[1:, :, :cut]], axis=2)
    order = (*stages[cut:], *stages[:cut])
    together: Bools = valid[:-1] & valid[1:]
    return Rows(_put_back(rows, together, len(stages) - cut), together, order, waits[cut:] + waits[:cut])


def _put_back(rows: Ints, valid: Bools, after: int) -> Ints:
    """Rows in which time that was spent before a synchronisation is not recorded behind it.

    The checkpoint between two epochs, an evaluation before the first batch: the step that begins notes them in stages
    whose place, the first `after` of a row, is behind its synchronisation. The others waited in the row before, and
    both rows would be long. Ranks that leave together have rows of one length. So where a rank's row is too short, its
    next one too long, and a stage at its beginning has more than it usually has, that belongs to the row before.

    >>> rows = np.tile([0, 5, 1], (5, 2, 1))         # other, data and sync of two ranks
    >>> rows[2, 1, 2], rows[3, 0, 0] = 101, 100      # rank 1 waited 100 before rank 0 noted them
    >>> _put_back(rows, np.ones((5, 2), bool), after=1)[2:4].tolist()
    [[[100, 5, 1], [0, 5, 101]], [[0, 5, 1], [0, 5, 1]]]
    """
    whole: Bools = np.asarray(valid.all(1))
    if len(rows) < 3 or not whole.any():
        return rows
    length = rows.sum(2)
    ranked = np.sort(length, axis=1)
    half = length.shape[1] // 2
    short = ranked[:-1, half, None] - length[:-1]
    long = length[1:] - ranked[1:, length.shape[1] - 1 - half, None]
    left = np.where((whole[:-1] & whole[1:])[:, None], np.maximum(np.minimum(short, long), 0), 0)
    usual = np.median(rows[whole][:, :, :after], axis=0).astype(np.int64)
    moved = rows.copy()
    for stage in reversed(range(after)):
        part = np.minimum(left, np.maximum(rows[1:, :, stage] - usual[:, stage], 0))
        moved[:-1, :, stage] += part
        moved[1:, :, stage] -= part
        left = left - part
    return moved
