"""How many threads a product of matrices may take.

NumPy's library splits even products of some microseconds among all cores, and its threads spin until the last one is
done. Where another thread or process holds a core meanwhile, each product waits for a turn of the scheduler.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import ThreadpoolController

WORTHWHILE = 1 << 28  # multiplications: some milliseconds of a core, about a turn of the scheduler


@contextmanager
def threads_for(multiplications: int) -> Iterator[None]:
    """Keep products within to one thread if each takes at most so many multiplications, and that is few.

    >>> with threads_for(24 * 256 * 256):
    ...     max([1, *(pool["num_threads"] for pool in ThreadpoolController().info() if pool["user_api"] == "blas")])
    1
    """
    if multiplications >= WORTHWHILE:
        yield
        return
    # A library that is loaded later is not limited; NumPy's is there, and it is the one that multiplies.
    with ThreadpoolController().limit(limits=1, user_api="blas"):
        yield
