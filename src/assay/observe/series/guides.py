"""What an analyst says about a series: which periods, when each one runs, how smooth it is, where the level jumps.

A guide is a small TOML file. Everything in it may be left out; what is not said is found or assumed plain.

    scale = "multiply"                  # or "add"; else told from the series
    shifts = [2024-03-01]               # where the level jumps; [] for nowhere; else looked for
    [[cycle]]
    period = "1d"                       # 90s, 30min, 6h, 1d, 2w, month, quarter, year
    shape = "smooth"                    # three harmonics; "free": as many as pay for themselves
    [[cycle]]
    period = "36h"
    active = [[2023-06-01, 2023-08-15]] # always, unless said

>>> guide = Guide.of("1d, 7d")
>>> [cycle.period for cycle in guide.cycles]
[86400.0, 604800.0]
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assay.observe.series import decompose
from assay.observe.series.cycle_search import CALENDAR
from assay.observe.series.cycles import SHAPES
from assay.observe.series.decompose import Decomposition
from assay.record import reading
from assay.record.errors import BadInput
from assay.workloads.long_series import Grid

UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0, "w": 7 * 86400.0}
SCALES = {"add": False, "multiply": True}


@dataclass(frozen=True)
class StatedCycle:
    """A period in seconds, the stretches (seconds since 1970) in which it runs (none: always), and its shape."""

    period: float
    active: tuple[tuple[float, float], ...] = ()
    shape: str = "free"


@dataclass(frozen=True)
class Guide:
    """An analyst's word on a series."""

    cycles: tuple[StatedCycle, ...]
    shifts: tuple[float, ...] | None = None  # seconds since 1970; None: look for them
    multiplicative: bool | None = None

    @classmethod
    def of(cls, periods: str) -> Guide:
        """From a list of periods such as `1d,7d`."""
        return cls(tuple(StatedCycle(duration(word)) for word in periods.split(",")))


def duration(text: str) -> float:
    """Seconds of `90s`, `30min`, `6h`, `1d`, `2w`, `month`, `quarter`, `year`.

    >>> duration("1.5d"), duration("week")
    (129600.0, 604800.0)
    """
    word = text.strip().lower()
    if word in CALENDAR:
        return CALENDAR[word]
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*(s|min|h|d|w)", word)
    if match is None or float(match[1]) == 0.0:
        raise BadInput(
            f"'{text.strip()[:40]}' is no length of time; 90s, 30min, 6h, 1d, 2w, month or quarter would be right"
        )
    return float(match[1]) * UNITS[match[2]]


def read(path: str | Path) -> Guide:
    """The guide of a TOML file; BadInput names the file and what in it is wrong."""
    file = Path(path)
    said = reading.toml(file)
    _only(file, said, "the guide", ("cycle", "shifts", "scale"))
    cycles = said.get("cycle", [])
    if not isinstance(cycles, list) or not all(isinstance(cycle, dict) for cycle in cycles):
        raise BadInput(f"{file}: cycles are tables [[cycle]]")
    scale = said.get("scale")
    if scale is not None and scale not in SCALES:
        raise BadInput(f"{file}: scale is 'add' or 'multiply', not {scale!r}")
    shifts = said.get("shifts")
    if shifts is not None and not isinstance(shifts, list):
        raise BadInput(f"{file}: shifts is a list of dates")
    return Guide(
        tuple(_cycle(file, cycle) for cycle in cycles),
        None if shifts is None else tuple(_instant(file, shift) for shift in shifts),
        None if scale is None else SCALES[scale],
    )


def _only(file: Path, said: Mapping[str, Any], what: str, names: tuple[str, ...]) -> None:
    if odd := [name for name in said if name not in names]:
        raise BadInput(f"{file}: {what} has no '{odd[0]}'; it has {', '.join(names)}")


def _cycle(file: Path, said: Mapping[str, Any]) -> StatedCycle:
    _only(file, said, "a cycle", ("period", "active", "shape"))
    if not isinstance(said.get("period"), str):
        raise BadInput(f'{file}: a cycle needs a period such as "1d"')
    shape = said.get("shape", "free")
    if shape not in SHAPES:
        raise BadInput(f"{file}: shape is {' or '.join(SHAPES)}, not {shape!r}")
    active = said.get("active", [])
    if not isinstance(active, list) or not all(isinstance(span, list) and len(span) == 2 for span in active):
        raise BadInput(f"{file}: active is a list of [from, to]")
    spans = tuple((_instant(file, begin), _instant(file, end)) for begin, end in active)
    if any(begin >= end for begin, end in spans):
        raise BadInput(f"{file}: a stretch of the cycle {said['period']} ends before it begins")
    return StatedCycle(duration(said["period"]), spans, shape)


def _instant(file: Path, said: Any) -> float:
    """Seconds since 1970 of a TOML date, or of a number that is just that."""
    if isinstance(said, datetime.datetime):
        return (said if said.tzinfo else said.replace(tzinfo=datetime.UTC)).timestamp()
    if isinstance(said, datetime.date):
        return datetime.datetime(said.year, said.month, said.day, tzinfo=datetime.UTC).timestamp()
    if isinstance(said, int | float) and not isinstance(said, bool) and math.isfinite(said):
        return float(said)
    raise BadInput(f"{file}: {str(said)[:40]!r} is no date; 2024-03-01 or 2024-03-01T06:00:00 would be right")


def guided(grid: Grid, guide: Guide) -> Decomposition:
    """Take a series apart as an analyst says. A cycle that does not fit twice into the series is refused.

    >>> import numpy as np
    >>> t = np.arange(24.0 * 30)
    >>> made = guided(Grid("demo", 0.0, 3600.0, 9 + np.sin(2 * np.pi * t / 24)), Guide.of("1d"))
    >>> round(made.cycles[0].strength, 2)
    1.0
    """
    stated = []
    for cycle in guide.cycles:
        period = cycle.period / grid.step
        if period < 2 or period > len(grid.values) / 2:
            raise BadInput(
                f"series '{grid.name}': a period of {decompose.period_name(cycle.period)} must be two steps "
                f"({grid.step:g} s each) or more and fit twice into {grid.length / 86400:.3g} days"
            )
        spans = [_steps(grid, begin, end) for begin, end in cycle.active]
        inside = [(begin, end) for begin, end in spans if end - begin >= 2 * period]
        if cycle.active and not inside:
            continue  # it did not run yet, or no longer
        stated.append((period, inside, SHAPES[cycle.shape]))
    shifts = None
    if guide.shifts is not None:
        places = (_steps(grid, shift, shift)[0] for shift in guide.shifts)
        shifts = tuple(sorted({place for place in places if 0 < place < len(grid.values)}))
    return decompose.stated(grid, stated, shifts=shifts, multiplicative=guide.multiplicative)


def _steps(grid: Grid, begin: float, end: float) -> tuple[int, int]:
    first, last = (math.ceil((time - grid.start) / grid.step) for time in (begin, end))
    return max(0, min(first, len(grid.values))), max(0, min(last, len(grid.values)))
