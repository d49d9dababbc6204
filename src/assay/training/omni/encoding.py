"""One microbatch's images on all ranks of a copy: short ones whole, long ones cut over a group, as even as can be.

Long-short sequence parallelism: the longest images are each cut over a group of ranks by heads and sequence (Ulysses),
which costs exchanges; all others are dealt whole, longest first, on top of what the groups hold. How many are long is
decided anew for every microbatch, by the makespan (inferred; the paper says that there is a threshold). A job without
it has to leave all images whole or cut all of them.

>>> work = np.array([80.0, 3.0, 3.0, 3.0, 3.0])  # one image is longer than all others together
>>> [makespan(work, work / 4 + 1, ranks=4, group=4, how=how) for how in ("mixed", "whole", "cut")]
[24.0, 80.0, 28.0]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.sim.compiled import njit
from assay.training.interface import Floats, Ints

HOW = ("whole", "mixed", "cut")  # images stay whole, long ones are cut, all are cut


def makespan(whole: Floats, cut: Floats, ranks: int, group: int, *, balanced: bool = True, how: str = "mixed") -> float:
    """Seconds until the last rank is through.

    Args:
        whole: seconds of each image on one rank.
        cut: seconds of each on a group, exchanges included.
        ranks: of the copy.
        group: ranks that share a long image.
        balanced: longest first; without it one after the other, as loaders do.
        how: which images are cut.
    """
    return float(makespans(whole, cut, np.zeros(len(whole), np.int64), 1, ranks, group, balanced, how)[0][0])


def makespans(
    whole: Floats, cut: Floats, bin_of: Ints, bins: int, ranks: int, group: int, balanced: bool = True,
    how: str = "mixed",
) -> tuple[Floats, Ints]:  # fmt: skip
    """The same for the images of many microbatches, `bin_of` says of which; and how many of each are cut."""
    order = np.lexsort((-whole, bin_of))
    first = np.searchsorted(bin_of[order], np.arange(bins + 1))
    way = HOW.index(how) if ranks >= group > 1 else 0
    given = whole[order], cut[order], order.astype(np.int64), first
    times, longs = _makespans(*given, ranks, group, balanced, way)
    return np.asarray(times), np.asarray(longs)


@njit(cache=True)
def _makespans(whole: Any, cut: Any, arrived: Any, first: Any, ranks: int, group: int, balanced: bool, way: int) -> Any:
    found, cuts = np.zeros(len(first) - 1), np.zeros(len(first) - 1, np.int64)
    for b in range(len(found)):
        low, high = first[b], first[b + 1]
        least, most = high - low if way == 2 else 0, 0 if way == 0 else high - low
        best = np.inf
        for long in range(least, most + 1):
            took = _dealt(whole[low:high], cut[low:high], arrived[low:high], long, ranks, group, balanced)
            if took < best * (1 - 1e-9):
                best, cuts[b] = took, long
        found[b] = best
    return found, cuts


@njit(cache=True)
def _dealt(whole: Any, cut: Any, arrived: Any, long: int, ranks: int, group: int, balanced: bool) -> float:
    """The last rank's end if the first `long` images, which are the longest, are cut."""
    groups = ranks // group
    load = np.zeros(ranks)
    for i in range(long):
        best = 0
        for g in range(1, groups):
            if load[g * group] < load[best * group]:
                best = g
        load[best * group : (best + 1) * group] += cut[i]
    rest = np.arange(long, len(whole))
    if not balanced:
        rest = rest[np.argsort(arrived[long:])]
    for turn in range(len(rest)):
        where = turn % ranks
        if balanced:
            for r in range(ranks):
                if load[r] < load[where]:
                    where = r
        load[where] += whole[rest[turn]]
    return float(load.max())
