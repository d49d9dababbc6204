"""Back along the waits from what ended last: the critical path, of recorded runs and of replays alike.

Each op knows what it waited for: the op before it on its lane, one elsewhere, the host's call, the members of its
collective. The walk goes from the last end to the first start; its pieces follow one another without a gap.

>>> start, end, nothing, none = np.array([0, 60]), np.array([60, 90]), np.array([-1, -1]), np.zeros(0, np.int64)
>>> lanes = np.array([-1, 0])
>>> pieces = walk_back(1, 0, 95, np.zeros(2, bool), np.zeros(2, np.int64), start, end, nothing, lanes, nothing, nothing,
...                    nothing, np.arange(2), none, none, False)
>>> pieces.tolist()  # kind, op, from, to: after the last op the host, then the ops
[[5, 1, 90, 95], [0, 1, 60, 90], [0, 0, 0, 60]]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

SLACK = 10_000  # ns that a kernel may sit between its launch and its start for no reason
KINDS = ("kernel", "comm", "memcpy", "gap", "launch", "host", "sync")
KERNEL, COMM, MEMCPY, GAP, LAUNCH, HOST, SYNC = range(len(KINDS))
_JIT: dict[str, Any] = {"cache": True, "nogil": True}
Ints = NDArray[np.int64]


def arrivals(collective: Ints, start: Ints) -> Ints:
    """For each op of a collective the one that came to it last; otherwise itself."""
    found = np.arange(len(start))
    joined = np.flatnonzero(collective >= 0)
    order = joined[np.lexsort((start[joined], collective[joined]))]
    closes = np.append(collective[order][1:] != collective[order][:-1], True)[: len(order)]
    latest = order[closes]
    found[order] = latest[np.searchsorted(collective[latest], collective[order])]
    return found


@njit(**_JIT)
def walk_back(
    i: int, first: int, last: int, host: Any, kind: Any, start: Any, end: Any, called: Any, before: Any, other: Any,
    crowd: Any, after_sync: Any, arrivals: Any, sync_end: Any, sync_op: Any, empty: bool,
) -> Any:  # fmt: skip
    """Back from op i to the window's start: rows of (kind, op, start, end), the last piece first.

    `empty`: ops that took no time are pieces too.
    """
    room = 5 * len(start) + 8
    pieces = np.empty((room, 4), np.int64)
    count, now = _add(pieces, 0, HOST, i, max(end[i], first), last)  # from the last op to the window's end
    for _ in range(len(start) + len(sync_end) + 1):  # no op is met twice
        if now <= first or count + 5 > room:
            break
        if start[arrivals[i]] < now or (empty and start[arrivals[i]] == now):
            i = arrivals[i]
        if empty and start[i] == now:
            pieces[count, 0], pieces[count, 1], pieces[count, 2], pieces[count, 3] = kind[i], i, now, now
            count += 1
        count, now = _add(pieces, count, kind[i], i, max(start[i], first), now)
        ready, source, reason = called[i], -1, GAP
        if before[i] >= 0 and end[before[i]] >= ready:
            ready, source = end[before[i]], before[i]
        if other[i] >= 0 and end[other[i]] > ready:
            ready, source = end[other[i]], other[i]
        j = crowd[i]
        if j >= 0 and now - ready > SLACK:
            count, now = _add(pieces, count, kind[j], j, max(start[j], ready, first), now)
            if start[j] > ready:
                i = j
                continue
        if source < 0 and called[i] >= 0:  # the host was late: back to what it waited for
            k = after_sync[i]
            count, now = _add(pieces, count, LAUNCH, i, max(called[i], first), now)
            count, now = _add(pieces, count, HOST, i, max(sync_end[k], first) if k >= 0 else first, now)
            if k >= 0:
                source, reason = sync_op[k], SYNC
        if source < 0:
            break
        if host[i]:
            reason = LAUNCH if kind[i] == COMM else SYNC if kind[source] == COMM else HOST
        i = source
        count, now = _add(pieces, count, reason, i, max(end[i], first), now)
    count, now = _add(pieces, count, HOST if host[i] else GAP, i, first, now)
    return pieces[:count]


@njit(**_JIT)
def _add(pieces: Any, count: int, kind: int, op: int, until: int, now: int) -> Any:
    """Append the piece from `until` to `now`, if it is one; the count and the time after it."""
    if until >= now:
        return count, now
    pieces[count, 0], pieces[count, 1], pieces[count, 2], pieces[count, 3] = kind, op, until, now
    return count + 1, until
