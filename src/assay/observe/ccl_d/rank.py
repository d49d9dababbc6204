"""One rank of the ring job: what runs inside each process, and the shared words by which it is told what to do.

>>> WORDS_OF_CONTROL, ORDERS, STATES
(7, 6, 4)
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from io import FileIO
from multiprocessing import connection, parent_process
from pathlib import Path
from types import FrameType

import numpy as np
from numpy.typing import NDArray

from assay.observe.ccl.probe import COMMUNICATOR, KINDS, NoProbe, Probe
from assay.observe.ccl_d.links import Aborted, connect, listen
from assay.observe.ccl_d.ring import Ring
from assay.sim.ranks import Rank
from assay.sim.streams import stream

CHANNELS = 1
IDLE = 300.0  # seconds without a run after which a rank goes home
RUN, ABORTED, KIND, COUNT, ROUNDS, PROBED, COMPUTING = range(7)  # words of control
LATE, WIRE, ACT, ARGUMENT, JITTER, MEMBER = range(6)  # of a rank's orders
CALL, SKIP, OTHER_COUNT, OTHER_KIND = range(4)  # acts
PORT, DONE, PHASE, ROUND = range(4)  # of a rank's state
OUTSIDE, INSIDE, ABSENT = range(3)  # phases
WORDS_OF_CONTROL, ORDERS, STATES = COMPUTING + 1, MEMBER + 1, ROUND + 1


def work(rank: Rank, seed: int, compute: float, folder: str) -> None:
    """One rank: wait for a run, take part in it, wait for the next."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    control, state = rank.array("control"), rank.array("state")[rank.index]
    with (Path(folder) / str(rank.index)).open("wb", buffering=0) as stacks, listen() as listener:
        signal.signal(signal.SIGUSR1, lambda _, frame: _tell(stacks, frame))
        state[PORT] = listener.getsockname()[1]
        seen, idle = 0, time.monotonic()
        while time.monotonic() - idle < IDLE:
            if control[RUN] == seen:
                time.sleep(0.002)
                continue
            seen = int(control[RUN])
            with contextlib.suppress(Aborted):
                _run(rank, seen, seed, compute, listener)
            state[PHASE] = OUTSIDE
            state[DONE] = seen
            idle = time.monotonic()


def _tell(stacks: FileIO, frame: FrameType | None) -> None:
    """Where this rank is, innermost first, in one write.

    A handler in Python, which runs between two instructions: faulthandler's walks the stack while it changes, and one
    rank in some thousand samples died of it.
    """
    names = []
    while frame is not None:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    stacks.write("".join(f"{name}\n" for name in names).encode())


def _end_with_parent() -> None:
    """A rank waits in a collective for as long as it takes, but not longer than whoever started it lives."""
    parent = parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
        os._exit(1)


def _run(rank: Rank, run: int, seed: int, compute: float, listener: socket.socket) -> None:
    control, orders = rank.array("control"), rank.array("orders")
    members = [int(i) for i in np.flatnonzero(orders[:, MEMBER])]
    if rank.index not in members:
        return
    own, state = orders[rank.index], rank.array("state")[rank.index]
    ports = [int(port) for port in rank.array("state")[members, PORT]]
    skew = int(stream(seed, "clock", rank.index).integers(-(10**13), 10**13))  # hours: no two clocks agree

    def clock() -> int:
        return time.monotonic_ns() + skew

    def stopped() -> bool:
        return bool(control[ABORTED] >= run)

    position = members.index(rank.index)
    probe: Probe | NoProbe = NoProbe()
    if control[PROBED]:
        probe = Probe(memoryview(rank.array("records")[rank.index]), rank.index, len(members))
        probe.words[COMMUNICATOR] = run
    ends = connect(listener, ports, position, channels=CHANNELS, ring=run, stopped=stopped)
    with Ring(position, ends, probe, rate=lambda: float(own[WIRE]), stopped=stopped, clock=clock) as ring:
        computed, taken = [], []
        for index in range(int(control[ROUNDS])):
            if stopped():
                raise Aborted
            state[PHASE], state[ROUND] = OUTSIDE, index
            free = time.monotonic()
            if control[COMPUTING]:
                time.sleep(compute + float(own[LATE]) + _jitter(float(own[JITTER]), (seed, run, index), position, ring))
            began = time.monotonic()
            computed.append(began - free)
            _collective(ring, rank, own, state, stopped)
            taken.append(time.monotonic() - began)
        rank.array("seconds")[rank.index] = float(np.median(taken))
        rank.array("computed")[rank.index] = float(np.median(computed))


def _jitter(seconds: float, draw: tuple[int, int, int], position: int, ring: Ring) -> float:
    """Jitter hits one round in twenty, and one rank in it: all ranks draw the same numbers."""
    if not seconds:
        return 0.0
    seed, run, index = draw
    numbers = stream(seed, "jitter", run, index)
    return seconds if numbers.random() < 0.05 and int(numbers.integers(ring.size)) == position else 0.0


def _collective(
    ring: Ring, rank: Rank, own: NDArray[np.float64],
    state: NDArray[np.int64], stopped: Callable[[], bool],
) -> None:  # fmt: skip
    control, act = rank.array("control"), int(own[ACT])
    if act == SKIP:
        state[PHASE] = ABSENT
        while not stopped():
            time.sleep(0.01)
        raise Aborted
    kind = KINDS[int(own[ARGUMENT])] if act == OTHER_KIND else KINDS[int(control[KIND])]
    count = int(own[ARGUMENT]) if act == OTHER_COUNT else int(control[COUNT])
    state[PHASE] = INSIDE
    ring.call(kind, np.ones(count, np.float32))
