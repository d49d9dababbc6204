"""Which cycles a series has and where they run, the plainest first, each taken out before the next is looked for.

A peak of the spectrum becomes a cycle if it is strong enough somewhere. Its period is made exact, and is the calendar's
where the series cannot tell the two apart. In the end every cycle is looked for once more beside all the others.

>>> t = np.arange(24 * 100)
>>> wave = np.sin(2 * np.pi * t / 24) + np.sin(2 * np.pi * t / 31) * (t > 1200) + 0.3 * np.cos(t * t)
>>> [round(cycle.period, 1) for cycle in pursue(wave, 3600.0)]
[24.0, 31.0]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import seasons
from assay.observe.series.cycles import ACTIVE, Cycle

Floats = NDArray[np.float64]
DAY = 86400.0
CALENDAR = {
    "day": DAY, "week": 7 * DAY, "month": 365.25 / 12 * DAY, "quarter": 365.25 / 4 * DAY, "year": 365.25 * DAY,
}  # fmt: skip
MOST_CYCLES = 8


def total(cycles: Sequence[Cycle], length: int) -> Floats:
    """All cycles together, over so many steps."""
    made = np.zeros(length)
    for cycle in cycles:
        made += cycle.values(length)
    return made


def pursue(level: Floats, step: float) -> list[Cycle]:
    """Cycles of a level series, the plainest first: each one found is taken out before the next is looked for."""
    rest = seasons.clipped(level)
    cycles: list[Cycle] = []
    refused: list[seasons.Peak] = []
    for _ in range(4 * MOST_CYCLES):
        peak = seasons.strongest(rest, refused) if len(cycles) < MOST_CYCLES else None
        if peak is None:
            break
        cycle = _confirmed(rest, peak, step)
        if cycle is None or any(abs(cycle.period - other.period) < 0.02 * other.period for other in cycles):
            refused.append(peak)  # too faint, or what a cycle already found leaves behind as it grows and shrinks
            continue
        cycles.append(cycle)
        rest = rest - cycle.values(len(rest))
        refused.clear()  # what was too faint beside it may be plain now
    cycles += _calendar(rest, cycles, step)
    return _thinned(_looked_over(seasons.clipped(level), cycles), step)


def _looked_over(level: Floats, cycles: Sequence[Cycle]) -> list[Cycle]:
    """Each cycle looked for again beside all others: one that hid another's stretch does so no more."""
    made = list(cycles)
    n = len(level)
    for _ in range(2):
        for k, cycle in enumerate(made):
            partial = level - total([*made[:k], *made[k + 1 :]], n)
            made[k] = Cycle.found(partial, cycle.period, most=cycle.most)
    return [cycle for cycle in made if cycle.pieces]


def _confirmed(rest: Floats, peak: seasons.Peak, step: float) -> Cycle | None:
    """The cycle behind a peak: its period made exact, and where it runs; None if it is nowhere strong enough."""
    period = seasons.refined(rest, peak.period, [peak.window])
    cycle = Cycle.found(rest, period)
    if not cycle.pieces:
        # Out of step over the whole, it may still run in the window where it was seen.
        cycle = Cycle.stated(rest, period, [peak.window], cycle.most)
        if cycle.strength < ACTIVE:
            return None
    spans = [(piece.start, piece.stop) for piece in cycle.pieces]
    period = _snapped(rest, seasons.refined(rest, period, spans), spans, step)
    better = Cycle.found(rest, period)
    return _whole(rest, better if better.pieces else cycle, step)


def _whole(rest: Floats, cycle: Cycle, step: float) -> Cycle:
    """The cycle, or the calendar's one of which it is a half or a third: a working week shows at half a week too."""
    exact = [seconds / step for seconds in CALENDAR.values()]
    if any(abs(cycle.period - period) < 1e-6 * period for period in exact):
        return cycle
    for period in exact:
        times = period / cycle.period
        if round(times) not in (2, 3) or abs(times - round(times)) > 0.01 * times or period > len(rest) / 2:
            continue
        if seasons.stands_out(rest, period, 1e-4):
            whole = Cycle.found(rest, period)
            if whole.pieces:
                return whole
    return cycle


def _snapped(rest: Floats, period: float, spans: Sequence[tuple[int, int]], step: float) -> float:
    """The calendar's period where the series cannot tell it from the one found; few cycles tell less than many."""
    few = max(stop - start for start, stop in spans) < 6 * period
    for exact in CALENDAR.values():
        near = exact / step
        if abs(near - period) >= (0.1 if few else 0.06) * near:
            continue
        kept = seasons.power_at(rest, near, spans) / max(seasons.power_at(rest, period, spans), 1e-300)
        if kept > (0.85 if few else 0.95):
            return near
    return period


def _calendar(rest: Floats, cycles: Sequence[Cycle], step: float) -> list[Cycle]:
    """Calendar periods with two full cycles that were not found as peaks but are strong all the same."""
    made: list[Cycle] = []
    for exact in CALENDAR.values():
        period = exact / step
        if not 4 <= period <= len(rest) / 2 or any(abs(c.period - period) < 0.1 * period for c in cycles):
            continue
        if not seasons.hill(rest, period) or not seasons.stands_out(rest, period, 1e-3):
            continue
        cycle = Cycle.found(rest, period)
        if cycle.pieces and (len(rest) > 4 * period or cycle.strength >= 2 * ACTIVE):  # a wandering level has waves too
            made.append(cycle)
            rest = rest - cycle.values(len(rest))
    return made


def _thinned(cycles: Sequence[Cycle], step: float) -> list[Cycle]:
    """Without fractions: a half of a period that runs whenever the whole does is part of the whole's shape.

    Calendar periods stay, though a day is a seventh of a week.
    """
    exact = [seconds / step for seconds in CALENDAR.values()]
    kept = []
    for cycle in cycles:
        known = any(abs(cycle.period - period) < 1e-6 * period for period in exact)
        wholes = (other for other in cycles if other.period > 1.5 * cycle.period)
        if known or not any(_fraction(cycle, whole) for whole in wholes):
            kept.append(cycle)
    return sorted(kept, key=lambda cycle: cycle.period)


def _fraction(cycle: Cycle, whole: Cycle) -> bool:
    times = whole.period / cycle.period
    if round(times) > 12 or abs(times - round(times)) > 0.02 * times:
        return False
    inside = sum(
        max(0, min(a.stop, b.stop) - max(a.start, b.start)) for a in cycle.pieces for b in whole.pieces
    )  # fmt: skip
    return inside > 0.9 * sum(piece.stop - piece.start for piece in cycle.pieces) and inside > 0.6 * sum(
        piece.stop - piece.start for piece in whole.pieces
    )
