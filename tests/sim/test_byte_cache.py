from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.byte_cache import Belady, ByteCache, Lfu, Lru, MinPending, Policy, S3Fifo, replayed
from assay.sim.streams import stream
from tests.oracles import byte_cache as oracle

SIZES = {"a": 1, "b": 7, "c": 3, "d": 12, "e": 5, "f": 1}
requests = st.lists(st.sampled_from(sorted(SIZES)), max_size=60)


@given(requests, st.integers(0, 30), st.sampled_from(["lru", "lfu"]))
def test_lru_and_lfu_hold_what_their_definition_says(keys: list[str], nbytes: int, name: str) -> None:
    fast, slow = ByteCache(nbytes, {"lru": Lru, "lfu": Lfu}[name]()), oracle.Slow(nbytes, name)
    for key in keys:
        hit = fast.get(key)
        assert hit == slow.request(key, SIZES[key])
        if not hit:
            fast.put(key, SIZES[key])
        assert {k for k in SIZES if k in fast} == set(slow.sizes)
        assert fast.used == sum(slow.sizes.values()) <= nbytes


@given(st.lists(st.sampled_from("abcdef"), max_size=14), st.integers(1, 4))
def test_belady_misses_no_more_than_any_choice_could(keys: list[str], slots: int) -> None:
    cache = replayed([(key, 1) for key in keys], slots, Belady(keys))
    assert cache.misses == oracle.fewest_misses(keys, slots)


policies = st.sampled_from(["lru", "lfu", "s3-fifo", "min-pending", "belady"])


@given(requests, st.integers(1, 30), policies, st.sets(st.sampled_from(sorted(SIZES)), max_size=3))
def test_no_policy_holds_too_much_loses_count_or_lets_go_who_is_kept(
    keys: list[str], nbytes: int, name: str, kept: set[str]
) -> None:
    made: dict[str, Policy] = {
        "lru": Lru(), "lfu": Lfu(), "s3-fifo": S3Fifo(nbytes), "min-pending": MinPending(len), "belady": Belady(keys),
    }  # fmt: skip
    cache = ByteCache(nbytes, made[name], kept)
    held: set[str] = set()
    for key in keys:
        if cache.get(key):
            assert key in held
            continue
        assert key not in held
        gone = cache.put(key, SIZES[key])
        assert set(gone) <= held - kept
        if key not in cache and SIZES[key] <= nbytes:  # only because nobody else may go
            assert held - set(gone) <= kept
        held -= set(gone)
        held |= {key} if key in cache else set()
        assert held == {k for k in SIZES if k in cache}
        assert cache.used == sum(SIZES[k] for k in held) <= nbytes
    assert cache.hits + cache.misses == len(keys)


def test_who_is_pinned_stays_and_if_all_are_the_newcomer_waits() -> None:
    kept = {"a"}
    cache = ByteCache(2, Lru(), kept)
    cache.put("a", 1)
    cache.put("b", 1)
    assert cache.put("c", 1) == ["b"]
    kept.add("c")
    assert cache.put("d", 1) == [] and "d" not in cache and "a" in cache and "c" in cache
    kept.clear()
    assert len(cache.put("d", 1)) == 1


def test_least_and_most_pending_are_each_others_opposite() -> None:
    pending = {"a": 3, "b": 1, "c": 2}
    for least, order in ((True, ["b", "c", "a"]), (False, ["a", "c", "b"])):
        cache = ByteCache(3, MinPending(pending.__getitem__, least))
        for key in pending:
            cache.put(key, 1)
        gone = []
        while (victim := cache.policy.victim()) is not None:
            cache.drop(victim)
            gone.append(victim)
        assert gone == order


def test_a_changed_count_is_seen_when_the_key_is_touched() -> None:
    pending = {"a": 1, "b": 2}
    cache = ByteCache(2, MinPending(pending.__getitem__))
    cache.put("a", 1)
    cache.put("b", 1)
    pending["a"] = 9
    cache.get("a")
    assert cache.policy.victim() == "b"


def test_a_scan_does_not_flush_s3_fifo_as_it_does_lru() -> None:
    random = stream(0, "scan")
    popular = [f"p{int(n)}" for n in random.zipf(1.3, 6000) if n < 200]
    mixed = []
    for number, key in enumerate(popular):
        mixed += [(key, 1), (f"once{number}", 1)]
    hits = {name: replayed(mixed, 60, policy).hits for name, policy in {"lru": Lru(), "s3": S3Fifo(60)}.items()}
    bound = replayed(mixed, 60, Belady([key for key, _ in mixed])).hits
    assert hits["lru"] < hits["s3"] <= bound


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="no negative size"):
        ByteCache(3).put("a", -1)
