"""A training job in small: real processes that compute and meet in a collective, and faults to inject from outside.

Each rank is a process of its own (:mod:`assay.sim.ranks`) that repeats *compute, then a collective* on a ring of
sockets (:mod:`assay.observe.ccl_d.ring`). Computing is a sleep, said aloud: eight busy ranks on two cores would measure
the scheduler. Everything else is real: the bytes, the waiting, the signals. Whoever injects a fault writes an order
that the rank finds before its next round (be late, do not call, call something else), caps what it may put on the wire,
or sends it a signal. Every rank's clock starts somewhere else.

One launch serves many incidents: `start` begins a run on a fresh ring, `abort` ends it wherever it is stuck.

>>> with RingJob(2, seed=0) as job:
...     job.start("all_reduce", count=1024, rounds=3)
...     job.finish(timeout=60)
...     job.records().finished.tolist()
[3, 3]
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from assay.observe.ccl.probe import KINDS, WORDS, Records
from assay.observe.ccl_d.rank import (
    ABORTED,
    ACT,
    ARGUMENT,
    COMPUTING,
    COUNT,
    DONE,
    JITTER,
    KIND,
    LATE,
    MEMBER,
    ORDERS,
    OTHER_COUNT,
    OTHER_KIND,
    PHASE,
    PORT,
    PROBED,
    ROUND,
    ROUNDS,
    RUN,
    SKIP,
    STATES,
    WIRE,
    WORDS_OF_CONTROL,
    work,
)  # fmt: skip
from assay.sim.ranks import RankFailed, Ranks
from assay.sim.scratch import scratch

COMPUTE = 0.01  # seconds of a rank's own work in a round
RATE = 20e6  # bytes a second that a healthy rank puts on the wire


class RingJob:
    """`n` ranks on one machine; use it in a `with` block."""

    def __init__(self, n: int, seed: int, *, compute: float = COMPUTE, rate: float = RATE) -> None:
        self.n, self.seed, self.rate, self._compute = n, seed, rate, compute
        self._stopped: set[int] = set()
        self.dead: set[int] = set()

    def __enter__(self) -> RingJob:
        n = self.n
        orders = np.zeros((n, ORDERS))
        orders[:, WIRE] = self.rate
        arrays = {
            "records": np.zeros((n, WORDS), np.int64), "control": np.zeros(WORDS_OF_CONTROL, np.int64),
            "orders": orders, "state": np.zeros((n, STATES), np.int64), "seconds": np.zeros(n), "computed": np.zeros(n),
        }  # fmt: skip
        with ExitStack() as opened:  # a rank that does not start leaves no folder either
            self._folder = opened.enter_context(scratch())
            given = (self.seed, self._compute, str(self._folder))
            self._ranks = opened.enter_context(Ranks(n, work, *given, arrays=arrays, imports=[work.__module__]))
            self._opened = opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.__exit__(kind, error, trace)

    # ------------------------------------------------------------------------------------------- a run of rounds

    def ready(self, timeout: float = 120.0) -> None:
        """Wait until every process has started: that is work for the machine, and noise to whoever measures."""
        self._until(lambda: bool((self._ranks.array("state")[:, PORT] > 0).all()), timeout, "start")

    def start(
        self, kind: str, count: int, rounds: int, *,
        members: Sequence[int] | None = None, probed: bool = True, computing: bool = True,
    ) -> None:  # fmt: skip
        """Begin a run: all ranks, or some, repeat this collective on `count` elements, computing before each or not."""
        control, orders = self._ranks.array("control"), self._ranks.array("orders")
        self.ready()
        orders[:, MEMBER] = 0.0
        orders[list(range(self.n) if members is None else members), MEMBER] = 1.0
        self._ranks.array("state")[:, ROUND] = 0
        self._ranks.array("records")[:] = 0  # what an earlier run left must not look like this one's
        control[KIND], control[COUNT], control[ROUNDS], control[PROBED] = KINDS.index(kind), count, rounds, probed
        control[COMPUTING] = computing
        control[RUN] += 1

    def finish(self, timeout: float = 60.0) -> None:
        """Wait until the run's rounds are over.

        Raises:
            RankFailed: some rank is still at it.
        """
        run = int(self._ranks.array("control")[RUN])
        alive = [rank for rank in range(self.n) if rank not in self.dead]
        self._until(lambda: bool((self._ranks.array("state")[alive, DONE] >= run).all()), timeout, "finish")

    def abort(self, timeout: float = 20.0) -> None:
        """End the run wherever it is, as killing the job would: frozen ranks go on, what the program did wrong is over.

        A rank that computes or sends slowly still does: such faults outlive a job, :meth:`heal` ends them.
        """
        control, orders = self._ranks.array("control"), self._ranks.array("orders")
        control[ABORTED] = control[RUN]
        for rank in list(self._stopped):
            self.go_on(rank)
        self.finish(timeout)
        orders[:, [ACT, ARGUMENT, JITTER]] = 0.0

    def heal(self) -> None:
        """No rank is slow any more."""
        orders = self._ranks.array("orders")
        orders[:, LATE], orders[:, WIRE] = 0.0, self.rate

    def time(self, members: Sequence[int], count: int = 32_768, rounds: int = 3) -> float:
        """A micro-benchmark: the median seconds of an all-reduce among some of the ranks, which do nothing else."""
        self.start("all_reduce", count, rounds, members=members, probed=False, computing=False)
        self.finish()
        return float(self._ranks.array("seconds")[list(members)].max())

    def compute_times(self, rounds: int = 3) -> list[float]:
        """Another: the median seconds that each rank computes in a round."""
        self.start("all_reduce", self.n, rounds, probed=False)
        self.finish()
        return [float(seconds) for seconds in self._ranks.array("computed")]

    # ---------------------------------------------------------------------------------------------------- faults

    def late(self, rank: int, seconds: float) -> None:
        """From its next round on, the rank computes this much longer."""
        self._ranks.array("orders")[rank, LATE] = seconds

    def throttle(self, rank: int, rate: float) -> None:
        """From now on, the rank puts at most so many bytes a second on the wire."""
        self._ranks.array("orders")[rank, WIRE] = rate

    def skip(self, rank: int) -> None:
        """The rank does not call its next collective, nor any after it."""
        self._ranks.array("orders")[rank, ACT] = SKIP

    def differ(self, rank: int, *, kind: str | None = None, count: int | None = None) -> None:
        """The rank calls its next collectives with another kind or count than the rest."""
        orders = self._ranks.array("orders")
        orders[rank, ARGUMENT] = KINDS.index(kind) if kind is not None else count or 0
        orders[rank, ACT] = OTHER_KIND if kind is not None else OTHER_COUNT

    def jitter(self, seconds: float) -> None:
        """On one round in twenty, some rank or other takes so much longer: noise, not a fault."""
        self._ranks.array("orders")[:, JITTER] = seconds

    def stop(self, rank: int) -> None:
        """SIGSTOP: the rank freezes where it is."""
        self._ranks.stop(rank)
        self._stopped.add(rank)

    def go_on(self, rank: int) -> None:
        """SIGCONT: a frozen rank continues."""
        self._ranks.go_on(rank)
        self._stopped.discard(rank)

    def kill(self, rank: int) -> None:
        """SIGKILL: the rank is gone, and with it the launch's further use for that rank."""
        self._ranks.kill(rank)
        self._stopped.discard(rank)
        self.dead.add(rank)

    # -------------------------------------------------------------------------------------------- what can be seen

    def records(self) -> Records:
        """All ranks' probe records, copied now: what an analyzer pulls."""
        return Records.of(self._ranks.array("records"))

    def record(self, rank: int) -> NDArray[np.int64]:
        """One rank's record as it changes: what that rank's own watch reads."""
        row: NDArray[np.int64] = self._ranks.array("records")[rank]
        return row

    def phase(self, rank: int) -> int:
        """Where the rank says it is (OUTSIDE, INSIDE, ABSENT): the truth for scoring, not for a diagnosis."""
        return int(self._ranks.array("state")[rank, PHASE])

    @property
    def rounds(self) -> int:
        """Rounds that every rank has begun."""
        return int(self._ranks.array("state")[:, ROUND].min())

    def queued(self) -> dict[int, float]:
        """Seconds that each living rank has waited for a processor so far, where the kernel tells."""
        files = {row["rank"]: Path(f"/proc/{row['pid']}/schedstat") for row in self._ranks.table if row["alive"]}
        return {rank: int(file.read_text().split()[1]) / 1e9 for rank, file in files.items() if file.exists()}

    def stacks(self, wait: float = 0.2) -> dict[int, tuple[str, ...]]:
        """What every rank's Python stack looks like, innermost first; who does not answer in time has none."""
        files = {rank: self._folder / str(rank) for rank in range(self.n)}
        before = {rank: file.stat().st_size for rank, file in files.items()}
        asked = [row["rank"] for row in self._ranks.table if row["alive"]]
        for row in self._ranks.table:
            if row["alive"]:
                os.kill(row["pid"], signal.SIGUSR1)
        end = time.monotonic() + wait
        while time.monotonic() < end and any(files[rank].stat().st_size == before[rank] for rank in asked):
            time.sleep(0.005)
        return {rank: tuple(file.read_bytes()[before[rank] :].decode().split()) for rank, file in files.items()}

    def _until(self, met: Callable[[], bool], timeout: float, what: str) -> None:
        end = time.monotonic() + timeout
        while not met():
            gone = [row["rank"] for row in self._ranks.table if not row["alive"] and row["rank"] not in self.dead]
            if gone:
                raise RankFailed(f"rank {gone[0]} of the ring died: {self._ranks.reason(gone[0])}")
            if time.monotonic() > end:
                raise RankFailed(f"the ring did not {what} in {timeout:g} s")
            time.sleep(0.002)
