"""All ranks of a job as the watcher knows them: the last steps of each, and who is missing, dead, restarted or behind.

Memory is bounded by the number of ranks times the steps kept of each. No rank is waited for: one that stops to report
is left out of the next window and shown for what it is. Times are those of the watcher's own steady clock.

>>> watched = Gathering(window=4)
>>> block = Vectors(0, 0, ("data", "other"), np.full((6, 2), 10**6), 2).to_bytes()
>>> watched.take(Report(rank=0, size=2, start=1, host="a", pid=1, steps=6, vectors=block), now=100.0)
>>> [(one.rank, one.state, one.last_step) for one in watched.ranks(now=100.5)]
[(0, 'reports', 5), (1, 'missing', -1)]
"""

from __future__ import annotations

import math
import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from assay.live.watch.wire import LAST_STEP, Report
from assay.observe.frontier.vectors import Ints, Vectors, Window
from assay.record.errors import BadInput

KEPT = 256  # steps of a rank
WARM_UP = 2  # steps at a rank's start that no reference takes: compiling, allocating, the first workers
LAG = 64  # steps: a rank that is farther back than this waits for nobody, and is waited for by nobody
MOST_REFERENCE = 1000
SILENCE = 5.0  # seconds without a word
_SURE = 2.0  # seconds without a word after which the processes of this machine are asked


@dataclass(slots=True)
class Log:
    """The newest life of a rank."""

    said: Report
    heard: float
    numbers: Ints  # the step in each place of the ring, −1 where none is
    rows: Ints  # (KEPT, stages), ns
    head: dict[int, Ints] = field(default_factory=dict)
    """The first steps, for the reference."""
    first: int = -1
    last: int = -1
    advanced: float = -math.inf  # when its last step rose
    restarts: int = 0


@dataclass(frozen=True, slots=True)
class RankState:
    """How a rank fares."""

    rank: int
    state: str
    """reports, behind, ended, silent, gone (no such process), stopped (a frozen process), missing (never reported)."""
    last_step: int = -1
    host: str = ""
    pid: int = 0
    restarts: int = 0
    dropped: int = 0
    """Steps that the rank could not send."""
    quiet: float = 0.0
    """Seconds since its last word."""
    stage: str = ""
    """The stage it was in when it last spoke, and for how many seconds."""
    since: float = 0.0


class Gathering:
    """Takes reports, and hands out windows of common steps."""

    def __init__(self, window: int = 50, reference: int = 0, silence: float = SILENCE) -> None:
        if not 2 <= window <= KEPT // 2:
            raise BadInput(f"a window of {window} steps; between 2 and {KEPT // 2} would be right")
        if not 0 <= reference <= MOST_REFERENCE:
            raise BadInput(f"a reference of {reference} steps; between 2 and {MOST_REFERENCE}, or 0 for none")
        self.window, self.reference, self.silence = window, reference, silence
        self.stages: tuple[str, ...] = ()
        self.refused: Counter[str] = Counter()
        self.reports = 0
        self._logs: dict[int, Log] = {}
        self._accepted = -math.inf
        self._host = socket.gethostname()[:64]

    # ---------------------------------------------------------------------------------------- taking

    def take(self, report: Report, now: float) -> None:
        """One report, from whoever claims to be this rank; what cannot be is counted and left."""
        log = self._logs.get(report.rank)
        if log is not None and report.start < log.said.start and now - log.heard <= self.silence:
            self.refused["an older process of the same rank"] += 1
            return
        vectors = self._vectors(report, now)
        if vectors is None and report.vectors:
            return
        self.reports += 1
        log = self._logs.get(report.rank)  # another job may just have begun
        if log is None or report.start != log.said.start:
            log = self._logs[report.rank] = self._new(report, log, now)
        log.said, log.heard = report, now
        if vectors is not None:
            self._accepted = now
            self._keep(log, vectors, now)

    def _vectors(self, report: Report, now: float) -> Vectors | None:
        if not report.vectors:
            return None
        try:
            vectors = Vectors.from_bytes(report.vectors)
        except BadInput:
            self.refused["malformed"] += 1
            return None
        odd = vectors.rank != report.rank or vectors.first_step + len(vectors.durations) > LAST_STEP
        if odd or not all(name.isprintable() for name in vectors.stages):
            self.refused["malformed"] += 1
            return None
        if vectors.stages != self.stages:
            if self.stages and now - self._accepted <= self.silence:
                self.refused["other stages than the first rank"] += 1
                return None
            self.stages = vectors.stages  # another job
            self._logs.clear()
        return vectors

    def _new(self, report: Report, before: Log | None, now: float) -> Log:
        stages = len(self.stages)
        log = Log(report, now, np.full(KEPT, -1, np.int64), np.zeros((KEPT, stages), np.int64), advanced=now)
        if before is not None:
            log.restarts = before.restarts + 1
            log.head = before.head  # what was healthy before still is
        return log

    def _keep(self, log: Log, vectors: Vectors, now: float) -> None:
        if log.rows.shape[1] != len(self.stages):  # it spoke before it, or anybody, had finished a step
            log.rows = np.zeros((KEPT, len(self.stages)), np.int64)
        count = len(vectors.durations)
        if not count:
            return
        if log.first < 0:
            log.first = vectors.first_step
        self._keep_head(log, vectors)
        steps = np.arange(vectors.first_step, vectors.first_step + count)[-KEPT:]
        log.rows[steps % KEPT] = vectors.durations[-KEPT:]
        log.numbers[steps % KEPT] = steps
        if int(steps[-1]) > log.last:
            log.last, log.advanced = int(steps[-1]), now

    def _keep_head(self, log: Log, vectors: Vectors) -> None:
        if len(log.head) >= self.reference:
            return
        for place, row in enumerate(vectors.durations):
            step = vectors.first_step + place
            if step >= log.first + WARM_UP and len(log.head) < self.reference:
                log.head[step] = row.copy()

    # ---------------------------------------------------------------------------------------- who fares how

    @property
    def size(self) -> int:
        """How many ranks the job has: what most of them say."""
        claims = Counter(log.said.size for log in self._logs.values())
        return max(claims, key=lambda size: (claims[size], size)) if claims else 0

    def ranks(self, now: float) -> list[RankState]:
        """Every rank that reported or should have."""
        states = {rank: self._state(log, now) for rank, log in self._logs.items()}
        front = self._front([self._logs[rank].last for rank, state in states.items() if state == "reports"])
        found = []
        for rank in sorted(set(range(self.size)) | set(self._logs)):
            log = self._logs.get(rank)
            if log is None:
                found.append(RankState(rank, "missing"))
                continue
            state, said = states[rank], log.said
            if state == "reports" and log.last < front:
                state = "behind"
            found.append(
                RankState(
                    rank, state, log.last, said.host, said.pid, log.restarts, said.dropped, max(now - log.heard, 0.0),
                    said.stage, said.since,
                )
            )  # fmt: skip
        return found

    def _state(self, log: Log, now: float) -> str:
        quiet = now - log.heard
        if log.said.last:
            return "ended"
        if quiet > min(_SURE, self.silence) and log.said.host == self._host:
            found = process_state(log.said.pid)
            if found == "" or found in "ZX":
                return "gone"
            if found == "T":
                return "stopped"
        return "silent" if quiet > self.silence else "reports"

    @staticmethod
    def _front(lasts: Sequence[int]) -> int:
        """The step behind which a rank no longer takes part: some way back from where half of them are."""
        return int(np.median(lasts)) - LAG if lasts else -1

    @property
    def deferred(self) -> bool:
        """Whether any rank queues its work on a device."""
        return any(log.said.deferred for log in self._logs.values())

    def idle(self, now: float) -> float:
        """Seconds since any rank finished a step."""
        return now - max((log.advanced for log in self._logs.values()), default=now)

    # ---------------------------------------------------------------------------------------- windows

    def together(self, states: Sequence[RankState]) -> tuple[list[int], int, int]:
        """The ranks that take part, and the first and last step that all of them may have; (…, 0, −1): none."""
        known = [one for one in states if one.last_step >= 0]
        # Where nobody reports any more, however each of them ended: a launcher kills the others when one fails.
        those = [one.rank for one in known if one.state == "reports"] or [one.rank for one in known]
        if not those:
            return [], 0, -1
        front = self._front([self._logs[rank].last for rank in those])
        those = [rank for rank in those if self._logs[rank].last >= front]
        logs = [self._logs[rank] for rank in those]
        last = min(log.last for log in logs)
        # The first step of a process pays for what is done once; it is nobody's usual step.
        first = max(max(log.first for log in logs), last - KEPT + LAG, 1)
        return those, first, last

    def block(self, ranks: Sequence[int], first: int, last: int) -> Window:
        """The steps `first` … `last` of some ranks; what a rank did not report is marked."""
        steps = np.arange(first, last + 1)
        durations = np.zeros((len(steps), len(ranks), len(self.stages)), np.int64)
        valid = np.zeros((len(steps), len(ranks)), bool)
        for place, rank in enumerate(ranks):
            log = self._logs[rank]
            there = log.numbers[steps % KEPT] == steps
            valid[:, place] = there
            durations[there, place] = log.rows[steps[there] % KEPT]
        return Window(steps, tuple(ranks), self.stages, durations, valid)

    def healthy(self, ranks: Sequence[int]) -> Window | None:
        """The reference of these ranks, once all of them have it."""
        heads = [self._logs[rank].head for rank in ranks]
        if not self.reference or any(len(head) < self.reference for head in heads):
            return None
        steps = np.array(sorted(set.intersection(*(set(head) for head in heads))), np.int64)
        if len(steps) < 2:
            return None
        durations = np.stack([np.stack([head[int(step)] for step in steps]) for head in heads], axis=1)
        if durations.shape[2] != len(self.stages):
            return None
        return Window(steps, tuple(ranks), self.stages, durations, np.ones(durations.shape[:2], bool))


def process_state(pid: int) -> str:
    """The state letter of a process of this machine; empty: there is none; '?': nobody can tell."""
    try:
        about = Path(f"/proc/{pid}/stat").read_bytes()
    except FileNotFoundError:
        return "" if Path("/proc/self/stat").exists() else "?"
    except OSError:
        return "?"
    return about.rpartition(b") ")[2][:1].decode("ascii", "replace") or "?"
