"""Small products stay on one thread, large ones keep theirs."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from assay.sim.blas import WORTHWHILE, threads_for


def threads() -> set[int]:
    np.ones((2, 2)) @ np.ones((2, 2))
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}


def test_small_products_take_one_thread_and_what_was_set_comes_back() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with threads_for(WORTHWHILE - 1):
            assert threads() <= {1}
        assert threads() == before


def test_large_products_keep_their_threads() -> None:
    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with threads_for(WORTHWHILE):
            assert threads() == before
