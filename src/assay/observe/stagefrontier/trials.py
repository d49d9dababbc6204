"""The experiments behind StageFrontier: hidden faults in a real job, the same at scale, and what recording costs."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.frontier.advances import between_syncs, synchronising_in
from assay.observe.frontier.collector import STAGES, SYNC_STAGES, Collector, Vectors
from assay.observe.frontier.diagnosis import diagnose, frontier, resolution
from assay.observe.frontier.vectors import Window
from assay.observe.interface import Diagnosis
from assay.observe.stagefrontier import ddp
from assay.observe.stagefrontier import profiled as profiled_stages
from assay.observe.stagefrontier.dashboards import DASHBOARDS
from assay.record.errors import StudyFailed
from assay.sim.random import stream
from assay.sim.scratch import scratch

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
DELTAS = (0.05, 0.10, 0.20, 0.50, 1.00)  # of a step
TRACED = 6  # steps under the profiler, which writes much
JOB = ddp.Job(data=0.0045, forward=0.0075, backward=0.012, optimizer=0.003, checkpoint=0.003)
APART, WITHIN = "sync apart", "sync in backward"
# Other work on the machine is noise to the ranks. What a window's steps leave in doubt, as a share of a step, says how
# much there is: tried beside two busy processes, up to 0.4 no fault was lost and at 1.3 a fifth of them was.
NOISY, AIM = 0.5, 0.4
GAUGED = 20  # healthy steps by which the job's pace is set
PACES, AGAIN = 4, 2  # the slowest pace that the gauge may choose; how often noisy windows are run again
_EMPTY: dict[str, Any] = {
    "method": "frontier", "recording": APART, "window": None, "stage": None, "rank": None, "delta": None,
    "visible": None, "top1": None, "top2": None, "stage_top1": None, "label": None, "exact": None, "maxima": None,
    "agrees": None, "ranks": 4, "summary_bytes": None, "trace_bytes": None, "seconds": None, "share": None,
    "noise": None, "pace": None,
}  # fmt: skip
Rows = dict[str, dict[str, Any]]


def _row(**measured: Any) -> dict[str, Any]:
    return _EMPTY | measured


# ------------------------------------------------------------------------------------------ a real job


def schedule(rounds: int, deltas: Sequence[float], steps: int, job: ddp.Job, seed: int) -> tuple[ddp.Stretch, ...]:
    """Healthy stretches with faulty ones between them, in random order.

    Each stage meets each size as often as there are `rounds`, on ranks that are drawn; so do two pairs of stages.
    """
    random = stream(seed, "stagefrontier", "schedule")
    cases = [(kind, delta) for kind in ddp.SLOW for delta in deltas] * rounds
    faulty = [
        ddp.Stretch(steps, (ddp.Fault(kind, int(random.integers(job.ranks)), delta * job.step),))
        for kind, delta in (cases[i] for i in random.permutation(len(cases)).tolist())
    ]
    two = random.permutation(job.ranks)[:2].tolist()  # two ranks that lose the same in different stages
    both = [
        ddp.Stretch(steps, (ddp.Fault(one, two[0], job.step), ddp.Fault(other, two[1], job.step)))
        for one, other in (("forward", "backward"), ("optimizer", "forward")) * rounds
    ]
    every = 5
    mixed: list[ddp.Stretch] = []
    for number, stretch in enumerate([*faulty, *both]):
        if number % every == 0:
            mixed.append(ddp.Stretch(steps))
        mixed.append(stretch)
    return (*mixed, ddp.Stretch(steps))


def hidden_faults(rounds: int, deltas: Sequence[float], steps: int, profiled: Sequence[str], seed: int) -> Rows:
    """One launch of the job with many faults; every stretch diagnosed by every method, and compared with the truth.

    At its end come some stretches under PyTorch's profiler: healthy, then with a fault in each stage of `profiled`.
    On a busy machine the job is slower, and the faults with it: a gauge before it says by how much. Windows that turn
    out noisy all the same are run again; only their noise decides, not what was found in them.
    """
    job = JOB.slower(pace_for(gauge(JOB, steps)))
    planned = schedule(rounds, deltas, steps, job, seed)
    rows = _launched(job, planned, range(len(planned)), profiled, seed)
    for _ in range(AGAIN):
        noisy = [i for i, stretch in enumerate(planned) if stretch.faults and _noise(rows, i) > NOISY]
        if not noisy:
            break
        if len(noisy) > len(planned) / 2:
            job = job.slower(2)
            planned = schedule(rounds, deltas, steps, job, seed)
        rows |= _launched(job, planned, noisy, (), seed)
    return rows


def _noise(rows: Rows, window: int) -> float:
    return float(rows[f"{window} frontier {APART}"]["noise"])


def gauge(job: ddp.Job, steps: int) -> float:
    """What a window of so many healthy steps leaves in doubt here and now, as a share of the step."""
    recording = _completed(job, [ddp.Stretch(max(GAUGED, 2 * steps))], None)
    d = recording.window(0).durations
    lengths = _lengths(d, np.ones(d.shape[:2], bool), SYNC_STAGES)
    return max(_finest(lengths[i : i + steps], lengths) for i in range(0, len(lengths) - steps + 1, steps)) / job.step


def pace_for(noise: float) -> int:
    """How many times slower the job must be for such noise to be small beside the smallest fault.

    >>> pace_for(0.01), pace_for(0.5), pace_for(9.0)
    (1, 2, 4)
    """
    return int(min(max(math.ceil(noise / AIM), 1), PACES))


def noise_of(windows: Sequence[float | None]) -> float:
    """The noise of a run: that of its middle window."""
    return float(np.median([noise for noise in windows if noise is not None]))


def _completed(job: ddp.Job, planned: Sequence[ddp.Stretch], traces: Path | None) -> ddp.Recording:
    recording = ddp.record(job, planned, traces=traces)
    if recording.failure:
        raise StudyFailed(f"stagefrontier: the training job ended early: {recording.failure}")
    return recording


def _launched(
    job: ddp.Job, planned: Sequence[ddp.Stretch], wanted: Sequence[int], profiled: Sequence[str], seed: int
) -> Rows:
    """One launch with the stretches that are wanted, and all healthy ones: what every window is compared with."""
    random = stream(seed, "stagefrontier", "profiled")
    traced = [ddp.Stretch(TRACED, profile=True)] * bool(profiled) + [
        ddp.Stretch(TRACED, (ddp.Fault(kind, int(random.integers(job.ranks)), 0.5 * job.step),), profile=True)
        for kind in profiled
    ]
    ran = [i for i, stretch in enumerate(planned) if i in wanted or not stretch.faults]
    with scratch() as folder:
        recording = _completed(job, (*(planned[i] for i in ran), *traced), folder)
        rows = _beside_profiler(recording, len(ran), folder) if traced else {}
    windows = {i: recording.window(at) for at, i in enumerate(ran)}
    healthy = [i for i in ran if not planned[i].faults]
    pace = round(job.step / JOB.step)
    for i, window in windows.items():
        reference, known = pooled([windows[j] for j in healthy if j != i])
        faults = planned[i].faults
        for method, where, measured in _judged(window.durations, reference, known, faults, job.step):
            kind = ("healthy", "faults", "co-critical")[len(faults)]
            row = _row(experiment=kind, method=method, recording=where, window=i, pace=pace, **measured)
            rows[f"{i} {method} {where}"] = row
    return rows


def pooled(windows: Sequence[Window]) -> tuple[Ints, Bools]:
    """Several windows as one, with a step that nobody reported between them, so that no row joins two."""
    gap = np.zeros_like(windows[0].durations[:1])
    durations = [part for window in windows for part in (window.durations, gap)]
    valid = [part for window in windows for part in (window.valid, np.zeros(gap.shape[:2], bool))]
    return np.concatenate(durations[:-1]), np.concatenate(valid[:-1])


def within_backward(d: Ints) -> Ints:
    """The same steps as recorded without a stage for the wait: it is part of the backward pass."""
    s = SYNC_STAGES.index("sync")
    return np.concatenate([d[:, :, : s - 1], d[:, :, s - 1 : s] + d[:, :, s : s + 1], d[:, :, s + 1 :]], axis=2)


def _judged(
    window: Ints, reference: Ints, known: Bools, faults: Sequence[ddp.Fault], step: float
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """What every method says of a window, beside the truth."""
    for where, stages, now, usual in (
        (APART, SYNC_STAGES, window, reference),
        (WITHIN, STAGES, within_backward(window), within_backward(reference)),
    ):
        found = {"frontier": diagnose(now, stages, usual, reference_valid=known, unsure=True)}
        if len(faults) == 1:
            found |= {name: board(now, usual[known.all(1)], stages) for name, board in DASHBOARDS.items()}
        lengths = _lengths(now, np.ones(now.shape[:2], bool), stages)
        finest = _finest(lengths, _lengths(usual, known, stages))
        for method, diagnosis in found.items():
            measured = scored(diagnosis, faults, step) | {"noise": finest / step}
            if method == "frontier":
                measured["exact"] = sum(diagnosis.accounting.values()) == diagnosis.total == float(lengths.sum())
                measured["maxima"] = float(now.max(1).sum() / now.sum(2).max(1).sum())
            # Visible at all: what the fault costs a step is more than this window's step times leave in doubt.
            yield method, where, measured | {"visible": max((f.delay for f in faults), default=0.0) > finest}


def _lengths(d: Ints, valid: Bools, stages: Sequence[str]) -> NDArray[np.float64]:
    """The time from one synchronisation to the next, as a column: the slowest rank's, summed on its own."""
    rows = between_syncs(d, valid, stages, synchronising_in(stages))
    longest: Ints = rows.durations.sum(2).max(1)[rows.valid.all(1)]
    return longest.astype(float)[:, None]


def _finest(now: NDArray[np.float64], before: NDArray[np.float64]) -> float:
    """Seconds that a difference between such steps must exceed to be no noise: by the mean, or by the median."""
    return float(np.min(resolution(now, before))) / 1e9


def scored(diagnosis: Diagnosis, faults: Sequence[ddp.Fault], step: float = JOB.step) -> dict[str, Any]:
    """A diagnosis beside the truth, or its label alone where there is no single one."""
    if len(faults) != 1:
        return {"stage": " and ".join(fault.kind for fault in faults) or None, "label": diagnosis.label}
    fault = faults[0]
    place = diagnosis.rank(str(fault.rank), fault.kind)
    first = diagnosis.suspects[0].indicator if diagnosis.suspects else None
    return {
        "stage": fault.kind, "rank": fault.rank, "delta": round(fault.delay / step, 3),
        "top1": place == 1, "top2": place is not None and place <= 2, "stage_top1": first == fault.kind,
        "label": diagnosis.label,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------ beside a profiler


def _beside_profiler(recording: ddp.Recording, first: int, folder: Path) -> Rows:
    """Do the profiler's traces, cut into stages, lead where the summary leads? The first traced stretch is healthy."""
    numbers, ranks = range(first, len(recording.schedule)), range(recording.durations.shape[1])
    paths = {number: [folder / f"trace-{number}-{rank}.json" for rank in ranks] for number in numbers}
    seen = {number: profiled_stages.read(paths[number]) for number in numbers}
    # A trace does not say when its last step ended: the same steps are compared.
    own = {
        number: profiled_stages.reduced(recording.window(number).durations[: len(seen[number])], SYNC_STAGES)
        for number in numbers
    }
    rows: Rows = {}
    for number in numbers[1:]:
        window, fault = recording.window(number), recording.schedule[number].faults[0]
        ours = diagnose(own[number], profiled_stages.STAGES, own[first], unsure=True)
        theirs = diagnose(seen[number], profiled_stages.STAGES, seen[first], unsure=True)
        sent = sum(len(Vectors(r, 0, window.stages, window.durations[:, r]).to_bytes()) for r in ranks)
        rows[f"{number} traced"] = _row(
            experiment="profiler", stage=fault.kind, rank=fault.rank, delta=0.5, label=theirs.label,
            agrees=_top(ours) == _top(theirs), summary_bytes=sent,
            trace_bytes=sum(path.stat().st_size for path in paths[number]),
        )  # fmt: skip
    return rows


def _top(diagnosis: Diagnosis) -> tuple[str | None, set[str]]:
    """The suspected stage, and the two stages that take the largest shares of the time."""
    suspected = diagnosis.suspects[0].indicator if diagnosis.suspects else None
    return suspected, set(sorted(diagnosis.accounting, key=lambda name: -diagnosis.accounting[name])[:2])


# ------------------------------------------------------------------------------------------ many ranks


def model_job(ranks: int, steps: int, fault: ddp.Fault | None, seed: int) -> Ints:
    """Durations of a job in which all ranks leave the backward pass together: log-normal stages, one fault."""
    random = stream(seed, "stagefrontier", "model", ranks, steps, fault is None)
    usual = np.array([4e6, 8e6, 13e6, 3e6, 3e6, 1e5])
    own = usual * np.exp(random.normal(0, 0.02, (steps, ranks, 6)))
    if fault is not None:
        own[:, fault.rank, STAGES.index(fault.kind)] += fault.delay * 1e9
    whole = own.astype(np.int64)
    sync = STAGES.index("backward")
    after = np.concatenate([np.zeros((1, ranks), np.int64), whole[:-1, :, sync + 1 :].sum(2)])
    arrive = after + whole[:, :, :sync].sum(2)
    leave = (arrive + whole[:, :, sync]).max(1, keepdims=True)
    whole[:, :, sync] = leave - arrive
    return whole


def many_ranks(ranks: int, steps: int, seed: int) -> Rows:
    """The same diagnosis at the size of a cluster, from modelled durations; and how long the frontier takes."""
    random = stream(seed, "stagefrontier", "scale", ranks)
    healthy = model_job(ranks, steps, None, seed)
    rows: Rows = {}
    for kind in ("data", "forward", "optimizer", "checkpoint"):
        for delta in DELTAS[1:4]:
            fault = ddp.Fault(kind, int(random.integers(ranks)), delta * JOB.step)
            window = model_job(ranks, steps, fault, seed)
            begin = time.perf_counter()
            front = frontier(window)
            seconds = time.perf_counter() - begin
            found = diagnose(window, STAGES, healthy)
            rows[f"{kind} {delta:g}"] = _row(
                experiment="scale", recording=WITHIN, ranks=ranks, visible=True, seconds=seconds,
                exact=bool((front.advances.sum(1) == window.sum(2).max(1)).all()),
                summary_bytes=sum(len(Vectors(r, 0, STAGES, window[:, r]).to_bytes()) for r in range(ranks)),
                **scored(found, [fault]),
            )  # fmt: skip
    return rows


# ------------------------------------------------------------------------------------------ what it costs


def recorder_cost(steps: int, seed: int, turns: int = 3) -> Rows:
    """Seconds a step that the recorder adds to a rank, whose caches are full of tensors at every boundary."""
    tensor = stream(seed, "stagefrontier", "tensor").random(1 << 20)  # 8 MB
    rows: Rows = {}
    for turn in range(turns):
        # Of all steps the median: that a processor was taken away in between is not the recorder's doing.
        seconds = float(np.median(list(_recorded(tensor, steps))))
        rows[f"turn {turn}"] = _row(experiment="cost", ranks=1, seconds=seconds, share=seconds / JOB.step)
    return rows


def _recorded(tensor: NDArray[np.float64], steps: int) -> Iterator[float]:
    """What recording takes of each of so many steps that work on a tensor in every stage."""
    collector = Collector(0, 128, SYNC_STAGES)
    stages = [collector.stage(name) for name in SYNC_STAGES[:-1]]
    for _ in range(steps):
        spent = 0.0
        for stage in stages:
            begin = time.perf_counter()
            with stage:
                entered = time.perf_counter()
                tensor *= 1.0
                leaves = time.perf_counter()
            spent += time.perf_counter() - leaves + entered - begin
        begin = time.perf_counter()
        collector.step()
        yield spent + time.perf_counter() - begin
