from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.data.engine.segments import PAGE, SegmentBlob, checked, checksum, digest, open_blob
from assay.data.engine.version_log import Damaged
from assay.data.interface import NotFound
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.sim.ledger import Ledger

contents = st.dictionaries(st.text(min_size=1, max_size=8), st.binary(max_size=9000), max_size=12)


def stored(segments: dict[str, bytes]) -> MemStore:
    blob, store = SegmentBlob(), MemStore()
    for key, data in segments.items():
        blob.add(key, data, rows=len(data))
    asyncio.run(store.put("blob", blob.parts()))
    return store


@given(contents)
def test_every_segment_comes_back_by_one_range(segments: dict[str, bytes]) -> None:
    store = stored(segments)
    ledger = Ledger()
    blob = asyncio.run(open_blob(Metered(store, ledger), "blob"))
    opening = ledger.requests("get")
    assert {key: (row.length, row.rows) for key, row in blob.segments.items()} == {
        key: (len(data), len(data)) for key, data in segments.items()
    }
    for key, data in segments.items():
        assert bytes(asyncio.run(blob.get(key))) == data
    assert ledger.requests("get") == opening + len(segments)


@given(contents.filter(bool), st.data())
def test_a_changed_byte_is_noticed_wherever_it_is_read(segments: dict[str, bytes], data: st.DataObject) -> None:
    store = stored(segments)
    blob = asyncio.run(open_blob(store, "blob"))
    whole = bytearray(store.objects["blob"])
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1
    store.objects["blob"] = bytes(whole)
    inside = [key for key, row in blob.segments.items() if row.offset <= place < row.offset + row.length]
    if inside:
        with pytest.raises(Damaged, match="restore it from a copy"):
            asyncio.run(blob.get(inside[0]))
        return
    body = max((row.offset + row.length for row in blob.segments.values()), default=0)
    if place >= body:
        with pytest.raises(Damaged):
            asyncio.run(open_blob(store, "blob"))


def test_large_segments_begin_on_a_page_and_small_ones_on_a_line() -> None:
    blob = SegmentBlob()
    offsets = [blob.add(str(i), bytes(size)).offset for i, size in enumerate([10, 5000, 3, PAGE, 70])]
    assert offsets == [0, PAGE, PAGE + 5056, 3 * PAGE, 4 * PAGE]


def test_a_footer_longer_than_the_first_guess_is_read_with_one_more_request() -> None:
    segments = {f"segment number {i:06d}": b"x" for i in range(3000)}
    blob = asyncio.run(open_blob(stored(segments), "blob"))
    assert set(blob.segments) == set(segments)


def test_what_is_no_blob_is_told_so() -> None:
    store = MemStore()
    asyncio.run(store.put("short", b"x"))
    asyncio.run(store.put("long", bytes(100_000)))
    for key in ("short", "long"):
        with pytest.raises(Damaged, match="is no blob of segments, or lost its end"):
            asyncio.run(open_blob(store, key))
    with pytest.raises(NotFound):
        asyncio.run(open_blob(store, "nowhere"))
    blob = asyncio.run(open_blob(stored({"a": b"x"}), "blob"))
    with pytest.raises(NotFound, match="no segment 'b'"):
        asyncio.run(blob.get("b"))


@given(st.binary(min_size=1, max_size=5000), st.integers(0, 10**6))
def test_a_digest_and_a_checksum_are_told_apart_by_their_length_and_both_notice_a_bit(data: bytes, bit: int) -> None:
    harmed = bytearray(data)
    harmed[bit // 8 % len(data)] ^= 1 << bit % 8
    for expected in (digest(data), checksum(data)):
        assert checked(data, expected, "it") == data
        with pytest.raises(Damaged, match="it is damaged"):
            checked(harmed, expected, "it")
