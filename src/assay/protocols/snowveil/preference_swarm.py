"""Voters who poll each other, compiled: Snowveil, and the ways of agreeing it is compared with.

All of them see an electorate as a matrix of positions (:attr:`assay.workloads.ballots.Profile.positions`), in which a
voter reads only the rows of those it happens to ask. A *poll* asks k different others.

>>> from assay.workloads.ballots import two_camps
>>> camps = two_camps(500, 4, margin=0.2)
>>> leader = int(np.bincount(camps.orders[:, 0]).argmax())
>>> discover(camps.positions, seed=1).winner == leader
True
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.protocols.kernel.draws import Source, integer, source
from assay.protocols.snowveil.voting_rules import DEFAULT, Weights, elected, number
from assay.sim.compiled import njit
from assay.sim.random import stream

Positions = npt.NDArray[np.int16]


@dataclass(frozen=True)
class Outcome:
    """How an electorate ended: how many settled on whom, and after how many polls in all."""

    votes: npt.NDArray[np.int64]
    """Honest voters that settled, by candidate."""
    polls: int
    settled: bool
    """Whether all honest voters settled before the cap."""

    @property
    def winner(self) -> int | None:
        """On whom most settled; the lowest number of several; None if nobody did."""
        return int(np.argmax(self.votes)) if self.votes.any() else None

    @property
    def agreement(self) -> float:
        """The share of the settled that agree with the most."""
        return float(self.votes.max() / max(1, self.votes.sum()))


@dataclass(frozen=True)
class Patience:
    """How often in a row a poll must name the same candidate: ``most`` at first, less with a voter's every poll."""

    most: int = 6
    least: int = 2
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most or not 0 < self.decay <= 1:
            raise ValueError(f"patience from {self.most} to {self.least} by {self.decay}; falling, and at least 1")

    def needed(self, polls: int) -> int:
        """The streak that a voter wants after so many polls of its own.

        >>> [Patience().needed(polls) for polls in (0, 10, 1000)]
        [6, 4, 2]
        """
        return max(self.least, math.ceil(self.most * self.decay**polls))

    @property
    def table(self) -> npt.NDArray[np.int64]:
        """``needed`` for all polls up to the one from which on it stays the same."""
        rows = [self.needed(0)]
        while rows[-1] > self.least and self.decay < 1:
            rows.append(self.needed(len(rows)))
        return np.array(rows, np.int64)


STANDARD = Patience()


def discover(
    positions: Positions, *, rule: str = "chb", weights: Weights = DEFAULT, sample: int = 21,
    patience: Patience = STANDARD, finality: float = 1.0, liars: float = 0.0, target: int = 0, seed: int = 0,
    max_polls: int | None = None,
) -> Outcome:  # fmt: skip
    """Snowveil: a random unsettled voter polls, counts the sample by the rule, and settles once convinced.

    Settled voters answer with their candidate moved to the top: that is the feedback. A random share ``liars`` of
    the voters never settles and answers with ``target`` on top and the others reversed. The round ends when all honest
    voters are settled, or a share ``finality`` of them on one candidate.
    """
    n, matrix = _checked(positions, sample)
    lying = int(liars * n)
    if not 0 <= liars < 1 or not 0 < finality <= 1:
        raise ValueError(f"liars {liars}, finality {finality}; shares of the voters expected")
    if lying:  # the kernel takes the first rows for liars
        matrix = matrix[stream(seed, "snowveil", "liars").permutation(n)]
    locked = np.full(n, -1, np.int16)
    votes = np.zeros(matrix.shape[1], np.int64)
    cap = 2**62 if max_polls is None else max_polls
    polls = _discover(
        matrix, number(rule), weights.array, sample, patience.table, math.ceil(finality * (n - lying)), lying, target,
        locked, votes, source(seed, "snowveil", n, sample), cap,
    )  # fmt: skip
    return Outcome(votes, int(polls), bool(polls < cap or votes.sum() == n - lying))


def snowball(
    positions: Positions, *, sample: int = 21, quorum: float | None = None, streak: int = 6, seed: int = 0,
    max_polls: int | None = None,
) -> Outcome:  # fmt: skip
    """Snowball on first choices: take over what a quorum of a poll prefers, settle after a streak of such polls.

    Snowball was made for two choices, where a quorum is some three quarters of a poll. Of m choices nobody may ever
    have that many; the quorum is therefore, unless given, half as much again as an even split would bring: 1.5/m.
    """
    n, matrix = _checked(positions, sample)
    share = 1.5 / matrix.shape[1] if quorum is None else quorum
    if not 0 < share <= 1 and matrix.shape[1] > 1:
        raise ValueError(f"a quorum of {quorum}; a share of the poll expected")
    prefer = np.argmin(matrix, axis=1).astype(np.int16)
    votes = np.zeros(matrix.shape[1], np.int64)
    cap = 50 * n if max_polls is None else max_polls  # without a quorum anywhere it would never end
    polls = _snowball(
        prefer, matrix.shape[1], sample, math.ceil(min(share, 1.0) * sample), streak, votes,
        source(seed, "snowball", n, sample), cap,
    )  # fmt: skip
    return Outcome(votes, int(polls), bool(votes.sum() == n))


def average(positions: Positions, *, seed: int = 0, meetings_per_voter: float = 30.0) -> Outcome:
    """Gossip: two voters meet and both take the mean of their Borda points; in the end each names its best."""
    n, matrix = _checked(positions, 1)
    points = (matrix.shape[1] - 1 - matrix).astype(np.float64)
    meetings = int(meetings_per_voter * n)
    _average(points, source(seed, "gossip", n), meetings)
    votes = np.bincount(np.argmax(points, axis=1), minlength=matrix.shape[1])
    return Outcome(votes.astype(np.int64), meetings, True)


def one_poll(
    positions: Positions, *, rule: str = "chb", weights: Weights = DEFAULT, sample: int = 20, seed: int = 0
) -> Outcome:
    """Every voter asks once and believes the answer."""
    n, matrix = _checked(positions, sample)
    votes = np.zeros(matrix.shape[1], np.int64)
    _one_poll(matrix, number(rule), weights.array, sample, votes, source(seed, "one poll", n, sample))
    return Outcome(votes, n, True)


def _checked(positions: Positions, sample: int) -> tuple[int, Positions]:
    matrix = np.ascontiguousarray(positions, np.int16)
    if matrix.ndim != 2 or matrix.shape[1] < 1:
        raise ValueError(f"positions of shape {matrix.shape}; a row a voter and a column a candidate expected")
    if not 1 <= sample < len(matrix):
        raise ValueError(f"a sample of {sample} out of {len(matrix)} voters; at least 1, and fewer than all, expected")
    return len(matrix), matrix


# --------------------------------------------------------------------------------------- the kernels


@njit(cache=True, nogil=True)
def _ask(draw: Source, n: int, who: int, asked: Any) -> None:
    """Different others, uniformly."""
    for i in range(asked.size):
        again = True
        while again:
            found = integer(draw, n - 1)
            found += found >= who
            again = False
            for j in range(i):
                again = again or asked[j] == found
        asked[i] = found


@njit(cache=True, nogil=True)
def _ballot(row: Any, top: int, into: Any) -> None:
    """A ballot with one candidate moved to the top; -1: as it is."""
    for c in range(row.size):
        into[c] = row[c] + 1 if top >= 0 and row[c] < row[top] else row[c]
    if top >= 0:
        into[top] = 0


@njit(cache=True, nogil=True)
def _lie(row: Any, target: int, into: Any) -> None:
    """The target on top, then the liar's own ranking upside down."""
    m = row.size
    for c in range(m):
        place = m - 1 - row[c]
        into[c] = place + 1 if place < m - 1 - row[target] else place
    into[target] = 0


@njit(cache=True, nogil=True)
def _discover(
    positions: Positions, rule: int, weights: Any, sample: int, needed: Any, enough: int, liars: int, target: int,
    locked: Any, votes: Any, draw: Source, cap: int,
) -> int:  # fmt: skip
    """Polls until all have settled, enough agree, or the cap; their number."""
    n, m = positions.shape
    open_voters = np.arange(liars, n)
    left = n - liars
    last, streak = np.full(n, -1, np.int16), np.zeros(n, np.int32)
    own = np.zeros(n, np.int32)
    asked, ballots = np.empty(sample, np.int64), np.empty((sample, m), np.int16)
    polls = 0
    while left > 0 and polls < cap and votes.max() < enough:
        place = integer(draw, left)
        voter = open_voters[place]
        _ask(draw, n, voter, asked)
        for i in range(sample):
            other = asked[i]
            if other < liars:
                _lie(positions[other], target, ballots[i])
            else:
                _ballot(positions[other], locked[other], ballots[i])
        found = elected(rule, weights, ballots, sample)
        streak[voter] = streak[voter] + 1 if found == last[voter] else 1
        last[voter] = found
        want = needed[min(own[voter], needed.size - 1)]
        own[voter] += 1
        polls += 1
        if streak[voter] >= want:
            locked[voter] = found
            votes[found] += 1
            left -= 1
            open_voters[place] = open_voters[left]
    return polls


@njit(cache=True, nogil=True)
def _snowball(
    prefer: Any, m: int, sample: int, quorum: int, wanted: int, votes: Any, draw: Source, cap: int
) -> int:  # fmt: skip
    n = prefer.size
    open_voters, left = np.arange(n), n
    streak, last = np.zeros(n, np.int32), prefer.copy()
    confidence = np.zeros((n, m), np.int32)
    asked, seen = np.empty(sample, np.int64), np.zeros(m, np.int64)
    polls = 0
    while left > 0 and polls < cap:
        place = integer(draw, left)
        voter = open_voters[place]
        _ask(draw, n, voter, asked)
        seen[:] = 0
        for i in range(sample):
            seen[prefer[asked[i]]] += 1
        polls += 1
        best = np.argmax(seen)
        if seen[best] < quorum:
            streak[voter] = 0
            continue
        confidence[voter, best] += 1
        if confidence[voter, best] > confidence[voter, prefer[voter]]:
            prefer[voter] = best
        streak[voter] = streak[voter] + 1 if best == last[voter] else 1
        last[voter] = best
        if streak[voter] >= wanted:
            votes[prefer[voter]] += 1
            left -= 1
            open_voters[place] = open_voters[left]
    return polls


@njit(cache=True, nogil=True)
def _average(points: Any, draw: Source, meetings: int) -> None:
    n, m = points.shape
    for _ in range(meetings):
        a = integer(draw, n)
        b = integer(draw, n - 1)
        b += b >= a
        for c in range(m):
            points[a, c] = points[b, c] = (points[a, c] + points[b, c]) / 2


@njit(cache=True, nogil=True)
def _one_poll(positions: Positions, rule: int, weights: Any, sample: int, votes: Any, draw: Source) -> None:
    n, m = positions.shape
    asked, ballots = np.empty(sample, np.int64), np.empty((sample, m), np.int16)
    for voter in range(n):
        _ask(draw, n, voter, asked)
        for i in range(sample):
            _ballot(positions[asked[i]], -1, ballots[i])
        votes[elected(rule, weights, ballots, sample)] += 1
