"""Calls of compiled loops that run on several threads, from any thread and from any process.

Numba's threads are GNU OpenMP's on most machines. A process forked after they began has none of them, and is killed by
its first such loop; there the loop runs on the one thread that there is. Where there is no OpenMP, Numba's own threads
take one call at a time and abort at a second; there calls take turns.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from numba.core.registry import CPUDispatcher

ALONE = (
    "forked from a process whose threads stayed there: compiled loops run on one thread here; start workers by 'spawn' "
    "or 'forkserver' to have all"
)
_turn = threading.RLock()
_orphaned = False  # forked from a process whose threads are not here


class Parallel(CPUDispatcher):
    """A compiled function with parallel loops, and `alone`, the same compiled without."""

    alone: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        """On all threads, or where they are not, on this one."""
        if _orphaned:
            warnings.warn(ALONE, RuntimeWarning, stacklevel=2)
            return self.alone(*args)
        if _layer() in ("omp", "tbb"):
            return super().__call__(*args)
        with _turn:  # not chosen yet, or one that takes one call at a time
            return super().__call__(*args)


def _layer() -> str:
    """What Numba runs parallel loops by; nothing before the first of them."""
    return getattr(sys.modules.get("numba.np.ufunc.parallel"), "_threading_layer", None) or ""


def _in_child() -> None:
    global _turn, _orphaned
    _turn = threading.RLock()
    _orphaned = _orphaned or _layer() == "omp"


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
