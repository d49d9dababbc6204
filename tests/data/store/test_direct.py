"""Direct transfers move the same bytes as plain ones, however they lie in memory."""

from __future__ import annotations

import itertools
import mmap
import os
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.data.interface import OutOfRange
from assay.data.store import direct
from assay.data.store.blocking import blocking
from assay.data.store.directory import DirStore

edges = st.sampled_from([1, 511, 4095, 4096, 4097, 65536, direct.CHUNK - 1, direct.CHUNK, direct.CHUNK + 5000])


def random_bytes(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(n)


WHOLE = random_bytes(direct.CHUNK + direct.LARGE + 5 * 4096 + 99)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(edges, min_size=1, max_size=4))
def test_parts_of_any_size_are_written_in_a_row(tmp_path: Path, sizes: list[int]) -> None:
    parts = [random_bytes(size, seed) for seed, size in enumerate(sizes)]
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    if direct.write(path, [memoryview(part) for part in parts]) is None:
        pytest.skip("this file system has no direct transfers")
    assert path.read_bytes() == b"".join(parts)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cuts=st.lists(st.integers(0, len(WHOLE)), max_size=5),
    shift=st.sampled_from([0, 0, 64, 4095]),
    head=st.sampled_from([0, 64, 4096, 5000]),
)
def test_what_lies_in_memory_as_in_the_file_is_written_as_it_is(
    tmp_path: Path, cuts: list[int], shift: int, head: int
) -> None:
    room = direct.aligned(len(WHOLE) + 4096)
    whole = room[shift : shift + len(WHOLE)]
    whole[:] = WHOLE
    ends = [0, *sorted(cuts), len(WHOLE)]
    parts = [memoryview(bytes(head)), *(whole[a:b] for a, b in itertools.pairwise(ends))]
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    if direct.write(path, parts) is None:
        pytest.skip("this file system has no direct transfers")
    assert path.read_bytes() == bytes(head) + WHOLE


class _System:
    """A system that takes so many seconds for a huge page, and tells what it was asked for."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.now, self.huge, self.asked = seconds, 0.0, True, list[bool]()

    def madvise(self, start: int, length: int, advice: int) -> None:
        if advice == mmap.MADV_NOHUGEPAGE:
            self.huge = False
        else:
            self.now += self.seconds if self.huge else 1e-6
            self.asked.append(self.huge)
            self.huge = True


def asked(seconds: float, times: int, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    system, pages = _System(seconds), direct._Pages()
    monkeypatch.setattr(direct, "_libc", lambda: system)
    monkeypatch.setattr(time, "thread_time", lambda: system.now)
    for _ in range(times):
        pages.give(0, direct.HUGE)
    return system.asked


def test_huge_pages_are_asked_for_while_they_come_quickly_and_more_and_more_rarely_where_they_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert all(asked(0.0002, 50, monkeypatch))
    slow = asked(0.005, 300, monkeypatch)
    assert [at for at, huge in enumerate(slow) if huge] == [0, 33, 98, 227]  # 64 MB, 128 MB, 256 MB in small ones


def test_where_there_are_no_direct_transfers_a_store_uses_plain_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(22, "Invalid argument")
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    store, data = blocking(DirStore(tmp_path)), random_bytes(direct.LARGE + 77)
    store.put("large", data)
    into = bytearray(len(data) - 5)
    store.read_into("large", 5, memoryview(into))
    assert bytes(into) == data[5:]


def test_a_large_object_comes_back_whole(tmp_path: Path) -> None:
    store, data = blocking(DirStore(tmp_path)), random_bytes(3 * direct.LARGE + 123)
    store.put("large", [data[:1000], data[1000:]])
    into = bytearray(len(data) - 4096)
    store.read_into("large", 4096, memoryview(into))
    assert bytes(into) == data[4096:]
    assert bytes(store.get("large")) == data


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    start=st.integers(0, 3 * 4096),
    size=st.sampled_from([direct.LARGE - 1, direct.LARGE, direct.LARGE + 4097, direct.CHUNK + direct.LARGE + 77]),
    shift=st.sampled_from([0, 0, 1, 512]),
    cached=st.booleans(),
)
def test_any_span_is_read_as_a_plain_read_would(
    tmp_path: Path, start: int, size: int, shift: int, cached: bool
) -> None:
    path, data = tmp_path / "file", WHOLE
    if not path.exists():
        path.write_bytes(data)
    file = os.open(path, os.O_RDONLY)
    if not cached:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    room = direct.aligned(size + 2 * 4096)
    into = room[start % 4096 + shift :][:size]
    done = direct.read(path, file, start, into)
    os.close(file)
    assert bytes(into[:done]) == data[start : start + done]
    if size < direct.LARGE:
        assert done == 0  # the caller reads it
    elif done:
        assert size - done < 4096


def test_a_file_that_ends_too_early_is_told_and_not_made_up(tmp_path: Path) -> None:
    store = blocking(DirStore(tmp_path))
    store.put("short", WHOLE[: direct.LARGE])
    with pytest.raises(OutOfRange, match="ends at"):
        store.read_into("short", 0, direct.aligned(2 * direct.LARGE))
