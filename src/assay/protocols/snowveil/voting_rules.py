"""Rules that turn rankings into a winner: Constrained Hybrid Borda, Borda, plurality, Copeland.

Ballots are rows of positions: ``positions[v, c]`` is the place of candidate c on ballot v, from 0. Ties go to the
candidate with the lowest number, in every rule.

Constrained Hybrid Borda (CHB) lets a candidate win that is both loved and broadly accepted. Of k ballots, t first
places and Borda points B: eligible is who has t ≥ ⌈αk⌉ and B ≥ β·max B. Nobody eligible: the Borda winner. Else the
largest (1 − λ)·B/(k(m − 1)) + λ·t/k among the eligible. Without its filters CHB is monotone. With them it is not
always: a winner that moves up can push the Borda leader down, and so let a third candidate past the second filter.

>>> import numpy as np
>>> ballots = np.array([[0, 1, 2]] * 5 + [[2, 0, 1]] * 4)
>>> [winner(rule, ballots) for rule in RULES]
[1, 1, 0, 0]
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit

RULES = {"chb": 0, "borda": 1, "plurality": 2, "copeland": 3}
_CHB, _BORDA, _PLURALITY, _COPELAND = range(4)


@dataclass(frozen=True)
class Weights:
    """CHB's parameters; the paper's own defaults are not known to us, these are ours."""

    popularity: float = 0.1
    """α: the least share of first places."""
    consensus: float = 0.8
    """β: the least share of the best Borda score."""
    hybrid: float = 0.5
    """λ: how much a first place counts beside Borda points."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not 0 <= value <= 1:
                raise ValueError(f"{name} is {value}; 0 to 1 expected")

    @property
    def array(self) -> npt.NDArray[np.float64]:
        """As compiled code takes it."""
        return np.array([self.popularity, self.consensus, self.hybrid])


DEFAULT = Weights()


def number(rule: str) -> int:
    """The number of a rule in compiled code.

    >>> number("borda")
    1
    """
    if rule not in RULES:
        raise ValueError(f"no rule '{rule}'; one of {', '.join(RULES)} expected")
    return RULES[rule]


def winner(rule: str, positions: npt.ArrayLike, weights: Weights = DEFAULT) -> int:
    """The winner of a whole profile: what a central count would announce.

    >>> winner("plurality", [[0, 1], [0, 1], [1, 0]])
    0
    """
    matrix = np.ascontiguousarray(positions, np.int16)
    return int(elected(number(rule), weights.array, matrix, len(matrix)))


@njit(cache=True, nogil=True)
def elected(rule: int, weights: Any, positions: Any, k: int) -> int:
    """The winner among the first k rows."""
    m = positions.shape[1]
    if rule == _COPELAND:
        return _best(_copeland(positions, k), m)
    firsts, points = np.zeros(m), np.zeros(m)
    for v in range(k):
        for c in range(m):
            points[c] += m - 1 - positions[v, c]
            firsts[c] += positions[v, c] == 0
    if rule == _PLURALITY:
        return _best(firsts, m)
    if rule == _BORDA:
        return _best(points, m)
    most = points.max()
    scores = np.full(m, -1.0)
    for c in range(m):
        if firsts[c] >= math.ceil(weights[0] * k) and points[c] >= weights[1] * most:
            scores[c] = (1 - weights[2]) * points[c] / (k * max(m - 1, 1)) + weights[2] * firsts[c] / k
    return _best(scores if scores.max() >= 0.0 else points, m)


@njit(cache=True, nogil=True)
def _best(scores: Any, m: int) -> int:
    best = 0
    for c in range(1, m):
        if scores[c] > scores[best]:
            best = c
    return best


@njit(cache=True, nogil=True)
def _copeland(positions: Any, k: int) -> Any:
    """Duels won less duels lost."""
    m = positions.shape[1]
    scores = np.zeros(m)
    for a in range(m):
        for b in range(a):
            ahead = 0
            for v in range(k):
                ahead += 1 if positions[v, a] < positions[v, b] else -1
            scores[a] += np.sign(ahead)
            scores[b] -= np.sign(ahead)
    return scores
