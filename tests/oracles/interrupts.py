"""Interrupts of a partially replicated job, slowly: exact fractions, and one death after the other."""

from __future__ import annotations

from fractions import Fraction
from math import comb

import numpy as np


def mean_time(ranks: int, replicated: int) -> Fraction:
    """The integral of u^(n-1) (2-u)^r over [0, 1], multiplied out term by term."""
    terms = (
        comb(replicated, k) * Fraction(2) ** (replicated - k) * (-1) ** k / (ranks + k) for k in range(replicated + 1)
    )
    return sum(terms, Fraction(0))


def interrupt(ranks: int, replicated: int, life: float, random: np.random.Generator) -> float:
    """When the first rank has lost all who carried it."""
    ends = []
    for rank in range(ranks):
        carriers = 2 if rank < replicated else 1
        ends.append(max(random.exponential(life) for _ in range(carriers)))
    return min(ends)


def useful(
    ranks: int, replicated: int, life: float, checkpoint: float, restart: float, every: float, periods: int,
    random: np.random.Generator,
) -> float:  # fmt: skip
    """The share of time that counted: restart, then work and checkpoint by turns until a rank is lost."""
    kept = spent = 0.0
    for _ in range(periods):
        end = interrupt(ranks, replicated, life, random)
        spent += end
        now = restart
        while now + every + checkpoint <= end:
            now += every + checkpoint
            kept += every
    return kept / spent
