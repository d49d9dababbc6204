"""What a window of a job says, in one value: the view draws it, `--json` prints it, the metrics page lists it.

>>> import numpy as np
>>> from assay.live.watch.wire import Report
>>> from assay.observe.frontier.vectors import Vectors
>>> watched = Gathering(window=20)
>>> for rank in range(4):                                          # rank 2 waits for its data, the others for rank 2
...     times = np.tile(np.array([9 if rank == 2 else 2, 5, 3 if rank == 2 else 10, 1]) * 10**6, (20, 1))
...     block = Vectors(rank, 0, ("data", "forward", "backward", "other"), times, 4).to_bytes()
...     watched.take(Report(rank, 4, start=1, host="node", pid=1, steps=20, vectors=block), now=0.0)
>>> found = summarise(watched, now=0.5)
>>> found.reporting, found.label, [(one.rank, one.stage, one.score) for one in found.suspects]
(4, 'confirmed', [(2, 'data', 0.007)])
>>> sum(found.accounting.values()) == found.total
True
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from assay.live.watch.gather import Gathering, RankState
from assay.observe.frontier.advances import WAIT, between_syncs, synchronising_in
from assay.observe.frontier.diagnosis import diagnose
from assay.observe.frontier.vectors import Window

MOST_SUSPECTS = 20
ON_DEVICE = ("forward", "backward", "optimizer")  # stages that a job with a GPU only launches
_STUCK = 10.0  # seconds without a finished step, and twenty usual steps, after which a job is called stuck
_FIRST = 60.0  # seconds that the first step may take: it compiles, allocates, starts workers
_GIVEN_UP = 3.0  # times as long, and nobody waits any longer for the job to go on
HANG = "hang"
WAITING = ("backward", WAIT)  # stages in which a rank waits for the others, told apart or not


class Named(msgspec.Struct, frozen=True):
    """Somebody to look at."""

    rank: int
    stage: str
    score: float
    """Seconds a step that the group loses."""
    share: float
    """Of a step."""
    label: str
    next: str
    host: str = ""
    pid: int = 0
    workload: str = ""
    """Where the sequences of every rank are known: slow, or long sequences, which explain its time."""
    workload_ratio: float | None = None
    """Its time over what the other ranks' pace says for its sequences."""


class RankRow(msgspec.Struct, frozen=True):
    """A rank: how it fares, and its mean time in each stage of the window, where it has any."""

    rank: int
    state: str
    last_step: int
    host: str
    pid: int
    restarts: int
    dropped: int
    quiet: float
    stage: str
    since: float
    stages: dict[str, float]


class Summary(msgspec.Struct, frozen=True):
    """A window of a job. Times are seconds; those of `accounting` add up to `total`."""

    expected: int
    """Ranks of the job."""
    reporting: int
    ranks: list[RankRow]
    first_step: int = -1
    last_step: int = -1
    steps: int = 0
    """Steps that were judged: from one meeting of the ranks to the next."""
    step: float = 0.0
    """How long one took, in the mean."""
    stages: tuple[str, ...] = ()
    accounting: dict[str, float] = {}
    total: float = 0.0
    label: str = ""
    why: str = ""
    """Where nobody is suspected: why not."""
    suspects: list[Named] = []
    compared: str = "ranks"
    """With what: the other `ranks`, or the `reference`."""
    idle: float = 0.0
    """Seconds since any rank finished a step."""
    stuck: bool = False
    """No step was finished for much longer than one takes."""
    hang: bool = False
    """It is stuck, and not because all ranks do the same, as in an evaluation: `suspects` are whom the others wait for,
    and `label` is hang."""
    given_up: bool = False
    """It has hung for so long that it will not go on."""
    over: bool = False
    """No rank will report any more, as far as anybody can tell."""
    reports: int = 0
    refused: dict[str, int] = {}
    """What arrived and was left aside, by reason."""


def summarise(
    watched: Gathering,
    now: float,
    refused: Mapping[str, int] | None = None,
    window: int | None = None,
    last: int | None = None,
) -> Summary:
    """The window that ends with step `last`, or else with the newest that all ranks have; `window` steps of it."""
    states = watched.ranks(now)
    ranks, first, newest = watched.together(states)
    last = newest if last is None else min(last, newest)
    first = max(first, last - (window or watched.window) + 1)
    about: dict[str, object] = {}
    means: dict[int, dict[str, float]] = {}
    if ranks and first <= last:
        block = watched.block(ranks, first, last)
        means = _means(block)
        about = _judged(watched, block, states)
    idle, usual = max(watched.idle(now), 0.0), about.get("step", 0.0)
    patience = max(_STUCK, 20 * usual) if isinstance(usual, float) and usual > 0 else _FIRST
    stuck = idle > patience and any(one.state in ("reports", "behind", "stopped") for one in states)
    blamed = _held_up_by(states, watched.stages) if stuck else None
    if blamed is not None:
        about |= _hang(blamed, states, idle)
    left_aside = watched.refused + type(watched.refused)(refused or {})
    return Summary(
        expected=watched.size,
        reporting=sum(one.state in ("reports", "behind") for one in states),
        ranks=[_row(one, means.get(one.rank, {})) for one in states],
        stages=watched.stages,
        idle=idle,
        stuck=stuck,
        hang=blamed is not None,
        given_up=blamed is not None and idle > _GIVEN_UP * patience,
        over=_over(states, watched.silence),
        reports=watched.reports,
        refused=dict(left_aside),
        **about,  # type: ignore[arg-type]
    )


def _held_up_by(states: Sequence[RankState], stages: Sequence[str]) -> list[RankState] | None:
    """Of a job that is stuck, the ranks that the others wait for; none: nobody can tell; None: it does not hang.

    Who died, is frozen or fell silent; else who is a step behind; else who is not where ranks wait for each other, or
    sits elsewhere than most. Where all do the same and it is no waiting (an evaluation, a checkpoint), nobody waits.
    """
    alive = [one for one in states if one.state not in ("ended", "missing")]
    if lost := [one for one in alive if one.state in ("gone", "stopped", "silent")]:
        return lost
    last = max((one.last_step for one in alive), default=-1)
    if behind := [one for one in alive if one.last_step < last]:
        return behind
    waits = {*(synchronising_in(stages) if stages else ()), *WAITING}
    places = Counter(one.stage for one in alive)
    if not waits & places.keys() and len(places) == 1:
        return None
    if missing := [one for one in states if one.state == "missing"]:
        return missing
    if waits & places.keys():
        return [one for one in alive if one.stage not in waits]
    (most, count), (_, next_count) = places.most_common(2)
    return [one for one in alive if one.stage != most] if count > next_count else []


def _hang(blamed: Sequence[RankState], states: Sequence[RankState], idle: float) -> dict[str, object]:
    """What a summary says of a job that hangs, instead of how its steps went before."""
    suspects = [
        Named(one.rank, one.stage, idle, 0.0, HANG, _ask(one), one.host, one.pid) for one in blamed[:MOST_SUSPECTS]
    ]
    waiting = sum(one not in blamed and one.state in ("reports", "behind") for one in states)
    why = f"no step was finished for {idle:.0f} s; {waiting} rank{'s wait' if waiting != 1 else ' waits'}"
    if not blamed:
        why += ", for whom cannot be told: 'assay hang' on the Flight Recorder's dumps tells who did not come"
    return {"label": HANG, "why": why, "suspects": suspects}


def _ask(one: RankState) -> str:
    if one.state == "missing":
        return "it never reported: did it start?"
    if one.state in ("gone", "silent"):
        return "its log, and its machine's: it says nothing any more"
    return f"py-spy dump --pid {one.pid}; 'assay hang' on the Flight Recorder's dumps"


def _over(states: Sequence[RankState], silence: float) -> bool:
    """Nobody speaks any more; a rank that never did is waited for as long as one that fell silent."""
    there = [one for one in states if one.state != "missing"]
    if not there or any(one.state not in ("ended", "gone", "silent") for one in there):
        return False
    return len(there) == len(states) or min(one.quiet for one in there) > silence


def _judged(watched: Gathering, block: Window, states: Sequence[RankState]) -> dict[str, object]:
    """The diagnosis of a window, and its accounting."""
    healthy = watched.healthy(block.ranks)
    deferred = [name for name in block.stages if name in ON_DEVICE] if watched.deferred else []
    # The job goes on without a rank that fell silent; one that never spoke may be the one all wait for.
    unseen = sum(one.state == "missing" for one in states)
    found = diagnose(
        block.durations, block.stages, None if healthy is None else healthy.durations,
        valid=block.valid, ranks=block.ranks, size=len(block.ranks) + unseen, deferred=deferred,
    )  # fmt: skip
    rows = between_syncs(block.durations, block.valid, block.stages, synchronising_in(block.stages))
    steps = int(rows.valid.any(1).sum())
    accounting = {name: spent / 1e9 for name, spent in found.accounting.items()}
    total = sum(accounting.values())
    step = total / steps if steps else 0.0
    where = {one.rank: one for one in states}
    suspects = [
        Named(
            int(one.entity), one.indicator or "", one.score, one.score / step if step else 0.0, one.label, one.next,
            where[int(one.entity)].host, where[int(one.entity)].pid,
        )
        for one in found.suspects[:MOST_SUSPECTS]
    ]  # fmt: skip
    return {
        "first_step": int(block.steps[0]), "last_step": int(block.steps[-1]), "steps": steps, "step": step,
        "accounting": accounting, "total": total, "label": found.label, "why": found.why, "suspects": suspects,
        "compared": "ranks" if healthy is None else "reference",
    }  # fmt: skip


def _means(block: Window) -> dict[int, dict[str, float]]:
    counts = block.valid.sum(0)
    sums = np.einsum("wrs,wr->rs", block.durations, block.valid.astype(np.int64))
    return {
        rank: dict(zip(block.stages, (sums[i] / counts[i] / 1e9).tolist(), strict=True))
        for i, rank in enumerate(block.ranks)
        if counts[i]
    }


def _row(one: RankState, stages: dict[str, float]) -> RankRow:
    return RankRow(
        one.rank, one.state, one.last_step, one.host, one.pid, one.restarts, one.dropped, one.quiet, one.stage,
        one.since, stages,
    )  # fmt: skip
