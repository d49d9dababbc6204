"""Flows that share links: who gets how much (max-min fair), and when everything has arrived.

A flow takes a path of directed links. Rates rise together until a link is full; the flows on it stay where they are and
the others rise on, until every flow is held by a full link. No flow can then get more without taking from one that has
no more than it. Rates change only when a flow begins or ends, and only among flows that share links, directly or
through others: :func:`deliver` solves just these anew.

>>> max_min([[0], [0], [1], [0, 1]], capacity=[3.0, 3.0]).tolist()  # two links; the last flow takes both
[1.0, 1.0, 2.0, 1.0]

- Bertsekas, Gallager, "Data Networks", 1992, section 6.5.2: progressive filling.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SAME = 1e-12  # relative: links that fill up together, events at the same instant


class Rows(NamedTuple):
    """Lists of numbers, one behind the other: `indices[indptr[i]:indptr[i + 1]]` is the i-th."""

    indptr: Ints
    indices: Ints

    def take(self, which: Ints) -> Rows:
        """Some of the lists, in any order, also several times.

        >>> rows([[4], [], [2, 3]]).take(np.array([2, 0, 2])).indices.tolist()
        [2, 3, 4, 2, 3]
        """
        sizes, indptr = np.diff(self.indptr)[which], np.zeros(len(which) + 1, np.int64)
        np.cumsum(sizes, out=indptr[1:])
        shift = np.repeat(self.indptr[which] - indptr[:-1], sizes)
        return Rows(indptr, self.indices[np.arange(indptr[-1]) + shift])


def rows(lists: Sequence[ArrayLike] | Rows) -> Rows:
    """Lists of numbers as compressed rows.

    >>> indptr, indices = rows([[4], [], [2, 3]])
    >>> indptr.tolist(), indices.tolist()
    ([0, 1, 1, 3], [4, 2, 3])
    """
    if isinstance(lists, Rows):
        return lists
    parts = [np.asarray(part, np.int64).reshape(-1) for part in lists]
    indptr = np.zeros(len(parts) + 1, np.int64)
    np.cumsum([part.size for part in parts], out=indptr[1:])
    return Rows(indptr, np.concatenate(parts) if parts else np.empty(0, np.int64))


def max_min(paths: Sequence[ArrayLike], capacity: ArrayLike) -> Floats:
    """The max-min fair rate of each flow; infinite for one that needs no link.

    Args:
        paths: the links of each flow, none of them twice.
        capacity: of each link, in bytes a second.

    Raises:
        ValueError: a path names a link that is not there.
    """
    indptr, links = rows(paths)
    limits = np.asarray(capacity, np.float64)
    _check(links, limits)
    rates = np.empty(len(paths))
    _fill(np.arange(len(paths)), len(paths), indptr, links, limits, rates, np.empty(limits.size), _zeros(limits.size))
    return rates


def deliver(
    paths: Sequence[ArrayLike] | Rows,
    nbytes: ArrayLike,
    capacity: ArrayLike,
    *,
    latency: ArrayLike = 0.0,
    after: Sequence[ArrayLike] | Rows | None = None,
    queue: ArrayLike | None = None,
) -> Floats:
    """When each flow has arrived, where all of them share the links fairly.

    A flow begins when all flows that it comes `after` have arrived and, in its `queue`, the one before it has left;
    it has arrived `latency` after its last byte has left.

    >>> deliver([[0], [0], [0]], [1e9, 1e9, 2e9], [1e9], after=[[], [], [0]]).tolist()  # two share, then one alone
    [2.0, 2.0, 4.0]

    Raises:
        ValueError: flows that wait for each other, or a path over a link that is not there.
    """
    indptr, links = rows(paths)
    count = indptr.size - 1
    limits = np.asarray(capacity, np.float64)
    _check(links, limits)
    before_ptr, before = rows(after if after is not None else [[]] * count)
    queues = np.arange(count) if queue is None else np.asarray(queue, np.int64)
    previous = _previous(queues)
    sizes = np.broadcast_to(np.asarray(nbytes, np.float64), count).copy()
    delays = np.broadcast_to(np.asarray(latency, np.float64), count).copy()
    followers_ptr, followers = _turned(before_ptr, before, count)
    missing = np.diff(before_ptr) + (previous >= 0)
    successor = np.full(count, -1, np.int64)
    successor[previous[previous >= 0]] = np.flatnonzero(previous >= 0)
    finish = _deliver(indptr, links, limits, sizes, delays, missing, followers_ptr, followers, successor)
    if np.isnan(finish).any():
        raise ValueError(f"flow {int(np.flatnonzero(np.isnan(finish))[0])} waits for one that waits for it")
    return finish


def _check(links: Ints, capacity: Floats) -> None:
    if links.size and not 0 <= links.min() <= links.max() < capacity.size:
        raise ValueError(f"a path names link {int(links.max())}; there are links 0 to {capacity.size - 1}")
    if not (capacity > 0).all():
        raise ValueError("every link needs a capacity above 0")


def _previous(queues: Ints) -> Ints:
    """The flow before each in its queue, or -1."""
    previous = np.full(queues.size, -1, np.int64)
    order = np.argsort(queues, kind="stable")
    same = queues[order][1:] == queues[order][:-1]
    previous[order[1:][same]] = order[:-1][same]
    return previous


def _turned(indptr: Ints, indices: Ints, count: int) -> tuple[Ints, Ints]:
    """Compressed rows the other way round: who comes after each."""
    owner = np.repeat(np.arange(count), np.diff(indptr))
    order = np.argsort(indices, kind="stable")
    turned = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(indices, minlength=count), out=turned[1:])
    return turned, owner[order]


def _zeros(n: int) -> Ints:
    return np.zeros(n, np.int64)


@njit(cache=True)
def _fill(
    flows: Ints, count: int, indptr: Ints, links: Ints, capacity: Floats, rates: Floats, room: Floats, users: Ints
) -> None:
    """Rates of the first `count` of `flows`, which share no link with others; `users` is all zero, before and after."""
    touched = np.empty(indptr[-1], np.int64)
    found = 0
    for i in range(count):
        f = flows[i]
        rates[f] = -1.0
        for j in range(indptr[f], indptr[f + 1]):
            link = links[j]
            if users[link] == 0:
                touched[found] = link
                found += 1
                room[link] = capacity[link]
            users[link] += 1
    left = count
    while left > 0:
        level = np.inf
        for i in range(found):
            if users[touched[i]] > 0:
                level = min(level, room[touched[i]] / users[touched[i]])
        for i in range(count):
            f = flows[i]
            if rates[f] >= 0:
                continue
            held = level == np.inf  # no link is left: the flow needs none
            for j in range(indptr[f], indptr[f + 1]):
                held |= room[links[j]] <= level * users[links[j]] * (1 + 1e-9)
            if held:
                rates[f] = level
                left -= 1
                for j in range(indptr[f], indptr[f + 1]):
                    room[links[j]] -= level
                    users[links[j]] -= 1
    for i in range(found):
        users[touched[i]] = 0


@njit(cache=True)
def _component(active: Ints, count: int, indptr: Ints, links: Ints, dirty: NDArray[np.bool_], chosen: Ints) -> int:
    """Active flows on dirty links, and on links of such flows, and so on, into `chosen`; how many they are."""
    found, grew = 0, True
    taken = np.zeros(count, np.bool_)
    while grew:
        grew = False
        for i in range(count):
            if taken[i]:
                continue
            f = active[i]
            touches = indptr[f] == indptr[f + 1]
            for j in range(indptr[f], indptr[f + 1]):
                touches |= dirty[links[j]]
            if touches:
                taken[i], grew = True, True
                chosen[found] = f
                found += 1
                for j in range(indptr[f], indptr[f + 1]):
                    dirty[links[j]] = True
    return found


@njit(cache=True)
def _until(active: Ints, left: Floats, rates: Floats, arrivals: Floats, now: float) -> float:
    """Seconds until the next flow has left or has arrived."""
    step = np.inf
    for f in active:
        step = min(step, left[f] / rates[f])
    for arrival in arrivals:
        step = min(step, arrival - now)
    return max(step, 0.0)


@njit(cache=True)
def _arrived(
    arriving: Ints, count: int, finish: Floats, now: float, followers_ptr: Ints, followers: Ints, missing: Ints,
    waiting: Ints, n_waiting: int,
) -> tuple[int, int]:  # fmt: skip
    """Let those begin that waited for what is there by now; how many are still on their way, and how many may begin."""
    kept = 0
    for i in range(count):
        f = arriving[i]
        if finish[f] > now * (1 + _SAME):
            arriving[kept] = f
            kept += 1
            continue
        for j in range(followers_ptr[f], followers_ptr[f + 1]):
            missing[followers[j]] -= 1
            if missing[followers[j]] == 0:
                waiting[n_waiting] = followers[j]
                n_waiting += 1
    return kept, n_waiting


@njit(cache=True)
def _deliver(
    indptr: Ints, links: Ints, capacity: Floats, left: Floats, latency: Floats, missing: Ints, followers_ptr: Ints,
    followers: Ints, successor: Ints,
) -> Floats:  # fmt: skip
    """Jump from change to change: a flow becomes ready, has left, or has arrived."""
    count = left.size
    finish = np.full(count, np.nan)
    rates, room, users = np.zeros(count), np.empty(capacity.size), np.zeros(capacity.size, np.int64)
    dirty = np.zeros(capacity.size, np.bool_)
    active, waiting, arriving = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    chosen = np.empty(count, np.int64)
    n_active, n_waiting, n_arriving, now = 0, 0, 0, 0.0
    for f in range(count):
        if missing[f] == 0:
            waiting[n_waiting] = f
            n_waiting += 1
    while n_active + n_waiting + n_arriving > 0:
        changed = False
        for i in range(n_waiting):  # they begin now
            f = waiting[i]
            active[n_active] = f
            n_active += 1
            changed = True
            for j in range(indptr[f], indptr[f + 1]):
                dirty[links[j]] = True
        n_waiting = 0
        if changed or dirty.any():
            some = _component(active, n_active, indptr, links, dirty, chosen)
            _fill(chosen, some, indptr, links, capacity, rates, room, users)
            dirty[:] = False
        step = _until(active[:n_active], left, rates, finish[arriving[:n_arriving]], now)
        now += step
        kept = 0
        for i in range(n_active):
            f = active[i]
            left_now = left[f] - rates[f] * step if rates[f] < np.inf else 0.0
            if left_now <= rates[f] * now * _SAME or rates[f] == np.inf:
                left[f] = 0.0
                finish[f] = now + latency[f]
                arriving[n_arriving] = f
                n_arriving += 1
                for j in range(indptr[f], indptr[f + 1]):
                    dirty[links[j]] = True
                if successor[f] >= 0:
                    missing[successor[f]] -= 1
                    if missing[successor[f]] == 0:
                        waiting[n_waiting] = successor[f]
                        n_waiting += 1
            else:
                left[f] = left_now
                active[kept] = f
                kept += 1
        n_active = kept
        n_arriving, n_waiting = _arrived(
            arriving, n_arriving, finish, now, followers_ptr, followers, missing, waiting, n_waiting
        )
    return finish
