"""Messages round a ring of sockets: all arrive, in order, however large; strangers and the dead are told apart."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.ncclz.wire import BUFFER, TOKEN, Wire

LIMIT = 60.0


class Job:
    """As much of torch.distributed as a wire asks for, for threads of this process."""

    def __init__(self, size: int) -> None:
        self.told: list[Any] = [None] * size
        self.meeting = threading.Barrier(size)
        self.own = threading.local()

    def get_rank(self) -> int:
        return int(self.own.rank)

    def all_gather_object(self, found: list[Any], mine: Any, group: Any = None) -> None:
        self.told[self.own.rank] = mine
        self.meeting.wait(LIMIT)
        found[:] = self.told


def on_ring(size: int, work: Callable[[Wire, int], Any], order: list[int] | None = None) -> list[Any]:
    job = Job(size)

    def one(rank: int) -> Any:
        job.own.rank = rank
        return work(Wire(job, order or list(range(size))), rank)

    with ThreadPoolExecutor(size) as threads:
        return [found.result(LIMIT) for found in [threads.submit(one, rank) for rank in range(size)]]


@given(st.integers(2, 4), st.lists(st.integers(0, 5000), max_size=6), st.integers(0, 99))
def test_all_messages_arrive_whole_and_in_order(size: int, lengths: list[int], seed: int) -> None:
    bodies = [
        np.random.default_rng(seed + n).integers(0, 256, length).astype(np.uint8) for n, length in enumerate(lengths)
    ]

    def work(wire: Wire, rank: int) -> list[tuple[bytes, float, float]]:
        for n, body in enumerate(bodies):
            wire.send(np.append(body, np.uint8(rank)), float(rank), float(n))
        found = [wire.recv() for _ in bodies]
        wire.flush()
        return [(body.tobytes(), of, number) for body, of, number in found]

    for rank, found in enumerate(on_ring(size, work)):
        before = (rank - 1) % size
        assert found == [(b.tobytes() + bytes([before]), float(before), float(n)) for n, b in enumerate(bodies)]


def test_nobody_waits_for_ever_where_all_send_more_than_buffers_hold_before_they_read() -> None:
    large = np.arange(3 * BUFFER, dtype=np.uint32).view(np.uint8)

    def work(wire: Wire, rank: int) -> bool:
        wire.send(large, 0.0, 0.0)
        wire.send(large, 0.0, 0.0)
        same = all(np.array_equal(wire.recv()[0], large) for _ in range(2))
        wire.flush()
        return same

    assert on_ring(3, work, order=[2, 0, 1]) == [True, True, True]


def test_a_rank_that_hangs_up_is_named() -> None:
    def work(wire: Wire, rank: int) -> str:
        if rank == 1:
            return ""
        with pytest.raises(RuntimeError, match="the ring is broken at rank 1: it hung up"):
            wire.recv()
        return "told"

    assert on_ring(2, work) == ["told", ""]


def test_strangers_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever connects first, says nothing, too little or something wrong is not taken for the rank before."""
    serve = socket.create_server
    strangers = []

    def crowded(where: Any) -> socket.socket:
        listener = serve(where)
        for word in (None, b"", b"x", b"x" * TOKEN):
            stranger = socket.create_connection(listener.getsockname())
            strangers.append(stranger)
            if word is not None:
                stranger.sendall(word)
                stranger.shutdown(socket.SHUT_WR)
        return listener

    monkeypatch.setattr(socket, "create_server", crowded)

    def work(wire: Wire, rank: int) -> int:
        wire.send(np.array([rank], np.uint8), 0.0, 0.0)
        return int(wire.recv()[0][0])

    assert on_ring(3, work) == [2, 0, 1]
    for one in strangers:
        one.close()
