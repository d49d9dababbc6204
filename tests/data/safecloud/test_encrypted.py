"""A sealed store notices what is done to its objects, and reads little more than it is asked for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data import MemStore, Metered, blocking
from assay.data.engine.version_log import Damaged
from assay.data.safecloud import Encrypted
from assay.record.errors import BadInput
from assay.sim.ledger import Ledger

SECRET = bytes(range(32))


@given(st.binary(max_size=100), st.data())
def test_any_change_of_a_stored_byte_is_noticed(content: bytes, data: st.DataObject) -> None:
    below = MemStore()
    store = blocking(Encrypted(below, SECRET, chunk=16))
    store.put("x", content)
    whole = below.objects["x"]
    at = data.draw(st.integers(0, len(whole) - 1))
    harmed = [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole[:at], whole + b"0"]
    below.objects["x"] = data.draw(st.sampled_from(harmed))
    with pytest.raises(Damaged):
        store.get("x")


def test_two_objects_cannot_be_exchanged() -> None:
    below = MemStore()
    store = blocking(Encrypted(below, SECRET))
    store.put("a", b"1")
    store.put("b", b"2")
    below.objects["a"], below.objects["b"] = below.objects["b"], below.objects["a"]
    for key in "ab":
        with pytest.raises(Damaged, match="moved, or sealed with another"):
            store.get(key)


def test_another_writer_may_replace_an_object_whose_head_is_known() -> None:
    below = MemStore()
    one, two = (blocking(Encrypted(below, SECRET, chunk=16)) for _ in range(2))
    one.put("x", b"a" * 100)
    assert bytes(two.get("x", 90, 10)) == b"a" * 10
    one.put("x", b"b" * 200)
    assert bytes(two.get("x", 190, 10)) == b"b" * 10
    one.put("x", b"c" * 20)
    assert bytes(two.get("x", 15, 5)) == b"c" * 5


def test_no_two_puts_share_a_byte_stream() -> None:
    below = MemStore()
    store = blocking(Encrypted(below, SECRET))
    store.put("x", bytes(64))
    first = below.objects["x"]
    store.put("x", bytes(64))
    assert below.objects["x"][8:] != first[8:]


def test_a_range_costs_one_request_and_a_tenth_more_at_most() -> None:
    ledger = Ledger()
    below = MemStore()
    store = blocking(Encrypted(Metered(below, ledger, who="below"), SECRET))
    content = bytes(4 << 20)
    store.put("x", content)
    assert len(below.objects["x"]) <= 1.01 * len(content)
    store.get("x", 0, 1)  # learns the head
    requests, moved = ledger.requests("get"), ledger.nbytes("get")
    assert len(store.get("x", 1_000_001, 1 << 20)) == 1 << 20
    assert ledger.requests("get") - requests == 1
    assert ledger.nbytes("get") - moved <= 1.1 * (1 << 20)


def test_a_short_secret_is_refused() -> None:
    with pytest.raises(BadInput, match="at least 16 bytes"):
        Encrypted(MemStore(), b"password")
