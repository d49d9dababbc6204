"""Many small committees drawn once and for all, who listens to whom, and an adversary who picks its victims afterwards.

A plan is public and fixed before anybody is corrupted: so many committees, each of so many parties drawn at random, and
for each party and committee a few members the party listens to (a sparse bipartite graph). Everything is a function of
the seed, so every party, the counting kernels below and the adversary see the same plan.

>>> plan = Plan(n=8, committees=5, size=4, links=3, missing=1, faults=1)
>>> plan.members().shape, plan.heard(0).shape
((5, 4), (8, 3))
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit
from assay.sim.random import below, bits, key

Integers = npt.NDArray[np.int32]
Bits = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Plan:
    """Committees over n parties."""

    n: int
    committees: int
    size: int
    links: int
    """Members of a committee that a party listens to; more than half must tell it the same."""
    missing: int
    """Committees whose bits a party does not wait for."""
    faults: int
    """Parties that may be corrupted."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.links <= self.size <= self.n:
            raise ValueError(f"{self.links} links to {self.size} members of {self.n}; links <= members <= n expected")

    def members(self) -> Integers:
        """The members of each committee, without repetition."""
        drawn: Integers = _members(self.n, self.committees, self.size, np.uint64(key(self.seed, "committees")))
        return drawn

    def heard(self, committee: int) -> Integers:
        """For each party the places (0 to size - 1) of the members it listens to."""
        drawn: Integers = _heard(self.n, self.size, self.links, self._links_key(), committee)
        return drawn

    def _links_key(self) -> Any:
        return np.uint64(key(self.seed, "links"))

    def tally(self, members: Integers, bits_: Bits, corrupted: Bits, bad: Bits) -> Tally:
        """Publishes every committee's bit to every party, message by message. Corrupted members send nothing.

        `bad` committees are the adversary's: whatever a party takes from them is up to it.
        """
        right, sent = _tally(members, bits_, corrupted, bad, self.n, self.links, self._links_key())
        return Tally(self.committees, right[:, 0], right[:, 1], sent)


@dataclass(frozen=True)
class Tally:
    """What publishing brought."""

    committees: int
    zeros: npt.NDArray[np.int64]
    """Of each party: committees from which it surely takes the bit 0."""
    ones: npt.NDArray[np.int64]
    sent: npt.NDArray[np.int64]
    """Of each committee: messages from its correct members to other parties."""

    def pushable(self, missing: int) -> tuple[Bits, Bits]:
        """Whether an adversary can make each party count more zeros, and more ones.

        It fills in what the party does not surely take, and holds back as many bits as the party does not wait for.
        Ties are the adversary's.
        """
        free = self.committees - self.zeros - self.ones
        to_zero = self.zeros + free >= self.ones - missing
        to_one = self.ones + free >= self.zeros - missing
        return to_zero.astype(np.uint8), to_one.astype(np.uint8)


# Plain loops throughout: whole-array expressions would compile three times as long, and run no faster.


@njit(cache=True, nogil=True)
def _members(n: Any, committees: Any, size: Any, word: Any) -> Any:
    """A partial shuffle for each committee; it goes on from the last one's order, which is as good as any."""
    order = np.empty(n, np.int32)
    for party in range(n):
        order[party] = party
    chosen = np.empty((committees, size), np.int32)
    for committee in range(committees):
        _draw(order, size, word, committee * size)
        for place in range(size):
            chosen[committee, place] = order[place]
    return chosen


@njit(cache=True, nogil=True)
def _draw(order: Any, count: Any, word: Any, counter: Any) -> None:
    n = len(order)
    for place in range(count):
        other = place + int(below(bits(word, np.uint64(counter + place)), np.uint64(n - place)))
        kept = order[place]
        order[place] = order[other]
        order[other] = kept


@njit(cache=True, nogil=True)
def _heard(n: Any, size: Any, links: Any, word: Any, committee: Any) -> Any:
    order = np.empty(size, np.int32)
    for place in range(size):
        order[place] = place
    chosen = np.empty((n, links), np.int32)
    for party in range(n):
        _draw(order, links, word, (committee * n + party) * links)
        for place in range(links):
            chosen[party, place] = order[place]
    return chosen


@njit(cache=True, nogil=True)
def _tally(members: Any, tossed: Any, corrupted: Any, bad: Any, n: Any, links: Any, word: Any) -> Any:
    committees, size = members.shape
    right = np.zeros((n, 2), np.int64)
    sent = np.zeros(committees, np.int64)
    order = np.empty(size, np.int32)
    for committee in range(committees):
        for place in range(size):
            order[place] = place
        for party in range(n):
            _draw(order, links, word, (committee * n + party) * links)
            told = 0
            for place in range(links):
                member = members[committee, order[place]]
                if not corrupted[member]:
                    told += 1
                    if member != party:
                        sent[committee] += 1
            if 2 * told > links and not bad[committee]:
                right[party, tossed[committee]] += 1
    return right, sent


# ------------------------------------------------------------------------------------------------ the adversary


BASES = (1.5, 2.0, 3.0)


def corrupt(members: Integers, n: int, budget: int, most: int, wanted: Bits) -> Bits:
    """Corrupts parties one by one, each time the one that brings most wanted committees closest to falling.

    A committee falls when more than `most` members are corrupted. One with x corrupted members pulls with a weight
    that is exponential in x, so that nearly fallen ones are finished off first; the best of several bases is taken. The
    adversary is adaptive: it sees the plan and, through `wanted`, what the coins showed.
    """
    tries = [_greedy(members, n, budget, most, wanted, base) for base in BASES]
    return max(tries, key=lambda corrupted: int((fallen(members, corrupted, most) & wanted).sum()))


def _greedy(members: Integers, n: int, budget: int, most: int, wanted: Bits, base: float) -> Bits:
    loads = np.arange(members.shape[1] + 2)
    weights = np.where(loads <= most, base ** np.minimum(loads, most), 0.0)
    chosen: Bits = _corrupt(members, n, budget, wanted, weights)
    return chosen


def fallen(members: Integers, corrupted: Bits, most: int) -> Bits:
    """Committees with more than `most` corrupted members.

    >>> fallen(np.array([[0, 1], [1, 2]], np.int32), np.array([1, 0, 0], np.uint8), most=0).tolist()
    [1, 0]
    """
    down: Bits = (corrupted[members].sum(axis=1) > most).astype(np.uint8)
    return down


@njit(cache=True, nogil=True)
def _corrupt(members: Any, n: Any, budget: Any, wanted: Any, weights: Any) -> Any:
    """`weights[x]`: how a committee with x corrupted members pulls; 0 once it has fallen."""
    committees, size = members.shape
    first = np.zeros(n + 2, np.int64)  # where a party's seats begin, after two passes of counting
    for committee in range(committees):
        for place in range(size):
            first[members[committee, place] + 2] += 1
    for party in range(1, n + 2):
        first[party] += first[party - 1]
    seats = np.empty(committees * size, np.int32)
    pull = np.zeros(n)
    for committee in range(committees):
        for place in range(size):
            party = members[committee, place]
            seats[first[party + 1]] = committee
            first[party + 1] += 1
            pull[party] += wanted[committee] * weights[0]
    load = np.zeros(committees, np.int64)
    corrupted = np.zeros(n, np.uint8)
    for _ in range(budget):
        victim = -1
        for party in range(n):
            if not corrupted[party] and (victim < 0 or pull[party] > pull[victim]):
                victim = party
        corrupted[victim] = 1
        for seat in range(first[victim], first[victim + 1]):
            committee = seats[seat]
            change = wanted[committee] * (weights[load[committee] + 1] - weights[load[committee]])
            load[committee] += 1
            for place in range(size):
                pull[members[committee, place]] += change
    return corrupted
