"""Pickles of plain data read as the standard library does; anything that would run code is refused unopened."""

from __future__ import annotations

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.workloads import plain_pickle

KEYS = st.one_of(st.text(), st.integers(), st.booleans(), st.none())
DATA = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary()),
    lambda inner: st.one_of(
        st.lists(inner), st.dictionaries(KEYS, inner), st.lists(inner, max_size=4).map(tuple)
    ),
    max_leaves=40,
)  # fmt: skip


class Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


@given(value=DATA, protocol=st.integers(3, 5))
def test_plain_data_read_as_the_standard_library_reads_them(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    assert plain_pickle.loads(data) == pickle.loads(data)


def test_shared_and_circular_values_keep_their_identity() -> None:
    inner = ["a"]
    both = plain_pickle.loads(pickle.dumps([inner, inner]))
    assert both[0] is both[1]
    circular: list[Any] = []
    circular.append(circular)
    read = plain_pickle.loads(pickle.dumps(circular))
    assert read[0] is read


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_a_pickle_that_would_run_code_is_refused_and_nothing_runs(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    data = pickle.dumps({"entries": [Runs(str(target))]}, protocol)
    with pytest.raises(BadInput, match="offset") as refused:
        plain_pickle.loads(data, "dump")
    assert not target.exists()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "data",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"(ios\nsystem\n.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
        b"\x80\x02}(X\x01\x00\x00\x00ab.",
        b"\x80\x02\x82\x01.",
        b"Pid\n.",
        b"\x80\x02K\x01Q.",
        b"\x80\x05\x97.",
    ],
)
def test_every_instruction_that_reaches_outside_is_refused(data: bytes) -> None:
    with pytest.raises(BadInput, match=r"offset \d+"):
        plain_pickle.loads(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02Nr\xff\xff\xff\x7f.",  # a memo entry far away
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7f",  # a text longer than memory
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x00",  # a byte array likewise
        b"\x80\x02B\xff\xff\xff\x7f",
        b"\x80\x02\x8b\xff\xff\xff\x7f",
        b"\x80\x02\x8b\xff\xff\xff\xff",  # a negative length
        b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
    ],
)
def test_a_few_bytes_cannot_ask_for_much_memory(data: bytes) -> None:
    tracemalloc.start()
    try:
        try:
            assert plain_pickle.loads(data) is None
        except BadInput as refused:
            assert "offset" in str(refused)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_every_cut_is_refused_with_its_offset() -> None:
    data = pickle.dumps({"version": "2.10", "entries": [{"state": "started", "sizes": [[1, 2]], "t": 1.5}]}, 2)
    for end in range(len(data)):
        with pytest.raises(BadInput, match=r"dump: offset \d+"):
            plain_pickle.loads(data[:end], "dump")


@settings(max_examples=300)
@given(st.data())
def test_mutated_bytes_give_a_value_or_one_line(data: st.DataObject) -> None:
    good = bytearray(
        pickle.dumps({"entries": [{"state": "started", "n": i} for i in range(5)]}, data.draw(st.integers(2, 5)))
    )
    for _ in range(data.draw(st.integers(1, 6))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    try:
        plain_pickle.loads(bytes(good))
    except BadInput as refused:
        assert "\n" not in str(refused)


@settings(max_examples=300)
@given(st.binary(max_size=60))
def test_noise_gives_a_value_or_one_line(noise: bytes) -> None:
    try:
        plain_pickle.loads(noise)
    except BadInput as refused:
        assert "offset" in str(refused)


@given(value=DATA, protocol=st.integers(0, 5))
def test_a_reader_of_records_reads_plain_data_alike(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, max(protocol, 3))
    assert plain_pickle.loads(data, inert=True) == pickle.loads(data)


@pytest.mark.parametrize("protocol", [4, 5])  # before, the function itself was found by a call
def test_a_record_says_what_would_have_been_called_and_nothing_is(tmp_path: Path, protocol: int) -> None:
    target = tmp_path / "made"
    read = plain_pickle.loads(pickle.dumps({"entries": [Runs(str(target))]}, protocol), inert=True)
    (record,) = read["entries"]
    assert record.name == "pathlib.Path.touch"
    assert not target.exists()


@given(data=st.binary(max_size=60), start=st.sampled_from([b"", b"\x80\x02", b"\x80\x04\x8c\x02os\x8c\x06system\x93"]))
def test_bytes_of_any_kind_are_records_or_one_line(data: bytes, start: bytes) -> None:
    try:
        plain_pickle.loads(start + data, inert=True)
    except BadInput as refused:
        assert "\n" not in str(refused)
