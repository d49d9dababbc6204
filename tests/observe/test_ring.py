"""The ring: its collectives are right on any shape, its probe counts what happened, and its faults are real."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.ccl.probe import KINDS, WORDS, Probe, Records
from assay.observe.ccl_d.job import RingJob
from assay.observe.ccl_d.links import Aborted, connect, listen
from assay.observe.ccl_d.rank import ABSENT
from assay.observe.ccl_d.ring import Ring


def in_ring(n: int, job: Any, channels: int = 1, loops: int = 2) -> tuple[list[Any], Records]:
    """`job(ring, rank)` on every rank of a ring of threads, and the records they leave."""
    listeners = [listen() for _ in range(n)]
    ports = [listener.getsockname()[1] for listener in listeners]
    words = np.zeros((n, WORDS), np.int64)

    def rank(index: int) -> Any:
        probe = Probe(words[index].data, index, n)
        with Ring(index, connect(listeners[index], ports, index, channels=channels), probe, loops=loops) as ring:
            return job(ring, index)

    try:
        with ThreadPoolExecutor(n) as pool:
            return list(pool.map(rank, range(n))), Records.of(words)
    finally:
        for listener in listeners:
            listener.close()


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 5), blocks=st.integers(0, 9), channels=st.integers(1, 3), loops=st.integers(1, 4),
    dtype=st.sampled_from(["f4", "i8"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_every_collective_gives_what_it_should(
    n: int, blocks: int, channels: int, loops: int, dtype: str, seed: int
) -> None:
    random = np.random.default_rng(seed)
    given_arrays = [random.integers(-9, 9, n * blocks).astype(dtype) for _ in range(n)]
    got, records = in_ring(
        n, lambda ring, rank: [ring.call(kind, given_arrays[rank]) for kind in KINDS], channels, loops
    )
    total = np.sum(given_arrays, 0)
    for rank in range(n):
        reduced, gathered, scattered, exchanged = got[rank]
        assert np.array_equal(reduced, total)
        assert np.array_equal(gathered, np.concatenate(given_arrays))
        assert np.array_equal(scattered, total.reshape(n, -1)[rank])
        assert np.array_equal(exchanged, np.concatenate([a.reshape(n, -1)[rank] for a in given_arrays]))
    assert records.finished.tolist() == [4] * n
    assert np.array_equal(np.roll(records.sends, 1, 0), records.recvs)  # what one sent, the next received


def test_the_record_has_the_same_size_after_any_number_of_rounds() -> None:
    sizes = set()
    for rounds in (1, 40):
        _, records = in_ring(2, lambda ring, rank, rounds=rounds: [ring.all_reduce(np.ones(4)) for _ in range(rounds)])
        assert records.finished.tolist() == [rounds, rounds]
        sizes.add(records.words.nbytes // 2)
    assert sizes == {1_184}


def test_only_the_last_sixteen_operations_are_remembered() -> None:
    _, records = in_ring(2, lambda ring, rank: [ring.all_reduce(np.ones(2)) for _ in range(20)])
    assert records.common(99) == list(range(5, 21))
    assert not records.past(4)["known"].any() and records.past(5)["known"].all()


def test_elements_that_do_not_split_evenly_are_refused() -> None:
    with pytest.raises(ValueError, match="5 elements do not split evenly among 2 ranks"):
        in_ring(2, lambda ring, rank: ring.all_to_all(np.ones(5)))


def test_a_throttled_sender_spends_at_least_the_wire_s_time_in_send() -> None:
    listeners = [listen() for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]
    words = np.zeros((2, WORDS), np.int64)

    def rank(index: int) -> None:
        ends = connect(listeners[index], ports, index)
        rate = 1e5 if index == 1 else 0.0
        with Ring(index, ends, Probe(words[index].data, index, 2), rate=lambda: rate) as ring:
            ring.all_reduce(np.ones(2_000, np.float32))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(rank, range(2)))
    spent = Records.of(words).past(1)["send_time"] / 1e9
    assert spent[1] >= 0.08  # 8,000 bytes at 100 kB/s
    for listener in listeners:
        listener.close()


@pytest.mark.parametrize("now", [-(10**13), -1, 0, 10**13])
def test_a_wire_is_free_whatever_a_clock_says_when_it_starts(now: int) -> None:
    # A machine up for minutes and a clock skewed by hours: its first reading lies far below zero.
    ring = Ring(0, Mock(size=2, inlets=[None], outlets=[None]), rate=lambda: 1e6)
    first, second = (ring._posted(np.ones(1_000, np.uint8), now)[0].due for _ in range(2))
    assert (first - now, second - now) == (1_000_000, 2_000_000)  # a kB at 1 MB/s, one after the other


@pytest.mark.parametrize("skew", [-(10**16), 10**16])
def test_ranks_whose_clocks_are_ages_apart_finish(skew: int) -> None:
    late = time.monotonic() + 30

    def job(ring: Ring, rank: int) -> Any:
        ring._clock = lambda: time.monotonic_ns() + rank * skew
        ring._rate, ring._stopped = lambda: 1e6, lambda: time.monotonic() > late
        return ring.all_reduce(np.ones(8)).tolist()

    assert in_ring(3, job)[0] == [[3.0] * 8] * 3


def test_a_slice_of_another_call_never_matches_and_waiting_ends_only_by_order() -> None:
    stop: list[bool] = []
    listeners = [listen() for _ in range(2)]
    ports = [listener.getsockname()[1] for listener in listeners]

    def rank(index: int) -> str:
        ends = connect(listeners[index], ports, index)
        with Ring(index, ends, stopped=lambda: bool(stop)) as ring:
            try:
                ring.all_reduce(np.ones(8 + index))
            except Aborted:
                return "aborted"
            return "done"

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(rank, index) for index in range(2)]
        time.sleep(0.3)
        assert not any(future.done() for future in waiting)
        stop.append(True)
        assert [future.result(30) for future in waiting] == ["aborted", "aborted"]
    for listener in listeners:
        listener.close()


def test_a_job_of_processes_survives_a_hang_and_runs_again() -> None:
    with RingJob(3, seed=1) as job:
        job.start("all_reduce", count=300, rounds=10_000)
        wait_for(lambda: job.rounds >= 2)
        job.skip(1)
        wait_for(lambda: job.phase(1) == ABSENT)
        places = job.stacks(wait=10.0)
        assert set(places) == {0, 1, 2} and all(places.values())
        job.abort()
        job.start("all_to_all", count=300, rounds=4)
        job.finish()
        assert job.records().finished.tolist() == [4, 4, 4]


def wait_for(met: Any, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not met():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)
