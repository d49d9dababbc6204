from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim import caches
from tests.oracles import caches as oracle

KEYS = 12
operation = st.one_of(
    st.tuples(st.just("get"), st.integers(0, KEYS - 1)),
    st.tuples(st.just("put"), st.integers(0, KEYS - 1), st.integers(1, 40)),
    st.tuples(st.just("resize"), st.integers(0, 120)),
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 120), st.lists(operation, max_size=60))
def test_every_operation_does_what_an_ordered_dict_does(nbytes: int, operations: list[tuple]) -> None:
    fast, slow = caches.Cache(nbytes, KEYS), oracle.Cache(nbytes)
    for name, *arguments in operations:
        assert getattr(fast, name)(*arguments) == getattr(slow, name)(*arguments)
        assert fast.used == slow.used <= slow.capacity
        assert {key for key in range(KEYS) if fast.lru.entries[key, caches.SIZE]} == set(slow.entries)


def test_parts_of_one_pool_keep_their_own_order() -> None:
    both = caches.lru(6, [100, 100])
    for key, part in [(0, 0), (3, 1), (1, 0), (4, 1)]:
        caches.insert(both, key, part, 10)
    assert caches.touch(both, 0, 0)
    assert (caches.oldest(both, 0), caches.oldest(both, 1)) == (1, 3)
    assert both.used.tolist() == [20, 20]


def test_what_is_fetched_on_speculation_goes_first() -> None:
    cache = caches.lru(4, [100])
    caches.insert(cache, 0, 0, 10)
    caches.insert_oldest(cache, 1, 0, 10)
    caches.insert_oldest(cache, 2, 0, 10)
    order = []
    while (key := caches.oldest(cache, 0)) != caches.NOTHING:
        caches.remove(cache, key, 0)
        order.append(int(key))
    assert order == [2, 1, 0]
    assert not np.any(cache.used)


def test_an_entry_needs_a_size() -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        caches.Cache(10, 2).put(0, 0)
