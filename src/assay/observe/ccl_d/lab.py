"""Labelled incidents on a real ring of processes: six kinds of fault, injected on a rank nobody is told.

H1 a rank does not call; H2 a rank calls with another size or another collective; H3 a rank is stopped or killed by a
signal while it is inside; S1 a rank computes longer; S2 what a rank sends is capped; S3 one rank is late while
another's sending is capped. Which rank, which collective and how strongly is drawn from the seed.

>>> count_for("all_gather", ranks=4, seconds=0.03, rate=20e6)
50000
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from assay.observe.ccl.detect import Symptom, Watch, watch_all
from assay.observe.ccl.locate import H1, H2, H3, S1, S2, S3, locate, share
from assay.observe.ccl.probe import KINDS, Records
from assay.observe.ccl_d.job import RingJob
from assay.observe.ccl_d.rank import INSIDE
from assay.observe.interface import Diagnosis
from assay.record.errors import StudyFailed
from assay.sim.ranks import RankFailed
from assay.sim.streams import stream

WARM_ROUNDS = 7
WIRE_SECONDS = 0.03  # what a healthy collective spends on the wire
_POLL = 0.003
_ELEMENT = 4  # bytes


@dataclass(frozen=True)
class Injected:
    """The truth: what was done to whom, and when (this process's clock)."""

    fault: str
    culprits: tuple[int, ...]
    kind: str
    how: str
    at: float


@dataclass(frozen=True)
class Sighting:
    """What the watches and the analyzer made of it.

    In seconds: `delay` from the injection to the symptom, `pulled` from there until the records that count were read
    (waiting for rounds included), `locating` until there was a name.
    """

    truth: Injected
    symptom: Symptom | None
    diagnosis: Diagnosis
    delay: float
    pulled: float
    locating: float
    records: Records
    false_alarms: int
    queued: float  # the share of the time that ranks waited for a processor: the host's own jitter

    @property
    def named(self) -> bool:
        """The first suspects are the culprits, all of them and nobody else."""
        return names(self.diagnosis, self.truth.culprits)

    @property
    def classified(self) -> bool:
        """The class is the injected one."""
        return self.diagnosis.label == self.truth.fault


def names(diagnosis: Diagnosis, culprits: Sequence[int]) -> bool:
    """Whether the suspects are the culprits: somebody acts on all of them.

    >>> from assay.observe.interface import Suspect
    >>> names(Diagnosis((Suspect("3", None, 1.0),)), [3]), names(Diagnosis(), [3])
    (True, False)
    """
    return {suspect.entity for suspect in diagnosis.suspects} == {str(rank) for rank in culprits}


def count_for(kind: str, ranks: int, seconds: float = WIRE_SECONDS, rate: float = 20e6) -> int:
    """The elements with which a collective spends so long on a healthy wire, divisible by the ranks."""
    nbytes = seconds * rate
    times = {
        "all_reduce": 2 * (ranks - 1) / ranks, "reduce_scatter": (ranks - 1) / ranks, "all_gather": ranks - 1.0,
        "all_to_all": (ranks - 1) / 2,
    }[kind]  # fmt: skip
    return max(1, round(nbytes / times / _ELEMENT / ranks)) * ranks


def incident(
    job: RingJob, fault: str, seed: int, turn: int = 0, *, hang_after: float, wire: float = WIRE_SECONDS
) -> Sighting:
    """Run, inject, wait for a watch to report, pull the records and name somebody. The job is left as it is."""
    random = stream(seed, "ccl-d", fault, turn)
    kind = KINDS[int(random.integers(len(KINDS)))]
    watches = [Watch(hang_after=hang_after) for _ in range(job.n)]
    job.start(kind, count_for(kind, job.n, wire, job.rate), rounds=1_000_000)
    waited, started = job.queued(), time.monotonic()
    early = _watch(job, watches, lambda: job.rounds >= WARM_ROUNDS, timeout=60.0)
    if job.rounds < WARM_ROUNDS:
        raise StudyFailed(f"the job of {job.n} ranks finished {job.rounds} rounds in a minute: it did not start")
    usual = float(np.median(_recent(job.records(), WARM_ROUNDS).max(1)))
    truth = inject(job, fault, kind, random, wire, usual)
    seen = _watch(job, watches, lambda: False, timeout=10.0 + 4 * hang_after, first=True)
    delay = time.monotonic() - truth.at
    begin = time.perf_counter()
    earlier = job.records()
    if seen:
        _settle(job, seen[0])
    records, pulled = job.records(), time.perf_counter() - begin
    symptom = seen[0] if seen else None
    diagnosis = locate(records, symptom, earlier) if symptom else Diagnosis(why="nobody noticed")
    locating = time.perf_counter() - begin
    queued = queued_since(job, waited, started)
    return Sighting(truth, symptom, diagnosis, delay, pulled, locating, records, len(early), queued)


def queued_since(job: RingJob, waited: dict[int, float], begun: float) -> float:
    """The share of the time since then that the job's ranks have waited for a processor."""
    spent = [after - waited[rank] for rank, after in job.queued().items() if rank in waited]
    return sum(spent) / max(1, len(spent)) / (time.monotonic() - begun)


def _settle(job: RingJob, symptom: Symptom) -> None:
    """Before the pull that counts: of a hang, see whether anything still moves; of a slow-down, wait for two rounds."""
    time.sleep(0.05)
    aim, end = symptom.operation + 2, time.monotonic() + 3.0
    while symptom.kind == "slow" and job.records().finished.min() < aim and time.monotonic() < end:
        time.sleep(_POLL)


def _watch(
    job: RingJob, watches: Sequence[Watch], met: Callable[[], bool], timeout: float, first: bool = False
) -> list[Symptom]:
    """Symptoms until the condition is met or, with `first`, until there is one."""
    found: list[Symptom] = []
    end = time.monotonic() + timeout
    while not met() and not (first and found) and time.monotonic() < end:
        time.sleep(_POLL)
        found += watch_all(job.record, watches, time.monotonic)
    return found


def inject(job: RingJob, fault: str, kind: str, random: np.random.Generator, wire: float, usual: float) -> Injected:
    """Do it to a rank that the draw picks; slow faults cost so many times what a round takes here and now."""
    first, second = (int(rank) for rank in random.permutation(job.n)[:2])
    strength = float(random.uniform(1.5, 3.0))
    culprits: tuple[int, ...] = (first,)
    how = ""
    if fault == H1:
        job.skip(first)
    elif fault == H2:
        how = _differ(job, first, kind, random, wire)
    elif fault == H3:
        how = "SIGKILL" if random.random() < 0.5 else "SIGSTOP"
        _signal(job, first, how)
    if fault in (S1, S3):
        job.late(first, strength * usual)
    if fault in (S2, S3):
        slowed = first if fault == S2 else second
        job.throttle(slowed, job.rate * wire / (wire + strength * usual))
        culprits = (first, second) if fault == S3 else (first,)
    return Injected(fault, culprits, kind, how, time.monotonic())


def _differ(job: RingJob, rank: int, kind: str, random: np.random.Generator, wire: float) -> str:
    if random.random() < 0.5:
        other = KINDS[(KINDS.index(kind) + 1 + int(random.integers(len(KINDS) - 1))) % len(KINDS)]
        job.differ(rank, kind=other)
        return f"{other} instead of {kind}"
    count = count_for(kind, job.n, wire, job.rate)
    other_count = count * 2 if random.random() < 0.5 else max(job.n, count // 2 // job.n * job.n)
    job.differ(rank, count=other_count)
    return f"{other_count} instead of {count} elements"


def _signal(job: RingJob, rank: int, how: str) -> None:
    """Stop the rank inside a collective; where it is to die, it dies there."""
    end = time.monotonic() + 30.0
    while time.monotonic() < end:
        while job.phase(rank) == INSIDE and time.monotonic() < end:
            time.sleep(0.0005)
        while job.phase(rank) != INSIDE and time.monotonic() < end:
            time.sleep(0.0005)
        time.sleep(0.006)  # past its first steps
        job.stop(rank)
        time.sleep(0.001)
        if job.phase(rank) == INSIDE:
            if how == "SIGKILL":
                job.kill(rank)
            return
        job.go_on(rank)
    raise RankFailed(f"rank {rank} was never caught inside a collective")


# ------------------------------------------------------------------------------------------------- without a fault


def quiet(job: RingJob, seed: int, rounds: int, jitter: float, wire: float = WIRE_SECONDS) -> dict[int, int]:
    """Rounds of a job without a fault that raised an alarm, by how many slow rounds in a row a watch asks for."""
    kind = KINDS[int(stream(seed, "ccl-d quiet").integers(len(KINDS)))]
    watches = {repeats: [Watch(repeats=repeats) for _ in range(job.n)] for repeats in (1, 3)}
    job.start(kind, count_for(kind, job.n, wire, job.rate), rounds)
    job.jitter(jitter)
    alarmed: dict[int, set[int]] = {repeats: set() for repeats in watches}
    end = time.monotonic() + 120 + rounds * wire * 10
    while job.rounds < rounds - 1 and time.monotonic() < end:
        time.sleep(_POLL)
        for repeats, own in watches.items():
            alarmed[repeats].update(symptom.operation for symptom in watch_all(job.record, own, time.monotonic))
    job.abort()
    return {repeats: len(operations) for repeats, operations in alarmed.items()}


@dataclass(frozen=True)
class Split:
    """P of rounds with a known lateness and a transfer slowed by a known amount (seconds), and what it should be."""

    measured: float
    late: float
    transfer: float
    noise: float  # what usual rounds scatter by, as a share of lateness and transfer

    @property
    def expected(self) -> float:
        """Lateness over lateness plus transfer."""
        return self.late / (self.late + self.transfer)


TOLD = 40.0  # times the scatter of usual rounds: what a fault costs at least, so that a twentieth of it can be seen
SLOWER = 1.5  # times that: what the slowed transfer costs


def split(job: RingJob, seed: int, turn: int, rounds: int, turns: int = 2, wire: float = WIRE_SECONDS) -> Split:
    """Slow one rank's sending, then make the same rank late as well: the first tells the transfer's part alone.

    Usual rounds, slowed ones and both take turns, so that other work on the machine falls on all alike.
    """
    random = stream(seed, "ccl-d split", turn)
    rank, strength = int(random.integers(job.n)), float(random.uniform(1.0, 3.0))
    job.start("all_reduce", count_for("all_reduce", job.n, wire, job.rate), rounds=1_000_000)
    first = _durations(job, 2 * rounds).max(1)
    unit = max(wire, TOLD * _scatter(first))
    usual, slowed, both = [first], [], []
    for number in range(turns):
        job.throttle(rank, job.rate * wire / (wire + SLOWER * unit))
        slowed.append(_durations(job, rounds).max(1))
        job.late(rank, strength * unit)
        both.append(_durations(job, rounds))
        job.heal()
        if number < turns - 1:
            usual.append(_durations(job, rounds).max(1))
    job.abort()
    job.heal()
    base = float(np.median(np.concatenate(usual)))
    transfer, late = float(np.median(np.concatenate(slowed))) - base, strength * unit
    measured = float(np.median([share(row, base) for part in both for row in part]))
    noise = max(_scatter(np.concatenate(some)) for some in (usual, slowed, [part.max(1) for part in both]))
    return Split(measured, late, transfer, noise / (late + transfer))


def _scatter(seconds: NDArray[np.float64]) -> float:
    """The standard deviation, by the median distance from the median: one hiccup is not the machine's noise."""
    return 1.4826 * float(np.median(np.abs(seconds - np.median(seconds))))


def _durations(job: RingJob, rounds: int) -> NDArray[np.float64]:
    """Every rank's seconds in so many coming rounds, after two in which a change settles."""
    aim = int(job.records().entered.max()) + 2 + rounds
    end = time.monotonic() + 60.0
    while int(job.records().finished.min()) < aim and time.monotonic() < end:
        time.sleep(_POLL)
    return _recent(job.records(), rounds)


def _recent(records: Records, rounds: int) -> NDArray[np.float64]:
    return np.array([records.past(k)["duration"] / 1e9 for k in records.common(rounds)])
