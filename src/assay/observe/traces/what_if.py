"""A recorded run played forward again with other durations: a faster network, no stragglers.

What waited for what stays as it was (:mod:`assay.observe.traces.kernel_path`); durations change, everything behind them
moves. With nothing changed the recorded times come out exactly. Waits that never held anything up are not in a
recording, so the answer is a bound from below on the time, tight when the change is small.

>>> from assay.sim.telemetry import Frame
>>> entities = [{"id": 0, "kind": "rank", "name": "0"}, {"id": 1, "kind": "stream", "name": "7", "parent": 0}]
>>> spans = [{"span": 1, "entity": 1, "name": "nccl", "cat": "comm", "start": 0, "dur": 60, "seq": 1, "bytes": 8},
...          {"span": 2, "entity": 1, "name": "b", "cat": "kernel", "start": 65, "dur": 35}]
>>> from assay.observe.traces.kernel_path import links
>>> what_if(links(Frame.of(entities, spans=spans)), bandwidth=2.0)
Answer(recorded=100, changed=70, note='one size of message only: all of a transfer counts as bandwidth')
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.observe.graphs import replay_kernels as kernels
from assay.observe.graphs.path import COMM
from assay.observe.traces.kernel_path import Links

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Answer:
    """From the first start to the last end, in ns: as recorded, and with the change.

    `changed` is None where the recording does not decide it; the note says why.
    """

    recorded: int
    changed: int | None
    note: str = ""


@dataclass(frozen=True)
class _Pace:
    """How long everything takes, apart from waiting: what a what-if changes."""

    length: Ints
    """Of an op; of a collective, from the last arrival to its end."""
    delay: Ints
    """From the last thing that an op waited for to its start."""
    offset: Ints
    """Of a launching call behind the synchronisation before it."""
    sync_work: Ints
    """The host's own time from one synchronisation to the next."""
    sync_delay: Ints
    """From the end of the op waited for to the synchronisation's end."""


def what_if(links: Links, *, bandwidth: float = 1.0, stragglers: bool = True) -> Answer:
    """The run with the network so many times as fast, or (`stragglers=False`) with every rank as fast as the median."""
    pace, recorded = _recorded(links), links.last - links.first
    notes = []
    try:
        if not stragglers:
            pace, note = _alike(links, pace)
            notes.append(note)
        if bandwidth != 1.0:
            pace, note = _faster(links, pace, bandwidth)
            notes.append(note)
        end = _play(links, pace)
    except Undecided as why:
        return Answer(recorded, None, str(why))
    inside = links.end <= links.last
    if not inside.any():
        return Answer(recorded, None, "nothing ended in it")
    said = "; ".join(note for note in notes if note)
    return Answer(recorded, recorded + int(end[inside].max()) - int(links.end[inside].max()), said)


class Undecided(Exception):  # noqa: N818 - an answer with its reason, not a failure
    """Raised where the recording does not hold what the question asks for."""


def _together(links: Links) -> tuple[Ints, Ints]:
    """The collective that an op ends with, and when its last member came; -1 and its own start where it is alone.

    Clocks are aligned in the middle only: who seems to end before the last has come is taken for alone.
    """
    joined = pl.DataFrame({"key": links.collective, "start": links.start})
    latest = joined.select(pl.col("start").max().over("key")).to_series().to_numpy()
    waits = (links.collective >= 0) & (latest < links.end)
    return np.where(waits, links.collective, -1), np.where(waits, latest, links.start)


def _recorded(links: Links) -> _Pace:
    never = np.iinfo(np.int64).min
    host = np.where(links.called >= 0, links.called, never)
    before = np.where(links.end[links.before] <= links.start, links.end[links.before], links.start[links.before])
    before = np.where(links.before >= 0, before, never)
    other = np.where(links.other >= 0, links.end[links.other], never)
    ready = np.maximum(np.maximum(before, other), host)
    zero = _origin(links)
    ready = np.where(ready == never, zero, ready)
    base = np.where(links.after_sync >= 0, links.sync_end[links.after_sync] if len(links.sync_end) else zero, zero)
    earlier = np.where(links.sync_before >= 0, links.sync_end[links.sync_before], zero)
    return _Pace(
        length=links.end - _together(links)[1],
        delay=links.start - ready,
        offset=np.where(links.called >= 0, links.called - base, 0),
        sync_work=links.sync_start - earlier,
        sync_delay=links.sync_end - links.end[links.sync_op],
    )


def _faster(links: Links, pace: _Pace, bandwidth: float) -> tuple[_Pace, str]:
    """With transfers shorter: what grows with a message's size is divided, the rest stays.

    A rank recorded alone shows no arrivals: what its collectives take beyond the quickest of their size is waiting.
    """
    comm = links.kind == COMM
    rows = links.ops.select(
        "bytes", "name", row=pl.int_range(pl.len()), length=pl.Series(pace.length), comm=pl.Series(comm)
    )
    rows = rows.filter("comm").with_columns(quick=pl.col("length").min().over("name", "bytes"))
    if rows.is_empty():
        raise Undecided("no communication is recorded")
    quick = rows["quick"].to_numpy()
    sizes = rows["bytes"].to_numpy().astype(float)
    known = ~np.isnan(sizes)
    note, fixed = "one size of message only: all of a transfer counts as bandwidth", 0.0
    if not known.any() and not _met(links):
        raise Undecided("of one rank, and without the messages' sizes, a transfer looks like waiting for others")
    if not known.any():
        note = "no message's size is recorded: every transfer counts as the quickest of its kind, so more may be won"
    elif len(np.unique(sizes[known])) > 1:
        fixed = float(np.polyfit(sizes[known], quick[known].astype(float), 1)[1])
        fixed, note = float(np.clip(fixed, 0.0, quick[known].min())), ""
    length = pace.length.copy()
    saved = np.maximum(quick - fixed, 0.0) * (1.0 - 1.0 / bandwidth)
    length[rows["row"].to_numpy()] -= np.round(saved).astype(np.int64)
    return _Pace(length, pace.delay, pace.offset, pace.sync_work, pace.sync_delay), note


def _met(links: Links) -> bool:
    """Whether any collective is recorded of two ranks: the last to come then shows where waiting ends."""
    shared = pl.DataFrame({"key": links.collective, "rank": links.rank}).filter(pl.col("key") >= 0)
    return bool((shared.group_by("key").agg(pl.col("rank").n_unique())["rank"] > 1).any())


def _alike(links: Links, pace: _Pace) -> tuple[_Pace, str]:
    """With every rank as fast as the median of those that run the same program: the n-th op of one is that of all."""
    of_sync = _sync_ranks(links)
    programs: dict[tuple[bytes, int], list[int]] = {}
    codes = np.unique(links.rank).tolist()
    rows = {code: _program(links, code) for code in codes}
    syncs = {code: np.flatnonzero(of_sync == code) for code in codes}
    for code in codes:
        programs.setdefault((links.kind[rows[code]].tobytes(), len(syncs[code])), []).append(code)
    made = {name: getattr(pace, name).copy() for name in ("length", "delay", "offset", "sync_work", "sync_delay")}
    alike = 0
    for members in programs.values():
        if len(members) < 2:
            continue
        alike += len(members)
        counted = _counted_alike(links, [rows[code] for code in members])
        for name, values in made.items():
            places = syncs if name.startswith("sync") else rows
            block = np.stack([values[places[code]] for code in _odd(links, members)])
            middle = np.round(np.median(block, axis=0)).astype(np.int64)
            for code in members:
                taken = places is syncs or counted
                values[places[code]] = np.where(taken, middle, values[places[code]])
    own = len(codes) - alike
    if not alike:
        raise Undecided("one rank only" if len(codes) == 1 else "every rank runs a program of its own")
    return _Pace(**made), f"{own} of {len(codes)} ranks run a program of their own: kept as they are" if own else ""


def _program(links: Links, code: int) -> Ints:
    """The ops of a rank, lane by lane; lanes by what runs on them, for threads have other numbers on every rank."""
    own = np.flatnonzero(links.rank == code)
    entity = links.ops["entity"].to_numpy().astype(np.int64)[own]
    lane = np.where(links.host[own] & (links.kind[own] == COMM), -1, entity)  # any idle thread takes one
    order = np.lexsort((links.start[own], lane))
    parts = np.split(own[order], np.flatnonzero(np.diff(lane[order])) + 1)
    return np.concatenate(sorted(parts, key=lambda part: links.kind[part].tobytes()))


def _counted_alike(links: Links, places: list[Ints]) -> NDArray[np.bool_]:
    """Where the ops of all ranks count their delay from something, or all of them from nothing: zero is the clock's."""
    from_nothing = (links.called < 0) & (links.before < 0) & (links.other < 0)
    pattern = np.stack(
        [4 * from_nothing[at] + 2 * (links.called[at] < 0) + (links.after_sync[at] < 0) for at in places]
    )
    alike: NDArray[np.bool_] = (pattern == pattern[0]).all(axis=0)
    return alike


def _odd(links: Links, members: list[int]) -> list[int]:
    """The ranks to take the median of: of an even number not the slowest, or half of its delay stays where two are.

    The slowest waits for nobody: it spends the least time in collectives.
    """
    shared = links.collective >= 0
    spent = np.bincount(links.rank[shared], (links.end - links.start)[shared], minlength=max(members) + 1)
    if len(members) % 2 or not spent[members].any():
        return members
    slowest = min(members, key=lambda code: spent[code])
    return [code for code in members if code != slowest]


def _sync_ranks(links: Links) -> Ints:
    return links.rank[links.sync_op]


def _play(links: Links, pace: _Pace) -> Ints:
    """When each op ends, by the replay of all graphs (:mod:`assay.observe.graphs.replay_kernels`).

    What an op waits for are nodes before it, and so is every time that is not the device's: of the host before a call
    and before a synchronisation, and of an op that was ready and did not start at once. Of a collective, the members'
    starts come before one node, and their ends behind it.
    """
    n, m = len(links), len(links.sync_op)
    together = _together(links)[0]
    starts, ends, hosts = np.arange(n), n + np.arange(n), 2 * n + np.arange(n)
    came, seen, synced = (3 * n + part * m + np.arange(m) for part in range(3))
    met = 3 * n + 3 * m
    count = met + max(int(links.collective.max(initial=-1)), -1) + 1
    took = np.zeros(count)
    took[starts], took[ends], took[hosts] = pace.delay, pace.length, pace.offset
    took[came], took[seen] = pace.sync_work, pace.sync_delay
    called, shared, alone = links.called >= 0, links.collective >= 0, together < 0
    over = links.end[links.before] <= links.start  # one that still ran counts from its start
    edges = [
        (np.where(over, n, 0) + links.before, starts, links.before >= 0), (n + links.other, starts, links.other >= 0),
        (hosts, starts, called), (_at(synced, links.after_sync), hosts, called & (links.after_sync >= 0)),
        (starts, met + links.collective, shared), (starts, ends, alone), (met + together, ends, ~alone),
        (_at(synced, links.sync_before), came, links.sync_before >= 0), (came, synced, np.ones(m, bool)),
        (n + links.sync_op, seen, np.ones(m, bool)), (seen, synced, np.ones(m, bool)),
    ]  # fmt: skip
    source, target = (np.concatenate([edge[side][edge[2]] for edge in edges]) for side in (0, 1))
    nobody, itself = np.full(count, -1, np.int64), np.arange(count)
    rows = kernels.children(count, source, target)
    _, _, end, _, stuck = kernels.walk(took, *rows, source, target, itself, nobody)
    if stuck.any():
        raise Undecided("what happened at one instant waits for each other in a circle")
    found: Ints = np.round(end[ends]).astype(np.int64) + _origin(links)
    return found


def _at(places: Ints, which: Ints) -> Ints:
    """The places, where there are any; -1 (nothing) stays whatever it is, nobody follows it."""
    return places[which] if len(places) else which


def _origin(links: Links) -> int:
    """The first instant of all: times are counted from it, for a date in nanoseconds has no room in a float."""
    times = [links.start, links.called[links.called >= 0], links.sync_start]
    return min((int(some.min()) for some in times if len(some)), default=0)
