"""More load of the same kind: more sessions, each as slow as it was, for as long as one likes.

Twice the load is twice the people, not the same people thinking twice as fast. So a trace is taken as a circle, and
more load is copies of it that begin elsewhere on the circle, a copy thinned for the rest of a factor. A session of a
copy is a session of its own: what only one session of the trace shares is shared by that copy alone, and what several
share (a system prompt, a document) by all. A load may last longer than its trace; the circle goes round again.

At time 0 as many sessions are under way as later: those that began before come in with the turn they have reached. So
the rate is what it should be from the beginning, and as long as one likes: nothing depends on the trace's length.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import stream
from assay.workloads.closed_loop import PACE
from assay.workloads.prefixes import turns
from assay.workloads.requests import Blocks, Floats, Prefixes, Requests

Longs = NDArray[np.int64]
_GOLDEN = 0.6180339887498949  # its multiples, modulo 1, lie as evenly as any on a circle
MANY = 1000  # copies, beyond which each is not looked at
SETTLING = 5_000  # requests at most that are spent on letting sessions that were cut at time 0 end


class Sessions(NamedTuple):
    """A trace by its sessions: the rows of each, when it opens, and how long after its opening each row comes."""

    of: Longs  # by row: its session
    opens: Floats  # by session, on the circle
    later: Floats  # by row: seconds after its session's opening
    circle: float  # seconds until the trace begins again
    turns: Longs  # by session: how many rows it has


def by_session(requests: Requests) -> Sessions:
    """The sessions of a trace: what waits for one another, else what continues a prompt, else each request alone.

    >>> trace = Requests.of([0.0, 1.0, 9.0], [9, 9, 9], [1, 1, 1], session=np.array([0, 1, 0], np.int32))
    >>> found = by_session(trace)
    >>> found.of.tolist(), found.later.tolist(), found.turns.tolist()
    ([0, 1, 0], [0.0, 0.0, 9.0], [2, 1])
    """
    before = turns(requests) if requests.after is None else requests.after
    if requests.session is not None and requests.after is not None:
        before = np.where(before >= 0, before, turns(requests))
    first = _first(np.asarray(before, np.int64))
    _, of = np.unique(first, return_inverse=True)
    opens = requests.arrival[np.unique(first)]
    circle = requests.seconds * len(requests) / max(len(requests) - 1, 1)
    return Sessions(of, opens, requests.arrival - opens[of], circle, np.bincount(of, minlength=len(opens)))


@njit(cache=True, nogil=True)
def _first(before: Any) -> Any:
    found = np.empty(len(before), np.int64)
    for r in range(len(before)):
        found[r] = r if before[r] < 0 else found[before[r]]
    return found


def fills_up(requests: Requests) -> float:
    """Seconds after which a fleet that keeps up holds as much as it ever will: twice the longest answers' time."""
    return max(20.0, 2 * float(np.quantile(requests.output, 0.99)) / PACE)


def sustained(requests: Requests, rate: float, seconds: float, fill: float | None = None) -> Requests:
    """The trace's sessions at `rate` requests a second, for a steady window of so many `seconds`.

    The window (`Requests.steady`) begins when the fleet has filled up, which takes `fill` seconds, and most of those
    have left who came in the middle of their session. Requests go on coming after it has ended, so that what is
    served in it is served under load.

    >>> trace = Requests.of([0.0, 1.0, 2.0, 3.0], [9] * 4, [1] * 4)
    >>> load = sustained(trace, rate=50.0, seconds=100.0, fill=10.0)
    >>> start, stop = load.steady
    >>> bool(abs(((load.arrival >= start) & (load.arrival < stop)).sum() / 100 - 50) < 1)
    True
    """
    fill = fills_up(requests) if fill is None else fill
    sessions = by_session(requests)
    warm = fill + min(float(np.quantile(sessions.later, 0.9)), SETTLING / rate)
    end = warm + seconds + fill
    which, opening = _openings(sessions, rate * sessions.circle / len(requests), end)
    steady = (warm, warm + seconds)
    return replace(compose(requests, sessions, which, opening, end), steady=steady)


def resampled(requests: Requests, draw: int, slices: int = 40) -> Requests:
    """Another trace of the kind: stretches of this one, drawn with replacement, and the sessions that open there.

    What stays the same over such traces does not hang on what this one happens to hold.

    >>> trace = Requests.of(np.arange(80.0), [9] * 80, [1] * 80)
    >>> other = resampled(trace, draw=1)
    >>> len(other), len(np.unique(other.origin)) < 80
    (80, True)
    """
    sessions = by_session(requests)
    width = sessions.circle / slices
    opens = sessions.opens - requests.arrival[0]
    slice_of = np.minimum((opens / width).astype(np.int64), slices - 1)
    found: list[tuple[Longs, Floats]] = []
    for place, drawn in enumerate(stream(draw, "resampled").integers(0, slices, slices)):
        which = np.flatnonzero(slice_of == drawn)
        found.append((which, opens[which] + (place - drawn) * width))
    which, opening = (np.concatenate([each[part] for each in found]) for part in (0, 1))
    if not len(which):
        return requests
    order = np.argsort(opening, kind="stable")
    return compose(requests, sessions, which[order], np.maximum(opening[order], 0.0), np.inf)


def _openings(sessions: Sessions, factor: float, end: float) -> tuple[Longs, Floats]:
    """Which sessions open when, between the longest one's length before time 0 and the end."""
    circle, lasts = sessions.circle, _lasting(sessions)
    if factor > MANY:
        return _evenly(lasts, circle / factor, end)
    least = -int(np.ceil(float(lasts.max()) / circle))
    most = int(np.ceil(end / circle))
    found: list[tuple[Longs, Floats]] = []
    full, rest = int(factor), factor - int(factor)
    for copy in range(full + (rest > 1e-9)):
        start = (copy * _GOLDEN) % 1.0 * circle
        chosen = np.arange(len(sessions.opens))
        opens = np.mod(sessions.opens[chosen] - sessions.opens[0] + start, circle)
        for lap in range(least, most):
            at = opens + lap * circle
            wanted = (at < end) & (at + lasts >= 0)
            if copy == full:
                wanted &= _thinned(sessions.turns, rest, lap)
            found.append((chosen[wanted], at[wanted]))
    which = np.concatenate([each[0] for each in found])
    opening = np.concatenate([each[1] for each in found])
    order = np.argsort(opening, kind="stable")
    return which[order], opening[order]


def _evenly(lasts: Floats, apart: float, end: float) -> tuple[Longs, Floats]:
    """Of very many copies only what opens in time: every session again and again, from a moment of its own on."""
    phase = stream(0, "more-sessions", 1).random(len(lasts)) * apart
    first = np.ceil((-lasts - phase) / apart).astype(np.int64)
    counts = np.maximum(np.ceil((end - phase) / apart).astype(np.int64) - first, 0)
    which = np.repeat(np.arange(len(lasts)), counts)
    turn = first[which] + np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
    opening = phase[which] + turn * apart
    order = np.argsort(opening, kind="stable")
    return which[order], opening[order]


def _lasting(sessions: Sessions) -> Floats:
    lasts = np.zeros(len(sessions.opens))
    np.maximum.at(lasts, sessions.of, sessions.later)
    return lasts


def _thinned(rows: Longs, share: float, lap: int) -> NDArray[np.bool_]:
    """A share of the sessions with, as nearly as can be, that share of the rows; another choice every lap."""
    random = stream(0, "more-sessions", lap + 2**32)
    order = random.permutation(len(rows))
    chosen = np.zeros(len(rows), np.bool_)
    chosen[order] = _carried(rows[order], share, float(random.random()))
    return chosen


@njit(cache=True, nogil=True)
def _carried(rows: Any, share: float, begin: float) -> Any:
    """Whom to take so that the rows taken stay next to the share of those passed."""
    chosen = np.zeros(len(rows), np.bool_)
    owed = (begin - 0.5) * rows.mean()
    for s in range(len(rows)):
        owed += share * rows[s]
        if owed >= 0.5 * rows[s]:
            chosen[s] = True
            owed -= rows[s]
    return chosen


def compose(requests: Requests, sessions: Sessions, which: Longs, opening: Floats, end: float) -> Requests:
    """A trace of these sessions, each opening at its time; `which` may name one often: each time it is another one.

    What would come before time 0 or from `end` on is left out.
    """
    by_session = np.argsort(sessions.of, kind="stable")
    starts = np.concatenate([[0], np.cumsum(sessions.turns)])
    sizes = sessions.turns[which]
    copy = np.repeat(np.arange(len(which)), sizes)  # by row of the new trace: which session of it
    place = np.arange(len(copy)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    row = by_session[starts[which[copy]] + place]
    time = opening[copy] + sessions.later[row]
    kept = np.flatnonzero((time >= 0) & (time < end))
    kept = kept[np.argsort(time[kept], kind="stable")]
    names = ("prompt", "output", "think", "tier", "tenant", "model", "category")
    columns: dict[str, Any] = {}
    for name in names:
        column = getattr(requests, name)
        columns[name] = None if column is None else column[row[kept]]
    if requests.session is not None:
        columns["session"] = np.where(requests.session[row[kept]] >= 0, copy[kept], -1).astype(np.int32)
    if requests.after is not None:
        columns["after"] = _waits_for(requests.after, sessions, row, copy, kept)
    if requests.prefixes is not None:
        columns["prefixes"] = _own_segments(requests.prefixes, sessions, which, row[kept], copy[kept])
    if requests.blocks is not None:
        columns["blocks"] = _own_blocks(requests.blocks, sessions, row[kept], copy[kept])
    origin = row[kept] if requests.origin is None else requests.origin[row[kept]]
    return replace(requests, arrival=time[kept], origin=origin, steady=None, **columns)


def _waits_for(after: Any, sessions: Sessions, row: Longs, copy: Longs, kept: Longs) -> NDArray[np.int32]:
    """The row of the new trace that each waits for: that of its own copy, unless it lies before the beginning."""
    starts = np.concatenate([[0], np.cumsum(np.bincount(copy))])
    place = np.empty(len(sessions.of), np.int64)  # of a row within its session
    by_session = np.argsort(sessions.of, kind="stable")
    place[by_session] = np.arange(len(by_session)) - np.repeat(np.cumsum(sessions.turns) - sessions.turns,
                                                               sessions.turns)  # fmt: skip
    new = np.full(len(row), -1, np.int64)
    new[kept] = np.arange(len(kept))
    before = np.asarray(after, np.int64)[row[kept]]
    found = new[starts[copy[kept]] + place[np.maximum(before, 0)]]
    return np.where(before >= 0, found, -1).astype(np.int32)


def _own_segments(prefixes: Prefixes, sessions: Sessions, which: Longs, row: Longs, copy: Longs) -> Prefixes:
    """The tree of the copies: segments of several sessions once, those of one session once for each copy."""
    owner = _owners(prefixes, sessions)
    private = np.flatnonzero(owner >= 0)
    private = private[np.argsort(owner[private], kind="stable")]  # by session, parents before children
    counts = np.bincount(owner[private], minlength=len(sessions.opens))
    rank = np.zeros(len(owner), np.int64)
    rank[private] = np.arange(len(private)) - np.repeat(np.cumsum(counts) - counts, counts)
    shared = np.flatnonzero(owner < 0)
    number = np.full(len(owner), -1, np.int64)
    number[shared] = np.arange(len(shared))
    sizes = counts[which]
    base = len(shared) + np.cumsum(sizes) - sizes  # by copy: its first segment

    def named(segments: Any, of: Any) -> Any:
        own = owner[segments] >= 0
        return np.where(segments < 0, -1, np.where(own, base[of] + rank[segments], number[segments]))

    begins = np.cumsum(counts) - counts
    copies = np.repeat(np.arange(len(which)), sizes)
    old = private[begins[which[copies]] + np.arange(len(copies)) - np.repeat(np.cumsum(sizes) - sizes, sizes)]
    old = np.concatenate([shared, old]).astype(np.int64)
    copies = np.concatenate([np.zeros(len(shared), np.int64), copies])
    lengths = np.diff(prefixes.offsets)[row]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    steps = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths)
    path = prefixes.segments[np.repeat(prefixes.offsets[:-1][row], lengths) + steps].astype(np.int64)
    return Prefixes(
        named(prefixes.parent[old].astype(np.int64), copies).astype(np.int32),
        prefixes.start[old], prefixes.stop[old], offsets,
        named(path, np.repeat(copy, lengths)).astype(np.int32),
        named(prefixes.output[row].astype(np.int64), copy).astype(np.int32), prefixes.block,
    )  # fmt: skip


def _owners(prefixes: Prefixes, sessions: Sessions) -> Longs:
    """The session that alone uses each segment; -1: several do, or none."""
    count = len(prefixes.parent)
    used = np.concatenate([prefixes.segments, prefixes.output[prefixes.output >= 0]]).astype(np.int64)
    lengths = np.diff(prefixes.offsets)
    by = np.concatenate([np.repeat(sessions.of, lengths), sessions.of[prefixes.output >= 0]])
    least, most = np.full(count, len(sessions.opens), np.int64), np.full(count, -1, np.int64)
    np.minimum.at(least, used, by)
    np.maximum.at(most, used, by)
    return np.where(least == most, least, -1)


def _own_blocks(blocks: Blocks, sessions: Sessions, row: Longs, copy: Longs) -> Blocks:
    """Blocks by content: those that one session alone has are other ones in each of its copies."""
    names, numbers = np.unique(blocks.ids, return_inverse=True)
    lengths = np.diff(blocks.offsets)
    by = np.repeat(sessions.of, lengths)
    least, most = np.full(len(names), len(sessions.opens), np.int64), np.full(len(names), -1, np.int64)
    np.minimum.at(least, numbers, by)
    np.maximum.at(most, numbers, by)
    took = lengths[row]
    offsets = np.concatenate([[0], np.cumsum(took)]).astype(np.int64)
    at = np.repeat(blocks.offsets[:-1][row], took) + np.arange(offsets[-1]) - np.repeat(offsets[:-1], took)
    own = (least == most)[numbers[at]]
    return Blocks(np.where(own, (np.repeat(copy, took) + 1) * len(names), 0) + numbers[at], offsets, blocks.tokens)
