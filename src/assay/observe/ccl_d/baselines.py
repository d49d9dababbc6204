"""What operators use today against slow and hung collectives, each on the same incident as CCL-D.

- **bisection**: end the job, time a collective on halves of the ranks, go on with the slower half. It sees what a
  micro-benchmark shows again: slow wires. A restarted program neither hangs nor comes late.
- **stacks**: sample every rank's Python stack; whoever stands elsewhere than most, or does not answer, is suspected.
- **state poll**, as NCCL's RAS: operation counters only; who is behind is suspected.
- **validation**, as Greyhound: when iterations get slow, end the job and test each rank's computing and each link.
- **connection statistics**, as C4D: the connection with the fewest messages (hang) or the longest sends (slow).
- **Flight Recorder**: a watchdog, then torch's own record of calls, matched over the ranks.

None of them is told what was injected. A tool that must end the job to look (bisection, validation) says so in
`ENDS_JOB`; faults of a program are then gone, faults of a machine are still there.

>>> sorted(TOOLS)
['bisection', 'connection statistics', 'flight recorder', 'stacks', 'state poll', 'validation']
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from assay.observe.ccl import dumps
from assay.observe.ccl.detect import Symptom
from assay.observe.ccl.probe import HISTORY, KINDS, Records
from assay.observe.ccl_d.job import RingJob
from assay.observe.interface import Diagnosis, Suspect
from assay.workloads import flight_recorder

CLEARLY = 1.4  # times slower than its peers: what a micro-benchmark calls slow
SAMPLES = 5  # of the stacks


@dataclass(frozen=True)
class Scene:
    """What there is to look at when a symptom is reported: the job, still at it, and the probes' records."""

    job: RingJob
    symptom: Symptom
    records: Records


Tool = Callable[[Scene], Diagnosis]


def _ranked(ranks: Sequence[int], indicator: str) -> Diagnosis:
    return Diagnosis(tuple(Suspect(str(rank), indicator, 1.0) for rank in ranks))


def state_poll(scene: Scene) -> Diagnosis:
    """Who has called fewer collectives than others. A slow job shows nothing: counters differ by one at any moment."""
    if scene.symptom.kind != "hang":
        return Diagnosis(why="counters do not show slowness")
    entered = scene.records.entered
    behind = np.flatnonzero(entered < entered.max())
    return _ranked([int(rank) for rank in behind], "operations")


def stacks(scene: Scene) -> Diagnosis:
    """The rank whose stack differs from the others' in most samples; a hang stands still, one sample is enough."""
    votes: Counter[int] = Counter()
    samples = 1 if scene.symptom.kind == "hang" else SAMPLES
    for sample in range(samples):
        if sample:
            time.sleep(0.013)  # not in step with the rounds
        found = scene.job.stacks()
        places = {rank: _place(stack) for rank, stack in found.items()}
        usual, count = Counter(places.values()).most_common(1)[0]
        if count > len(places) / 2:
            votes.update(rank for rank, place in places.items() if place != usual)
    return _ranked([rank for rank, count in votes.most_common() if count > samples / 2], "stack")


def _place(stack: Sequence[str]) -> str:
    """The collective a stack is in, `elsewhere`, or `silent` where there is none."""
    if not stack:
        return "silent"
    return next((name for name in stack if name in KINDS), "elsewhere")


def connection_statistics(scene: Scene) -> Diagnosis:
    """Messages sent per connection, and how long they took; what a rank computes is not looked at."""
    records = scene.records
    if scene.symptom.kind == "hang":
        sends = records.sends.sum(1)
        least = np.flatnonzero(sends == sends.min())
        return _ranked([int(rank) for rank in least] if len(least) < len(sends) else [], "messages")
    rounds = records.common(3)
    if not rounds:
        return Diagnosis(why="no finished round")
    took = np.median([records.past(k)["send_time"] for k in rounds], 0)
    slow = np.flatnonzero(took > CLEARLY * np.median(took))
    return _ranked([int(rank) for rank in slow[np.argsort(-took[slow])]], "transfer time")


def torch_flight_recorder(scene: Scene) -> Diagnosis:
    """What a watchdog's dumps would hold, through the same reader and the same questions as a user's dumps."""
    if scene.symptom.kind != "hang":
        return Diagnosis(why="the watchdog waits for a hang")
    parts = [
        flight_recorder.parse(msgspec.json.encode(dump_of(scene.records, rank)), rank)
        for rank in range(len(scene.records))
    ]
    return dumps.diagnose(flight_recorder.merge(parts))[0].diagnosis


def dump_of(records: Records, rank: int) -> dict[str, object]:
    """A rank's probe record in the layout of a Flight Recorder dump: the calls, nothing from inside them."""
    newest = int(records.entered[rank])
    entries = []
    for operation in range(max(1, newest - HISTORY + 1), newest + 1):
        signature, known = records.signatures(operation)
        if known[rank]:
            kind, dtype, count = (int(word) for word in signature[rank])
            done = operation <= int(records.finished[rank])
            entries.append({
                "collective_seq_id": operation, "profiling_name": f"ring:{KINDS[kind]}", "is_p2p": False,
                "process_group": ["0", "default_pg"], "input_sizes": [[count]], "input_dtypes": [f"type{dtype}"],
                "state": "completed" if done else "started", "retired": done,
            })  # fmt: skip
    return {"version": "2.10", "pg_config": {"0": {"ranks": str(list(range(len(records))))}}, "entries": entries}


# --------------------------------------------------------------------------------------- tools that end the job


def bisection(scene: Scene) -> Diagnosis:
    """Halve the suspects by timing a collective on each half, while one half is clearly slower."""
    job = scene.job
    job.abort()
    left_over = [rank for rank in range(job.n) if rank not in job.dead]
    good: list[int] = []
    while len(left_over) > 1:
        half = (len(left_over) + 1) // 2
        first, second = left_over[:half], left_over[-half:]
        if half == 1:  # a ring takes two: each beside the same rank that is known to be good
            first, second = ([*first, good[0]], [*second, good[0]]) if good else (first, second)
            if not good:
                return Diagnosis(why="two ranks cannot be told apart without a third")
        seconds = job.time(first), job.time(second)
        if max(seconds) < CLEARLY * min(seconds):
            return Diagnosis(why="no half is slower than the other")
        slow = first if seconds[0] > seconds[1] else second
        good += [rank for rank in left_over if rank not in slow]
        left_over = [rank for rank in left_over if rank in slow]
    return _ranked(left_over, "micro-benchmark")


def validation(scene: Scene) -> Diagnosis:
    """Test computing on every rank at once, then every pair of neighbours: whoever is slow in both its pairs."""
    job = scene.job
    if scene.symptom.kind != "slow":
        return Diagnosis(why="iterations do not get slow, they stop")
    job.abort()
    computed = np.array(job.compute_times())
    late = [int(rank) for rank in np.flatnonzero(computed > CLEARLY * np.median(computed))]
    pairs = np.array([job.time([rank, (rank + 1) % job.n]) for rank in range(job.n)])
    slow = pairs > CLEARLY * np.median(pairs)
    both = np.flatnonzero(slow & np.roll(slow, 1))  # pair r and pair r-1 share rank r
    return _ranked(late + [int(rank) for rank in both], "validation")


TOOLS: dict[str, Tool] = {
    "state poll": state_poll,
    "connection statistics": connection_statistics,
    "flight recorder": torch_flight_recorder,
    "stacks": stacks,
    "bisection": bisection,
    "validation": validation,
}
ENDS_JOB = ("bisection", "validation")
READS_RECORDS = ("state poll", "connection statistics", "flight recorder")
"""Tools that look at the same records as CCL-D: they have them no sooner."""
