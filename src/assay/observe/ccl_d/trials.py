"""The trials of CCL-D's study: incidents beside the other tools, jobs without a fault, the split, probe and decision.

>>> rows = _decision(seed=0, ranks=100)
>>> sorted(rows)[0], all(row["decision_right"] for row in rows.values())
('decision/H1/ccl-d/0', True)
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np

from assay.observe.ccl.locate import CLASSES, H1, H2, H3, S1, S2, S3, locate
from assay.observe.ccl.probe import WORDS, Probe
from assay.observe.ccl_d import baselines, lab
from assay.observe.ccl_d.job import RingJob
from assay.observe.ccl_d.model import modelled
from assay.observe.ccl_d.rank import CHANNELS
from assay.observe.ccl_d.ring import LOOPS

OURS = "ccl-d"
SHARED = ((S2, H1, H2, H3), (S1, S3))  # by the jobs of a team, which then take alike long; a rank may die of H3
CROWDED = 0.08  # of the time that ranks wait for a processor: from here on it is other work that makes rounds slow
TOGETHER = 0.12  # the same where five jobs run at once and wait for each other, too
STEADY, TRIES = 0.03, 3  # the scatter of rounds, as a share of what was injected, below which a split tells anything


def launch(ranks: int, teams: int, hang_after: float, watched: int, seed: int) -> dict[str, dict[str, Any]]:
    """Jobs side by side, mostly asleep: in each team one hangs in the end and one is slow; one more has no fault."""
    with ExitStack() as stack:
        jobs = [stack.enter_context(RingJob(ranks, seed)) for _ in range(2 * teams + 1)]
        for job in jobs:
            job.ready()
        sound, *hit = jobs
        with ThreadPoolExecutor(len(jobs)) as pool:
            calm = pool.submit(_quiet, sound, seed, watched)
            parts = []
            for turn in range(teams):
                parts += [
                    pool.submit(_incidents, hit[2 * turn + place], faults, seed, turn, hang_after)
                    for place, faults in enumerate(SHARED)
                ]
            found = {name: row for part in parts for name, row in part.result().items()}
        found |= _calmest(calm.result(), sound, seed, watched)
        for turn in range(teams):
            found |= _split(sound, seed, turn)
        return found | _probe_cost(sound) | _decision(seed)


def _incidents(
    job: RingJob, faults: Sequence[str], seed: int, turn: int, hang_after: float
) -> dict[str, dict[str, Any]]:
    return {name: row for fault in faults for name, row in _incident(job, fault, seed, turn, hang_after).items()}


def _incident(job: RingJob, fault: str, seed: int, turn: int, hang_after: float) -> dict[str, dict[str, Any]]:
    seen = lab.incident(job, fault, seed, turn, hang_after=hang_after)
    hung = seen.symptom is not None and seen.symptom.kind == "hang" and seen.named  # a wrong name is none
    rows: dict[str, dict[str, Any]] = {
        OURS: {
            "named": seen.named, "right": seen.named and seen.classified, "seconds": seen.locating, "delay": seen.delay,
            "after_timeout": seen.delay - hang_after + seen.locating if hung else None,
            "false_alarms": seen.false_alarms, "queued": seen.queued,
        }
    }  # fmt: skip
    scene = None if seen.symptom is None else baselines.Scene(job, seen.symptom, seen.records)
    for name, tool in baselines.TOOLS.items():
        begin = time.perf_counter()
        named = scene is not None and lab.names(tool(scene), seen.truth.culprits)
        took = time.perf_counter() - begin + (seen.pulled if name in baselines.READS_RECORDS else 0.0)
        rows[name] = {"named": named, "seconds": took}
    job.abort()
    job.heal()
    return {f"incident/{fault}/{name}/{turn}": row for name, row in rows.items()}


def _quiet(job: RingJob, seed: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Jobs without a fault: steady, and with one round in twenty delayed by more than it takes."""
    waited, begun = job.queued(), time.monotonic()
    found = {
        ("healthy", rounds // 2): lab.quiet(job, seed, rounds // 2, jitter=0.0),
        ("jitter", rounds): lab.quiet(job, seed + 1, rounds, jitter=1.5 * lab.WIRE_SECONDS),
    }
    queued = lab.queued_since(job, waited, begun)
    return {
        f"quiet/{name}/{repeats} in a row/0": {"false_alarms": count, "rounds": watched, "queued": queued}
        for (name, watched), alarms in found.items()
        for repeats, count in alarms.items()
    }


def _calmest(first: dict[str, dict[str, Any]], job: RingJob, seed: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The same rounds again, alone, while their ranks had to wait for a processor; those that waited least count."""
    tries = [first]
    while len(tries) < TRIES and _queued(tries[-1]) > CROWDED:
        tries.append(_quiet(job, seed, rounds))
    return min(tries, key=_queued)


def _queued(rows: dict[str, dict[str, Any]]) -> float:
    return max(float(row["queued"]) for row in rows.values())


def _split(job: RingJob, seed: int, turn: int) -> dict[str, dict[str, Any]]:
    """The split once nobody else of this launch works; again while its rounds scatter, the steadiest try counts."""
    tries: list[lab.Split] = []
    while len(tries) < TRIES and (not tries or tries[-1].noise > STEADY):
        tries.append(lab.split(job, seed, turn, rounds=3))
    found = min(tries, key=lambda split: split.noise)
    error = abs(found.measured / found.expected - 1)
    row = {"share": found.measured, "share_expected": found.expected, "share_error": error, "noise": found.noise}
    return {f"split/S3/{OURS}/{turn}": row}


def _probe_cost(job: RingJob, turns: int = 3) -> dict[str, dict[str, Any]]:
    """What the probe's writes cost in a collective of 1 MiB at full speed, as a share of it."""
    count = 1 << 18
    for rank in range(job.n):
        job.throttle(rank, 0.0)
    words = np.zeros(WORDS, np.int64)
    rows = {}
    for turn in range(turns):
        share = _writing(Probe(words.data, 0, job.n), job.n, count) / job.time(range(job.n), count=count)
        rows[f"probe/all_reduce/{OURS}/{turn}"] = {"probe_share": share, "record_bytes": words.nbytes}
    job.heal()
    return rows


def _writing(probe: Probe, ranks: int, count: int, repeats: int = 20) -> float:
    """Seconds that all writes of one all-reduce take."""
    steps = 2 * (ranks - 1) * LOOPS * CHANNELS
    begin = time.perf_counter()
    for _ in range(repeats):
        probe.enter("all_reduce", 0, count, time.monotonic_ns())
        for _ in range(steps):
            probe.sent(0, 4096, 1, time.monotonic_ns())
            probe.received(0, 1, time.monotonic_ns())
        probe.leave(time.monotonic_ns())
    return (time.perf_counter() - begin) / repeats


def _decision(seed: int, ranks: int = 4_000) -> dict[str, dict[str, Any]]:
    """The decision over the records of 4,000 ranks, every class; only the records are modelled."""
    rows = {}
    for fault in CLASSES:
        records, symptom, culprits = modelled(ranks, fault, seed)
        begin = time.perf_counter()
        diagnosis = locate(records, symptom, records)
        took = time.perf_counter() - begin
        right = diagnosis.label == fault and lab.names(diagnosis, culprits)
        rows[f"decision/{fault}/{OURS}/0"] = {"decision_seconds": took, "decision_right": right}
    return rows
