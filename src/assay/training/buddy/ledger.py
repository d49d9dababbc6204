"""An application that only checks: every row is handled once, by whom it was sent to, and before its barrier ends.

Ranks send numbered rows to drawn ranks, and handlers send some of them on, twice at most. Whose handler should see
which row in which epoch follows from the numbers alone, so each rank knows at a barrier what must have arrived.
"""

from __future__ import annotations

import numpy as np

from assay.training.buddy.client import Comm
from assay.training.buddy.rings import Ints

EPOCHS, ROWS, HOPS = 3, 700, 2


def to(number: Ints, hop: int, size: int) -> Ints:
    """Who gets a row at its so many-th hop."""
    return np.asarray((number * 2654435761 + hop * 40503 >> 7) % size)


def sent(rank: int, epoch: int) -> Ints:
    """The numbers of a rank's rows."""
    return np.arange(ROWS) + ROWS * (epoch + EPOCHS * rank)


def goes_on(number: Ints, hop: int) -> Ints:
    """Those of them that are sent on."""
    return number[number // 3**hop % 3 == 0] if hop < HOPS else number[:0]


def expected(rank: int, size: int, epoch: int) -> Ints:
    """All (number, hop) that a rank has to see in an epoch, as one number each, in order."""
    number, found = np.concatenate([sent(each, epoch) for each in range(size)]), []
    for hop in range(HOPS + 1):
        found.append(4 * number[to(number, hop, size) == rank] + hop)
        number = goes_on(number, hop)
    return np.sort(np.concatenate(found))


def ledger(comm: Comm) -> Ints:
    """Of every epoch: rows seen, rows that should have been, and whether they were the same ones; rows out of time."""
    now, seen, strays, found = 0, [], 0, []

    def see(rows: Ints) -> None:
        nonlocal strays
        number, epoch, hops = rows.T
        strays += int((epoch != now).sum())
        seen.append(4 * number + hops)
        for hop in range(HOPS):
            some = goes_on(number[hops == hop], hop)
            if len(some):
                on = np.column_stack([some, np.full(len(some), now), np.full(len(some), hop + 1)])
                comm.send(to(some, hop + 1, comm.size), on)

    comm.on(0, see)
    for epoch in range(EPOCHS):
        now = epoch
        number = sent(comm.rank, epoch)
        for some in np.array_split(number, 7):
            comm.send(to(some, 0, comm.size), np.column_stack([some, np.full(len(some), epoch), 0 * some]))
            comm.poll()
        comm.quiet()
        got = np.sort(np.concatenate(seen)) if seen else number[:0]
        should = expected(comm.rank, comm.size, epoch)
        found += [len(got), len(should), int(np.array_equal(got, should))]
        seen.clear()
    return np.array([*found, strays])
