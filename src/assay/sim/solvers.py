"""Integer programmes, solved by HiGHS, stopped by work and not by the clock.

A study that stops a solver after some seconds gets another answer on a faster machine. So the limit is the number of
nodes of the search tree, one thread works, and the same programme always gives the same answer. A limit in seconds is
there for gateways, which must answer in time; it is off unless asked for.

>>> best = milp([-3, -2], [[2, 1]], lo=[-np.inf], hi=[3], integer=[True, True])
>>> best.x.tolist(), best.value, best.status
([0.0, 3.0], -6.0, 'optimal')
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST = 2.0**14  # cost of a variable, as the solver sees it
WORK = 20_000  # nodes of the search tree
_STATUS = {0: "optimal", 1: "limit", 2: "infeasible", 3: "unbounded", 4: "failed"}


@dataclass(frozen=True)
class Solution:
    """What the solver found: `value` is the objective at `x`, `bound` what no solution is below, `gap` relative."""

    x: NDArray[np.float64] | None  # None: nothing found; the caller falls back to its greedy answer
    value: float
    bound: float
    gap: float
    status: str  # optimal, limit, infeasible, unbounded, failed

    @property
    def found(self) -> bool:
        """Whether there is an answer, the best or not."""
        return self.x is not None


def milp(
    c: ArrayLike,
    A: Any,
    lo: ArrayLike,
    hi: ArrayLike,
    integer: ArrayLike,
    *,
    least: ArrayLike = 0.0,
    most: ArrayLike = np.inf,
    work: int = WORK,
    seconds: float = np.inf,
    gap: float = 0.0,
) -> Solution:
    """Minimise c x where lo <= A x <= hi and least <= x <= most; `integer` says which x are whole numbers.

    Args:
        c: the cost of each variable.
        A: rows of the constraints, dense or SciPy sparse.
        lo: lower bounds of the rows.
        hi: upper bounds of the rows.
        integer: for each variable, whether it is a whole number.
        least: lower bounds of the variables.
        most: upper bounds of the variables.
        work: nodes of the search tree at most; the answer is then the best so far, with its gap.
        seconds: time at most; unlike `work` it makes the answer depend on the machine.
        gap: stop where no solution is better by more than this share.

    Raises:
        ValueError: shapes that do not go together, or numbers that are none.
    """
    from scipy.optimize import Bounds, LinearConstraint
    from scipy.optimize import milp as highs

    costs, whole = np.asarray(c, np.float64), np.asarray(integer, bool)
    columns = np.shape(A)[1]
    if not costs.shape == whole.shape == (columns,):
        raise ValueError(f"{costs.size} costs, {whole.size} integer marks and rows of {columns} do not go together")
    if not np.isfinite(costs).all():
        raise ValueError("costs must be finite")
    rows = LinearConstraint(A, np.asarray(lo, np.float64), np.asarray(hi, np.float64))
    limits: Any = {"node_limit": int(work), "time_limit": float(seconds), "mip_rel_gap": float(gap), "presolve": True}
    # HiGHS stops within 1e-6 of the best, whatever a unit is worth: costs of any size are brought to one. A power of
    # two changes no digit of them.
    largest = float(np.abs(costs).max(initial=0.0))
    scale = 2.0 ** round(np.log2(LARGEST / largest)) if largest > 0 else 1.0
    with _silent():
        found = highs(
            scale * costs, integrality=whole.astype(int), bounds=Bounds(least, most), constraints=rows, options=limits
        )
    status = _STATUS.get(found.status, "failed")
    if found.x is None:
        return Solution(None, np.inf, -np.inf, np.inf, status)
    if status == "failed":
        status = "limit"  # SciPy has no word of its own for the limit of nodes
    x = np.where(whole, np.round(found.x), found.x)
    bound = getattr(found, "mip_dual_bound", None)
    bound = found.fun if bound is None else bound
    return Solution(x, float(found.fun) / scale, float(bound) / scale, float(found.mip_gap or 0.0), status)


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep what the solver's C++ prints about itself off standard output, where it would spoil JSON."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
