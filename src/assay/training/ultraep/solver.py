"""The plan of a microbatch: the lowest load that greedy exports can bring every rank down to, and who sends what where.

Plain loops over small arrays, compiled: a plan has to be there before the tokens leave. Sorting is left to NumPy, which
need not be compiled. Of equals the lowest number is taken, so that all ranks that know the counts find the same plan.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Ints = NDArray[np.int64]
GOLDEN = 0.6180339887498949


def solve(
    total: Ints, main: Ints, ranks: int, slots: int, least: int, precision: float, keep: int
) -> tuple[int, bool, Ints]:
    """The threshold, whether small exports were needed for it, and the exports (expert, rank, tokens), one a row.

    `total[e]` are the tokens of expert e, `main[e]` its rank. Bisection over what the busiest rank may have, until the
    ends are within `precision` of each other; exports below `least` are tried only where it fails without them.
    """
    load = np.bincount(main, weights=total, minlength=ranks).astype(np.int64)
    ranked = np.argsort(-load, kind="stable")
    grouped = np.lexsort((-total, main))
    first = np.searchsorted(main[grouped], np.arange(ranks + 1))
    found = np.empty((2, ranks * slots + 1, 3), np.int64)
    threshold, relaxed, count = _bisect(
        total, load, ranked, grouped, first, slots, least, precision, keep, found[0], found[1]
    )
    return int(threshold), bool(relaxed), found[0, :count].copy()


@njit(cache=True, nogil=True)
def _bisect(
    total: Ints, load: Ints, ranked: Ints, grouped: Ints, first: Ints, slots: int, least: int, precision: float,
    keep: int, best: Ints, tried: Ints,
) -> tuple[int, bool, int]:  # fmt: skip
    """The threshold, whether it took small exports, and how many exports of `best` are meant."""
    ranks, everything = len(load), 0
    for g in range(ranks):
        everything += load[g]
    low, high = -(-everything // ranks) - 1, load[ranked[0]]  # nothing is below the mean; as it is, no exports
    relaxed, count = False, 0
    while high > low + 1 and high > (low + 1) * (1 + precision):
        tau = (low + high) // 2
        made, small = _exports(tau, total, load, ranked, grouped, first, slots, least, False, keep, tried), False
        if made < 0:
            small = True
            made = _exports(tau, total, load, ranked, grouped, first, slots, least, True, keep, tried)
        if made < 0:
            low = tau
            continue
        high, relaxed, count = tau, small, made
        for k in range(count):
            for column in range(3):
                best[k, column] = tried[k, column]
    return high, relaxed, count


@njit(cache=True, nogil=True)
def _exports(
    tau: int, total: Ints, load: Ints, ranked: Ints, grouped: Ints, first: Ints, slots: int, least: int, small: bool,
    keep: int, found: Ints,
) -> int:  # fmt: skip
    """How many exports it takes until nobody has more than `tau`, the busiest ranks' first; -1 where they fail."""
    ranks, over, under = len(load), 0, 0
    slack, free = np.empty(ranks, np.int64), np.empty(ranks, np.int64)
    for g in range(ranks):
        slack[g], free[g] = max(tau - load[g], 0), slots
        over += max(load[g] - tau, 0)
        under += slack[g]
    if over > under:
        return -1
    count = 0
    for g in ranked:
        need = load[g] - tau
        if need <= 0:
            break
        for place in range(first[g], first[g + 1]):
            e = grouped[place]
            left, begun = total[e] - keep, count  # no rank hosts e twice: its exports are those from here on
            while need > 0 and left > 0:
                best, open_to = -1, 0
                for other in range(ranks):
                    if slack[other] > 0 and free[other] > 0 and not _hosted(found, begun, count, other):
                        open_to += 1
                        if best < 0 or slack[other] > slack[best]:
                            best = other
                if best < 0:
                    break
                q = min(need, slack[best], left)
                # Where only small exports are left, an equal share of the need is large enough.
                if q < (min(least, -(-need // open_to)) if small else least):
                    break
                found[count, 0], found[count, 1], found[count, 2] = e, best, q
                count += 1
                need -= q
                left -= q
                slack[best] -= q
                free[best] -= 1
        if need > 0:
            return -1
    return count


@njit(cache=True, nogil=True)
def _hosted(found: Ints, begun: int, count: int, rank: int) -> bool:
    hosted = False
    for place in range(begun, count):
        hosted |= found[place, 1] == rank
    return hosted


def split(load: Ints, main: Ints, ranks: int, exports: Ints) -> Ints:
    """Tokens [source, expert, rank] that fill every instance's quota, those of its own rank first.

    What is left of each source goes to the instances in proportion to the room they still have, in whole tokens by
    largest remainders; since they have room for exactly what is left, all of it goes somewhere.
    """
    tokens = np.zeros((*load.shape, ranks), np.int64)
    ordered = exports[np.argsort(exports[:, 0], kind="stable")]
    first = np.searchsorted(ordered[:, 0], np.arange(load.shape[1] + 1))
    _divide(tokens, load, main, ordered, first)
    return tokens


@njit(cache=True, nogil=True)
def _divide(tokens: Ints, load: Ints, main: Ints, exports: Ints, first: Ints) -> None:
    """Every expert's tokens over its main rank and its exports, which lie by expert from `first` on."""
    sources = len(load)
    most = len(exports) + 1
    room, part, rest = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most, np.int64)
    hosts, left = np.empty(most, np.int64), np.empty(sources, np.int64)
    for e in range(len(main)):
        count, spare = first[e + 1] - first[e] + 1, 0
        hosts[0], room[0] = main[e], 0
        for r in range(sources):
            left[r] = load[r, e]
            room[0] += load[r, e]
        for i in range(1, count):
            hosts[i], room[i] = exports[first[e] + i - 1, 1], exports[first[e] + i - 1, 2]
            room[0] -= room[i]
        for i in range(count):
            own = min(left[hosts[i]], room[i]) if hosts[i] < sources else 0
            if own:
                tokens[hosts[i], e, hosts[i]] = own
                left[hosts[i]] -= own
                room[i] -= own
            spare += room[i]
        for r in range(sources):
            if left[r]:
                _proportional(left[r], room, spare, count, part, rest)
                for i in range(count):
                    tokens[r, e, hosts[i]] += part[i]
                    room[i] -= part[i]
                spare -= left[r]


@njit(cache=True, nogil=True)
def _proportional(amount: int, room: Ints, spare: int, count: int, part: Ints, rest: Ints) -> None:
    """Whole parts of an amount in proportion to the room, by largest remainders."""
    missing = amount
    for i in range(count):
        part[i], rest[i] = amount * room[i] // spare, amount * room[i] % spare
        missing -= part[i]
    for _ in range(missing):
        largest = 0
        for i in range(1, count):
            if rest[i] > rest[largest]:
                largest = i
        part[largest] += 1
        rest[largest] = -1


def destinations(experts: Ints, share: Ints) -> Ints:
    """The rank that computes each routed token of one source; `share[e, g]` is its row of the split.

    Tokens of an expert meet its instances in a scattered order: neighbours in a sequence are alike, and in their own
    order all of a long stretch would go to one rank at once.
    """
    count = share.sum(axis=1)
    stride = np.maximum(1, (GOLDEN * count).astype(np.int64))
    while (shared := np.gcd(stride, count) > 1).any():
        stride += shared
    found = np.empty(len(experts), np.int64)
    _scatter(experts, np.cumsum(share, axis=1), count, stride, np.zeros(len(count), np.int64), found)
    return found


@njit(cache=True, nogil=True)
def _scatter(experts: Ints, ends: Ints, count: Ints, stride: Ints, seen: Ints, found: Ints) -> None:
    for t in range(len(experts)):
        e = experts[t]
        place = seen[e] * stride[e] % count[e]
        low, high = 0, ends.shape[1] - 1  # the first rank whose tokens end behind this place
        while low < high:
            middle = (low + high) // 2
            if ends[e, middle] > place:
                high = middle
            else:
                low = middle + 1
        found[t] = low
        seen[e] += 1
