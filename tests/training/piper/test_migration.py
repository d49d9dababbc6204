"""Experts that change places: only pairs, only where it pays, and the busiest rank gets less busy."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from assay.training.piper.migration import Rule, follow, swaps

LOADS = arrays.arrays(np.float64, 12, elements=st.integers(0, 50).map(float))
HOST = np.repeat(np.arange(4), 3)


@given(LOADS)
def test_swaps_keep_the_number_of_experts_and_lower_the_busiest(load: np.ndarray) -> None:
    host = swaps(load, HOST, 4, Rule(), second_of=1.0, move=0.0)
    assert np.bincount(host, minlength=4).tolist() == [3, 3, 3, 3]
    before, after = (np.bincount(places, load, 4).max() for places in (HOST, host))
    assert after <= before


@given(LOADS)
def test_one_swap_is_the_best_there_is_for_the_two_ranks(load: np.ndarray) -> None:
    """Against all pairs of the busiest and the idlest rank, tried one by one."""
    host = swaps(load, HOST, 4, Rule(most=1, threshold=1.0), second_of=1.0, move=0.0)
    held = np.bincount(HOST, load, 4)
    high, low = int(held.argmax()), int(held.argmin())
    tried = []
    for a in np.flatnonzero(high == HOST):
        for b in np.flatnonzero(low == HOST):
            other = HOST.copy()
            other[a], other[b] = low, high
            tried.append(np.bincount(other, load, 4)[[high, low]].max())
    assert np.bincount(host, load, 4)[[high, low]].max() == min([held[high], *tried])


@given(LOADS)
def test_nothing_moves_that_does_not_pay(load: np.ndarray) -> None:
    assert (swaps(load, HOST, 4, Rule(), second_of=1.0, move=1e9) == HOST).all()
    even = np.ones(12)
    assert (swaps(even, HOST, 4, Rule(), second_of=1.0, move=0.0) == HOST).all()


def test_loads_that_stay_become_even_and_fixed_places_stay_uneven() -> None:
    loads = np.tile(np.arange(12), (40, 1))
    rule = Rule(period=10)
    found = {policy: follow(loads, 4, rule, 1.0, 1.0, policy) for policy in ("fixed", "migration", "packed")}
    assert found["fixed"].swaps == 0
    assert found["migration"].swaps > 0
    late = {policy: one.load[20:].std(axis=1).mean() for policy, one in found.items()}
    assert late["migration"] < 0.4 * late["fixed"]
    assert found["migration"].swaps <= found["packed"].swaps
    assert all((one.load.sum(axis=1) == loads.sum(axis=1)).all() for one in found.values())
