"""The plan of a microbatch: the lowest load that greedy exports can bring every rank down to, and who sends what where.

Plain loops over small arrays, compiled: a plan has to be there before the tokens leave. Of equals the lowest number is
taken, so that every rank that knows the counts finds the same plan.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit

Ints = NDArray[np.int64]


@njit(cache=True, nogil=True)
def solve(
    total: Ints, main: Ints, ranks: int, slots: int, least: int, precision: float, keep: int
) -> tuple[int, bool, Ints]:
    """The threshold, whether small exports were needed for it, and the exports (expert, rank, tokens), one a row.

    `total[e]` are the tokens of expert e, `main[e]` its rank. Bisection over what the busiest rank may have, until the
    ends are within `precision` of each other; exports below `least` are tried only where it fails without them.
    """
    load = np.zeros(ranks, np.int64)
    for e in range(len(total)):
        load[main[e]] += total[e]
    ranked = np.argsort(-load, kind="mergesort")
    grouped = np.argsort(-total, kind="mergesort")  # by tokens, then in groups of their ranks
    grouped = grouped[np.argsort(main[grouped], kind="mergesort")]
    first = np.searchsorted(main[grouped], np.arange(ranks + 1))
    low, high = -(-load.sum() // ranks) - 1, load.max()  # nothing is below the mean; as it is, nobody needs exports
    relaxed, best = False, np.zeros((0, 3), np.int64)
    while high > low + 1 and high > (low + 1) * (1 + precision):
        tau = (low + high) // 2
        over = np.maximum(load - tau, 0).sum()
        feasible, small = False, False
        if over <= np.maximum(tau - load, 0).sum():
            for small in (False, True):
                feasible, found = _exports(tau, total, load, ranked, grouped, first, slots, least, small, keep)
                if feasible:
                    break
        if feasible:
            high, relaxed, best = tau, small, found
        else:
            low = tau
    return high, relaxed, best


@njit(cache=True, nogil=True)
def _exports(
    tau: int, total: Ints, load: Ints, ranked: Ints, grouped: Ints, first: Ints, slots: int, least: int, small: bool,
    keep: int,
) -> tuple[bool, Ints]:  # fmt: skip
    """Whether nobody needs more than `tau`, and the exports that see to it, the busiest ranks' first."""
    ranks = len(load)
    slack, free = np.maximum(tau - load, 0), np.full(ranks, slots, np.int64)
    found, count = np.empty((ranks * slots, 3), np.int64), 0
    for g in ranked:
        need = load[g] - tau
        if need <= 0:
            break
        for e in grouped[first[g] : first[g + 1]]:
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
            return False, found[:0]
    return True, found[:count]


@njit(cache=True, nogil=True)
def _hosted(found: Ints, begun: int, count: int, rank: int) -> bool:
    hosted = False
    for place in range(begun, count):
        hosted |= found[place, 1] == rank
    return hosted


@njit(cache=True, nogil=True)
def split(load: Ints, main: Ints, ranks: int, exports: Ints) -> Ints:
    """Tokens [source, expert, rank] that fill every instance's quota, those of its own rank first.

    What is left of each source goes to the instances in proportion to the room they still have, in whole tokens by
    largest remainders; since they have room for exactly what is left, all of it goes somewhere.
    """
    sources, experts = load.shape
    tokens = np.zeros((sources, experts, ranks), np.int64)
    order = np.argsort(exports[:, 0], kind="mergesort")
    begin = np.searchsorted(exports[:, 0][order], np.arange(experts + 1))
    for e in range(experts):
        mine = order[begin[e] : begin[e + 1]]
        if len(mine) == 0:
            for r in range(sources):
                tokens[r, e, main[e]] = load[r, e]
            continue
        hosts, room = np.empty(len(mine) + 1, np.int64), np.empty(len(mine) + 1, np.int64)
        hosts[0], room[0] = main[e], load[:, e].sum() - exports[mine, 2].sum()
        hosts[1:], room[1:] = exports[mine, 1], exports[mine, 2]
        left = load[:, e].copy()
        for i in range(len(hosts)):
            if hosts[i] < sources:
                own = min(left[hosts[i]], room[i])
                tokens[hosts[i], e, hosts[i]] += own
                left[hosts[i]] -= own
                room[i] -= own
        _fill(tokens, e, hosts, room, left)
    return tokens


@njit(cache=True, nogil=True)
def _fill(tokens: Ints, e: int, hosts: Ints, room: Ints, left: Ints) -> None:
    """What is left of every source, in proportion to the room of the instances."""
    spare = room.sum()
    for r in range(len(left)):
        if left[r] == 0:
            continue
        part, rest = left[r] * room // spare, left[r] * room % spare
        for _ in range(left[r] - part.sum()):
            largest = np.argmax(rest)
            part[largest] += 1
            rest[largest] = -1
        for i in range(len(hosts)):
            tokens[r, e, hosts[i]] += part[i]
        room -= part
        spare -= left[r]


@njit(cache=True, nogil=True)
def destinations(experts: Ints, share: NDArray[Any]) -> Ints:
    """The rank that computes each routed token of one source; `share[e, g]` is its row of the split.

    Tokens of an expert meet its instances in a scattered order: neighbours in a sequence are alike, and in their own
    order all of a long stretch would go to one rank at once.
    """
    count = share.sum(axis=1)
    ends = np.empty(share.shape, np.int64)
    stride = np.ones(len(count), np.int64)
    for e in range(len(count)):
        ends[e] = np.cumsum(share[e])
        stride[e] = max(1, int(0.6180339887498949 * count[e]))
        while _common(stride[e], count[e]) > 1:
            stride[e] += 1
    seen, found = np.zeros(len(count), np.int64), np.empty(len(experts), np.int64)
    for t in range(len(experts)):
        e = experts[t]
        found[t] = np.searchsorted(ends[e], seen[e] * stride[e] % count[e], side="right")
        seen[e] += 1
    return found


@njit(cache=True, nogil=True)
def _common(a: int, b: int) -> int:
    """The greatest common divisor."""
    while b:
        a, b = b, a % b
    return a
