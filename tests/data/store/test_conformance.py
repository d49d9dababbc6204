"""What every store and every wrapper of stores must do."""

from __future__ import annotations

import asyncio
import time

import pytest

from assay.data.interface import AlreadyExists, NotFound, OutOfRange, Store
from assay.data.store.blocking import Blocking, blocking
from assay.record.errors import BadInput


@pytest.fixture
def plain(store: Store) -> Blocking:
    return blocking(store)


def keys(plain: Blocking, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.key for meta in plain.list(prefix, start_after)]


def test_what_was_put_can_be_read_whole_and_in_part(plain: Blocking) -> None:
    meta = plain.put("a/b.bin", b"0123456789")
    assert (meta.key, meta.size) == ("a/b.bin", 10)
    assert bytes(plain.get("a/b.bin")) == b"0123456789"
    assert bytes(plain.get("a/b.bin", 3, 4)) == b"3456"
    assert bytes(plain.get("a/b.bin", 7)) == b"789"
    assert bytes(plain.get("a/b.bin", 10, 0)) == b""
    assert [bytes(part) for part in plain.get_ranges("a/b.bin", [(0, 2), (8, 2), (4, 1)])] == [b"01", b"89", b"4"]
    into = bytearray(5)
    plain.read_into("a/b.bin", 2, memoryview(into))
    assert bytes(into) == b"23456"


def test_several_buffers_are_put_in_a_row(plain: Blocking) -> None:
    many = [bytes([i % 251]) * (i % 7) for i in range(1500)]
    plain.put("parts", [memoryview(b"head"), *many, bytearray(b"tail")])
    assert bytes(plain.get("parts")) == b"head" + b"".join(many) + b"tail"


def test_a_later_change_of_the_buffer_changes_nothing(plain: Blocking) -> None:
    buffer = bytearray(b"before")
    plain.put("mine", buffer)
    buffer[:] = b"after!"
    assert bytes(plain.get("mine")) == b"before"


def test_an_empty_object_is_an_object(plain: Blocking) -> None:
    plain.put("empty", b"")
    assert plain.head("empty").size == 0
    assert bytes(plain.get("empty")) == b""
    assert keys(plain) == ["empty"]


def test_the_second_create_only_put_fails_and_changes_nothing(plain: Blocking) -> None:
    plain.put("log/1", b"first", if_absent=True)
    with pytest.raises(AlreadyExists):
        plain.put("log/1", b"second", if_absent=True)
    assert bytes(plain.get("log/1")) == b"first"
    plain.put("log/1", b"third")
    assert bytes(plain.get("log/1")) == b"third"


def test_of_many_create_only_puts_at_once_one_succeeds(store: Store, plain: Blocking) -> None:
    from assay.data.store.blocking import wait

    async def race() -> list[object]:
        tries = (store.put("race", b"%d" % i, if_absent=True) for i in range(8))
        return await asyncio.gather(*tries, return_exceptions=True)

    outcomes = wait(race())
    winners = [i for i, outcome in enumerate(outcomes) if not isinstance(outcome, AlreadyExists)]
    assert len(winners) == 1, outcomes
    assert bytes(plain.get("race")) == b"%d" % winners[0]


def test_what_is_not_there_is_told_so(plain: Blocking) -> None:
    assert plain.head("nowhere/at-all") is None
    for read in (lambda: plain.get("nowhere"), lambda: plain.get("nowhere", 0, 1), lambda: plain.get("no/where", 2)):
        with pytest.raises(NotFound):
            read()
    plain.delete("nowhere")  # as good as deleted


def test_bytes_behind_the_end_are_an_error_and_never_a_short_answer(plain: Blocking) -> None:
    plain.put("ten", b"0123456789")
    for start, length in [(8, 5), (11, 1), (0, 11), (12, None)]:
        with pytest.raises(OutOfRange):
            plain.get("ten", start, length)
    with pytest.raises(OutOfRange):
        plain.read_into("ten", 8, memoryview(bytearray(3)))


def test_listing_is_in_key_order_with_prefix_and_start(plain: Blocking) -> None:
    names = ["a-b", "a/1", "a/10", "a/2", "a.c", "ab/x", "b/c/d", "b/c-d", "z"]
    for name in names:
        plain.put(name, name.encode())
    assert keys(plain) == sorted(names)
    assert keys(plain, "a/") == ["a/1", "a/10", "a/2"]
    assert keys(plain, "a") == sorted(name for name in names if name.startswith("a"))
    assert keys(plain, "a/1") == ["a/1", "a/10"]
    assert keys(plain, start_after="a/10") == sorted(name for name in names if name > "a/10")
    assert keys(plain, "b/", start_after="b/c-d") == ["b/c/d"]
    assert keys(plain, "nothing/") == []
    assert [meta.size for meta in plain.list("b/")] == [5, 5]


def test_deleting_several_leaves_the_others(plain: Blocking) -> None:
    for i in range(5):
        plain.put(f"d/{i}", b"x")
    plain.delete("d/1", "d/3", "d/99")
    assert keys(plain) == ["d/0", "d/2", "d/4"]
    plain.put("d/1", b"again", if_absent=True)
    assert bytes(plain.get("d/1")) == b"again"


def test_times_of_change_are_about_now(plain: Blocking) -> None:
    plain.put("now", b"x")
    assert abs(plain.head("now").modified - time.time()) < 300


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "a/.", "a b", "ä", "a\n", "x" * 901])
def test_a_key_that_some_store_could_not_hold_is_refused_by_all(plain: Blocking, key: str) -> None:
    with pytest.raises(BadInput, match="is no key"):
        plain.put(key, b"x")
    assert keys(plain) == []
