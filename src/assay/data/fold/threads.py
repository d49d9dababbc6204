"""Compiled loops over rows, on all cores: numba's own threads would not survive a fork, and these begin when needed."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise


@cache
def _pool(process: int, cores: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores, thread_name_prefix="assay-fold")


def in_threads(some: Callable[[int, int], None], rows: int, *, least: int) -> None:
    """Call `some(first, last)` for all rows, split over the cores where each gets at least so many.

    >>> seen = []
    >>> in_threads(lambda first, last: seen.append((first, last)), 10, least=100)
    >>> seen
    [(0, 10)]
    """
    cores = min(len(os.sched_getaffinity(0)), rows // least)
    if cores < 2:
        if rows:
            some(0, rows)
        return
    steps = [rows * i // (4 * cores) for i in range(4 * cores + 1)]  # who is done early takes another piece
    for done in [_pool(os.getpid(), cores).submit(some, *span) for span in pairwise(steps)]:
        done.result()
