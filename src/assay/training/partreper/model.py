"""How long a job with some replicas runs until it must restart, what it gets done, and what its messages are.

Processes die independently at a constant rate. A rank without a replica takes the job down when it dies, one with a
replica when both are dead: replicas are not born again before a restart. With the time counted in lives of a process
and `u` the chance that one is still alive, the mean time to an interrupt of `n` ranks, `r` of them replicated, is the
integral of u^(n-1) (2-u)^r over u from 0 to 1, a sum of positive terms. A restart brings all processes back, so the
time between restarts is a renewal, and the share of it that counts follows from how many checkpoints are reached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

YEAR, DAY = 365.25 * 86400.0, 86400.0
TINY = 1e-12


def mean_time_to_interrupt(ranks: int, replicated: int, life: float = 1.0) -> float:
    """Mean time until a rank is lost, when `replicated` of the ranks have a replica and a process lives `life`.

    >>> mean_time_to_interrupt(4, 0)  # the first death
    0.25
    >>> round(mean_time_to_interrupt(1, 1), 12)  # the later of two deaths
    1.5
    """
    total, term, k = 0.0, 1.0 / ranks, 0
    while term > total * 1e-17 and term > 0:
        total += term
        term *= (replicated - k) / (ranks + k + 1)
        k += 1
    return total * life


def alive(times: NDArray[np.float64], ranks: int, replicated: int, life: float) -> NDArray[np.float64]:
    """The chance that no rank is lost by then."""
    each = times / life
    return np.asarray(np.exp(replicated * np.log1p(-np.expm1(-each)) - ranks * each))  # u^n (2 - u)^r


def daly(checkpoint: float, between: float) -> float:
    """Young's and Daly's time of work between checkpoints.

    >>> daly(50.0, 10_000.0)
    1000.0
    """
    return math.sqrt(2 * checkpoint * between)


@dataclass(frozen=True)
class Fleet:
    """A machine: how long a process lives on average, what a checkpoint and a restart take, in seconds."""

    life: float
    checkpoint: float = 300.0
    restart: float = 600.0


def useful(fleet: Fleet, ranks: int, replicated: int, every: float | None = None) -> float:
    """The share of time in which work is done that counts, with a checkpoint after so many seconds of work.

    Each period begins with a restart and ends with an interrupt; what was done since the last checkpoint is lost.
    """
    mean = mean_time_to_interrupt(ranks, replicated, fleet.life)
    work = daly(fleet.checkpoint, mean) if every is None else every
    reached, at, size = 0.0, 1, 4096
    while True:
        times = fleet.restart + np.arange(at, at + size) * (work + fleet.checkpoint)
        some = alive(np.asarray(times, np.float64), ranks, replicated, fleet.life)
        reached += float(some.sum())
        if some[-1] < TINY:
            return work * reached / mean
        at += size


def degrees(processes: int, fraction: float) -> tuple[int, int]:
    """So many processes as ranks and replicas, a fraction of the ranks with one.

    >>> degrees(1000, 0.25), degrees(1000, 1.0)
    ((800, 200), (500, 500))
    """
    ranks = round(processes / (1 + fraction))
    return ranks, processes - ranks


def efficiency(fleet: Fleet, processes: int, fraction: float) -> float:
    """Work that counts for a process and second: replicas are processes that could have been ranks."""
    ranks, replicated = degrees(processes, fraction)
    return useful(fleet, ranks, replicated) * ranks / processes


# -------------------------------------------------------------------------------------------------------- messages

Matrix = NDArray[np.int64]


def _everybody(n: int) -> Matrix:
    return np.ones((n, n), np.int64) - np.eye(n, dtype=np.int64)


def _tree(n: int, up: bool) -> Matrix:
    found = np.zeros((n, n), np.int64)
    for child in range(1, n):
        parent = child & (child - 1)
        found[(child, parent) if up else (parent, child)] = 1
    return found


def _summed(n: int) -> Matrix:
    if n & (n - 1):
        return _tree(n, up=True) + _tree(n, up=False)
    found = np.zeros((n, n), np.int64)
    for step in range(n.bit_length() - 1):
        found[np.arange(n), np.arange(n) ^ (1 << step)] += 1
    return found


def _barrier(n: int) -> Matrix:
    found = np.zeros((n, n), np.int64)
    for step in range((n - 1).bit_length()):
        np.add.at(found, (np.arange(n), (np.arange(n) + (1 << step)) % n), 1)
    return found


def messages(kernel: str, n: int, steps: int) -> Matrix:
    """Messages from each rank to each of a program on `n` ranks, with the barrier before it.

    >>> messages("ep", 2, 9)
    array([[0, 2],
           [2, 0]])
    """
    neighbours = np.eye(n, k=1, dtype=np.int64) + np.eye(n, k=-1, dtype=np.int64)
    gathered = np.zeros((n, n), np.int64)
    gathered[1:, 0] = 1
    whole = {
        "cg": (steps + 1) * _everybody(n) + 2 * steps * _summed(n),
        "ep": _summed(n),
        "is": 2 * steps * _everybody(n) + gathered + _tree(n, up=False),
        "ft": (steps + 1) * _everybody(n) + steps * _summed(n),
        "heat": steps * neighbours + -(-steps // 3) * _summed(n) + _everybody(n),
    }
    return whole[kernel] + _barrier(n)


def copies(matrix: Matrix, twins: tuple[int, ...]) -> int:
    """Messages on the wire: one for each carrier of the rank they go to."""
    return int(matrix.sum() + matrix[:, list(twins)].sum())
