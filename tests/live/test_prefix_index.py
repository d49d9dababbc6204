"""The index of what engines have in their prefix caches agrees with the obvious one, and keeps its promises."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from numpy.typing import NDArray

from assay.live.prefix_index import Corrections, PrefixIndex
from assay.sim.block_hash import chain
from tests.oracles.prefix_index import Cache

KEY = 0xF00D_F00D_F00D_F00D
ROWS = st.lists(st.integers(0, 2**32 - 1), max_size=70).map(lambda row: np.array(row, np.uint32))
PATHS = st.lists(st.integers(0, 2), max_size=12)  # three ways on from each block: paths meet and part
CAPACITIES = st.integers(0, 12) | st.integers(0, 40)
MANY = 300
compiling = settings(deadline=None)  # the first call compiles


def path(index: PrefixIndex, turns: list[int]) -> NDArray[np.uint64]:
    """A path by the way it takes at each block."""
    return index.hashes(np.repeat(np.array(turns, np.uint32), index.block))


# ----------------------------------------------------------------------------------------------------------- hashes


@compiling
@given(ROWS, st.integers(1, 9), st.integers(0, 70), st.integers(0, 2**64 - 1))
def test_the_chain_of_a_prefix_is_a_prefix_of_the_chain(row: NDArray[np.uint32], block: int, n: int, key: int) -> None:
    whole, part = chain(row, block, key), chain(row[:n], block, key)
    assert len(whole) == len(row) // block
    assert whole[: len(part)].tolist() == part.tolist()
    assert whole.dtype == np.uint64


@compiling
@given(ROWS, st.integers(1, 9), st.integers(0, 9), st.integers(0, 2**64 - 1))
def test_a_chain_goes_on_from_the_hash_before(row: NDArray[np.uint32], block: int, blocks: int, key: int) -> None:
    whole = chain(row, block, key)
    blocks = min(blocks, len(whole))
    before = int(whole[blocks - 1]) if blocks else 0
    assert chain(row[blocks * block :], block, key, before).tolist() == whole[blocks:].tolist()


@compiling
@given(ROWS.filter(len), st.data(), st.integers(1, 9), st.integers(0, 2**64 - 1))
def test_a_changed_token_changes_its_block_and_all_behind_it(
    row: NDArray[np.uint32], data: st.DataObject, block: int, key: int
) -> None:
    at, change = data.draw(st.integers(0, len(row) - 1)), data.draw(st.integers(1, 2**32 - 1))
    other = row.copy()
    other[at] ^= np.uint32(change)
    same = chain(row, block, key) == chain(other, block, key)
    assert same.tolist() == [b < at // block for b in range(len(row) // block)]


@compiling
@given(ROWS, ROWS, st.integers(1, 9), st.floats(0.0, 9.0))
def test_a_prompt_is_looked_up_as_its_hashes_are_matched(
    row: NDArray[np.uint32], other: NDArray[np.uint32], block: int, ttl: float
) -> None:
    index = PrefixIndex(block, ttl=ttl, key=KEY)
    for number, known in enumerate((row, other, row[: len(row) // 2])):
        index.insert(index.add(), index.hashes(known), float(number))
    for asked in (row, np.concatenate((row, other)), other):
        found, expected = np.empty(3, np.int64), np.empty(3, np.int64)
        words = index.hashes(asked)
        index.match(words, 8.0, expected)
        assert index.look_up(asked, 8.0, found).tolist() == words.tolist()
        assert found.tolist() == expected.tolist()


def test_hashes_are_distinct_never_zero_and_use_all_bits_evenly() -> None:
    rows = np.arange(40_000, dtype=np.uint32)  # small numbers in order: what a weak hash does worst
    hashes = np.array([chain(rows[i : i + 2], 2, KEY)[0] for i in range(len(rows) - 1)])
    assert len(np.unique(hashes)) == len(hashes)
    assert hashes.all()
    ones = ((hashes[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1)).mean(axis=0)
    assert abs(ones - 0.5).max() < 0.0125  # five standard deviations of 40,000 coins
    slots = np.bincount((hashes & np.uint64(255)).astype(np.int64), minlength=256)
    assert slots.max() < 157 + 5 * 13


def test_another_key_gives_other_hashes_and_each_index_draws_its_own() -> None:
    row = np.arange(64, dtype=np.uint32)
    assert not set(chain(row, 16, 1).tolist()) & set(chain(row, 16, 2).tolist())
    assert PrefixIndex().key != PrefixIndex().key


# ---------------------------------------------------------------------------------------------- against the oracle


class Twins(RuleBasedStateMachine):
    """Every operation on the index and on the oracle; all matches of all paths agree after each."""

    @initialize(ttl=st.sampled_from([float("inf"), 3.0]), capacity=CAPACITIES)
    def start(self, ttl: float, capacity: int) -> None:
        self.index = PrefixIndex(block=2, capacity=capacity, ttl=ttl, key=KEY)
        self.caches: list[Cache] = []
        self.seen: list[list[int]] = [[]]
        self.now = 0.0

    def path(self, turns: list[int]) -> NDArray[np.uint64]:
        self.seen = [*self.seen[-8:], turns]
        return path(self.index, turns)

    @precondition(lambda self: len(self.caches) < 4)
    @rule(capacity=st.none() | CAPACITIES)
    def add(self, capacity: int | None) -> None:
        assert self.index.add(capacity) == len(self.caches)
        self.caches.append(Cache(self.index.capacity if capacity is None else capacity))

    @precondition(lambda self: self.caches)
    @rule(data=st.data(), later=st.floats(0, 2), turns=PATHS)
    def insert(self, data: st.DataObject, later: float, turns: list[int]) -> None:
        i, self.now = self.engine(data), self.now + later
        hashes = self.path(turns)
        assert self.index.insert(i, hashes, self.now) == self.caches[i].insert(hashes.tolist(), self.now)

    @precondition(lambda self: self.caches)
    @rule(data=st.data(), turns=PATHS)
    def go_on(self, data: st.DataObject, turns: list[int]) -> None:
        i, known = self.engine(data), data.draw(st.sampled_from(self.seen))
        if known:
            hashes = self.path([*known, *turns])
            after, rest = int(hashes[len(known) - 1]), hashes[len(known) :]
            done = self.index.insert(i, rest, self.now, after)
            assert done == self.caches[i].insert(rest.tolist(), self.now, after)

    @precondition(lambda self: self.caches)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        i, hashes = self.engine(data), path(self.index, data.draw(st.sampled_from(self.seen)))
        some = np.array([h for h in hashes if data.draw(st.booleans())], np.uint64)
        self.index.remove(i, some)
        self.caches[i].remove(some.tolist())

    @precondition(lambda self: self.caches)
    @rule(data=st.data(), capacity=CAPACITIES)
    def resize(self, data: st.DataObject, capacity: int) -> None:
        i = self.engine(data)
        self.index.resize(i, capacity)
        self.caches[i].resize(capacity)

    @precondition(lambda self: self.caches)
    @rule(data=st.data())
    def clear(self, data: st.DataObject) -> None:
        i = self.engine(data)
        self.index.clear(i)
        self.caches[i] = Cache(self.caches[i].capacity)

    @precondition(lambda self: self.caches)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        i = self.engine(data)
        self.index.drop(i)
        del self.caches[i]

    def engine(self, data: st.DataObject) -> int:
        return data.draw(st.integers(0, len(self.caches) - 1))

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "caches"):
            return
        assert len(self.index) == len(self.caches)
        for i, cache in enumerate(self.caches):
            assert self.index.blocks(i) == len(cache.used) <= cache.capacity
        out = np.full(len(self.caches), -1)
        for turns in self.seen:
            hashes = path(self.index, turns)
            self.index.match(hashes, self.now, out)
            oldest = self.now - self.index.ttl
            assert out.tolist() == [2 * cache.match(hashes.tolist(), oldest) for cache in self.caches]


Twins.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_every_operation_agrees_with_the_oracle = Twins.TestCase


def test_full_tables_agree_with_the_oracle_over_many_evictions_and_removals() -> None:
    rng = np.random.default_rng(4)
    index, cache = PrefixIndex(block=1, key=KEY), Cache(1000)
    engine, out = index.add(1000), np.empty(1, np.int64)
    for now in range(2000):
        hashes = path(index, rng.integers(0, 4, rng.integers(1, 40)).tolist())
        assert index.insert(engine, hashes, now) == cache.insert(hashes.tolist(), now)
        if now % 7 == 0:
            lost = hashes[rng.integers(0, len(hashes)) :][:1]
            index.remove(engine, lost)
            cache.remove(lost.tolist())
        asked = path(index, rng.integers(0, 4, 20).tolist())
        index.match(asked, now, out)
        assert out[0] == cache.match(asked.tolist(), -1.0)
    assert index.blocks(engine) == len(cache.used)
    assert index.blocks(engine) > 900


# --------------------------------------------------------------------------------------------------------- promises


@compiling
@given(st.lists(PATHS, max_size=20), st.integers(1, 30), PATHS)
def test_what_is_left_is_closed_under_prefixes_and_within_capacity(
    paths: list[list[int]], capacity: int, asked: list[int]
) -> None:
    index = PrefixIndex(block=2, capacity=capacity)
    index.add()
    for now, turns in enumerate(paths):
        index.insert(0, path(index, turns), now)
    hashes, out = path(index, asked), np.empty(1, np.int64)
    depths = []
    for depth in range(len(hashes) + 1):
        index.match(hashes[:depth], len(paths), out)
        depths.append(int(out[0]) // 2)
    assert depths == [min(depth, depths[-1]) for depth in range(len(hashes) + 1)]
    assert index.blocks(0) <= capacity


def test_a_path_longer_than_the_cache_keeps_its_beginning() -> None:
    index = PrefixIndex(block=1, capacity=100)
    index.add()
    hashes, out = path(index, list(range(MANY))), np.empty(1, np.int64)
    assert index.insert(0, hashes, 0.0) == 100
    index.match(hashes, 0.0, out)
    assert out[0] == 100


def test_a_path_that_goes_on_beyond_the_cache_keeps_its_beginning_too() -> None:
    index = PrefixIndex(block=1, capacity=100)
    index.add()
    hashes, out = path(index, list(range(MANY))), np.empty(1, np.int64)
    index.insert(0, path(index, [7] * 30), 0.0)  # colder: makes room
    index.insert(0, hashes[:60], 0.0)
    assert index.insert(0, hashes[60:], 0.0, after=int(hashes[59])) == 40
    index.match(hashes, 0.0, out)
    assert out[0] == index.blocks(0) == 100


def test_a_removed_block_takes_along_what_lies_behind_it_and_nothing_else() -> None:
    index = PrefixIndex(block=1)
    index.add()
    long, fork = path(index, list(range(MANY))), path(index, [0, 1, 2, 9, 9])
    index.insert(0, long, 0.0)
    index.insert(0, fork, 1.0)
    index.remove(0, long[3:4])
    assert index.blocks(0) == len(fork)
    assert index.insert(0, long[4:], 2.0, after=int(long[3])) == 0  # nowhere to go on from
    index.insert(0, long[:4], 2.0)
    out = np.empty(1, np.int64)
    index.match(long, 2.0, out)
    assert out[0] == 4


def test_a_block_counts_as_gone_when_not_used_for_too_long() -> None:
    index, out = PrefixIndex(block=1, ttl=10.0), np.empty(1, np.int64)
    index.add()
    hashes = path(index, [0, 1, 2])
    index.insert(0, hashes, 0.0)
    index.insert(0, hashes[:2], 5.0)
    found = []
    for now in (10.0, 11.0, 15.0, 16.0):
        index.match(hashes, now, out)
        found.append(int(out[0]))
    assert found == [3, 2, 2, 0]


def test_engines_after_a_dropped_one_move_down_with_what_they_have() -> None:
    index = PrefixIndex(block=1)
    hashes = path(index, list(range(MANY)))
    for depth in (100, 200, 300):
        index.insert(index.add(), hashes[:depth], 0.0)
    index.drop(1)
    index.add()
    out = np.empty(3, np.int64)
    index.match(hashes, 0.0, out)
    assert out.tolist() == [100, 300, 0]


def test_hashes_that_are_no_path_are_passed_over() -> None:
    index, out = PrefixIndex(block=1), np.empty(1, np.int64)
    index.add()
    hashes = path(index, [0, 1, 2])
    index.insert(0, hashes, 0.0)
    assert index.insert(0, hashes[1:], 1.0) == 0  # from its middle
    assert index.insert(0, hashes[[0, 0]], 1.0) == 1  # twice the same
    assert index.insert(0, np.zeros(2, np.uint64), 1.0) == 0
    index.match(np.zeros(2, np.uint64), 1.0, out)
    assert out[0] == 0
    index.match(hashes, 1.0, out)
    assert out[0] == index.blocks(0) == 3


def test_an_engine_that_is_not_there_is_an_error_not_memory_that_is_not_ours() -> None:
    index = PrefixIndex()
    hashes = path(index, [0])
    with pytest.raises(IndexError):
        index.insert(0, hashes, 0.0)
    index.add()
    for call in (lambda: index.insert(1, hashes, 0.0), lambda: index.remove(-1, hashes), lambda: index.resize(1, 5)):
        with pytest.raises(IndexError):
            call()
    with pytest.raises(ValueError, match="each engine"):
        index.match(hashes, 0.0, np.empty(0, np.int64))


def test_memory_is_small_at_first_and_bounded_by_56_bytes_a_block_when_full() -> None:
    index = PrefixIndex(block=1, capacity=2048)
    index.add()

    def held() -> int:
        return sum(array.nbytes for array in index._tables[0])

    assert held() < 8192
    rng = np.random.default_rng(0)
    for now in range(40):
        index.insert(0, path(index, rng.integers(0, 99, MANY).tolist()), now)
    assert index.blocks(0) == 2048
    assert held() == 56 * 2048
    index.clear(0)
    assert held() < 8192


# ------------------------------------------------------------------------------------------------------ corrections


def test_matches_that_were_not_there_shrink_the_capacity_down_to_the_floor() -> None:
    corrections, capacity = Corrections(limit=1000, block=16), 1000
    for _ in range(100):
        smaller = corrections.capacity(capacity, predicted=1024, cached=512)
        assert smaller < capacity or capacity == 62
        capacity = smaller
    assert capacity == 62


def test_matches_that_were_there_let_it_grow_back_slowly_to_its_limit() -> None:
    corrections, capacity, steps = Corrections(limit=1000), 900, 0
    while capacity < 1000:
        capacity, steps = corrections.capacity(capacity, predicted=512, cached=512 - 16), steps + 1
    assert 20 < steps < 100
    assert corrections.capacity(1000, predicted=512, cached=4096) == 1000


def test_nothing_is_learnt_where_nothing_was_predicted() -> None:
    assert Corrections(limit=1000).capacity(500, predicted=0, cached=0) == 500


@compiling
@given(st.integers(1, 10**6), st.lists(st.tuples(st.integers(0, 10**5), st.integers(0, 10**5)), max_size=50))
def test_the_capacity_stays_between_floor_and_limit(limit: int, reports: list[tuple[int, int]]) -> None:
    corrections, capacity = Corrections(limit=limit), limit
    for predicted, cached in reports:
        capacity = corrections.capacity(capacity, predicted, cached)
        assert max(1, limit // 16) <= capacity <= limit
