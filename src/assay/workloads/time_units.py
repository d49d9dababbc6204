"""In which unit a trace counts its time: told by its name, its size or, where neither says, by what the rows are like.

A column of bare numbers may be seconds, milliseconds, microseconds or nanoseconds. Read in the wrong unit a trace gives
answers that are wrong by a thousand, without any other sign. So a unit is sure only where no other is possible: because
no site has so many requests a second, or so few; or because the numbers are dates since 1970 in that unit. Traces span
more than the factor between two units, so often two are possible. Then clues that have nothing to do with one another
say which is likelier (how many answers would be under way at once, how the numbers are written, how long sessions
pause, who writes such columns), and the other is said, too: likelihood has been wrong too often to keep silent.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput

Floats = NDArray[np.float64]
SCALES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
WORDS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
RATES = (0.01, 800.0)  # requests a second of what people trace: one person at work, a large cluster
_RARELY = math.log(1000.0)  # dates may come so much less often: a clock that began elsewhere looks like that, too
_STROKE = 100  # requests that may come at once, and are no sign of a busy time
_GAPS = 15.0  # that many tell little of a rate
_FEW = 10  # and so few less: they may be one stroke of a slow site
_MOMENTS = 5  # and so few different times nothing of how slow it was: they may be those of a night
_PAUSE = 100.0  # times the usual gap: nobody works, as at night, and it says nothing of the rate
_PACE = 50.0  # tokens a second of an answer: engines differ by a factor of four, units by a thousand
_FASTEST = 1000.0  # tokens a second that no engine exceeds
_COMMON = {"s": 0.46, "ms": 0.36, "us": 0.16, "ns": 0.02}
_WHOLE = {"s": 0.2, "ms": 0.8, "us": 0.9, "ns": 0.97}  # how often such times are whole numbers
_SINCE_1970 = (1.1e9, 2.4e9)  # seconds, from 2004 to 2046


class Unit(NamedTuple):
    """How a trace's times are read."""

    name: str  # s, ms, us, ns
    also: tuple[str, ...] = ()  # other units that are plausible
    clues: str = ""  # why; empty: the file itself says so, or the user
    told: str = ""  # as the account of columns has it: ms, "ms since 1970", "date and time"

    @property
    def scale(self) -> float:
        """Seconds of one."""
        return SCALES[self.name]

    def sentence(self) -> str:
        """The reading in words, as the first line of an answer has it.

        >>> Unit("ms", also=("us",), clues="6.1 answers under way at once").sentence()
        'milliseconds, guessed (6.1 answers under way at once); microseconds are plausible too: --time-unit says which'
        """
        if not self.clues:
            return WORDS[self.name]
        said = f"{WORDS[self.name]}, guessed ({self.clues})"
        if self.also:
            others = " and ".join(WORDS[name] for name in self.also)
            said += f"; {others} are plausible too: --time-unit says which"
        return said


def chosen(text: str) -> str:
    """A unit as the user gives it.

    >>> chosen("ms")
    'ms'
    """
    if text not in SCALES:
        raise BadInput(f"--time-unit '{text}': write one of {', '.join(SCALES)}")
    return text


def named(column: str) -> str | None:
    """The unit that a column's name ends with.

    >>> named("arrival_ms"), named("time (us)"), named("timestampMs"), named("timestamp")
    ('ms', 'us', 'ms', None)
    """
    lower = column.lower()
    for unit in ("ms", "us", "ns"):
        if lower.endswith((f"_{unit}", f".{unit}", f"({unit})")) or column.endswith(unit.capitalize()):
            return unit
    return "s" if lower.endswith(("_s", "_sec", "_secs", "_seconds", "(s)")) else None


def guessed(
    arrival: Floats, output: NDArray[np.int64], session: NDArray[np.int32] | None = None, written: str | None = None,
    hint: float = 1.0,
) -> Unit:  # fmt: skip
    """The likeliest of the units in which the times are possible; `written`: in which such columns are published.

    `hint` is what that counts for, in nats: little where others have such columns, too; infinite where nobody has.

    >>> times = np.cumsum(np.random.default_rng(0).integers(50, 400, 100)).astype(float)
    >>> guessed(times, np.full(100, 200)).name, guessed(times / 1000, np.full(100, 200)).name
    ('ms', 's')
    >>> likely = guessed(times // 10, np.full(100, 200))  # 44 requests a second, or one in 23 seconds
    >>> likely.name, likely.also
    ('ms', ('s',))
    """
    times = np.sort(arrival)
    if len(times) < 2 or times[0] == times[-1]:
        return Unit(written or "s", clues="all at the same time, in any unit", told=written or "s")
    streams = {unit: _streams(times, output) / scale for unit, scale in SCALES.items()}
    whole = bool((times == np.floor(times)).all())
    gaps = _turn_gaps(arrival, output, session)
    score = _likelihood(times, streams, whole, gaps)
    if written is not None:
        score[written] += min(hint, 100.0)
    possible = _possible(times, written if hint == math.inf else None)
    best = max(possible, key=lambda unit: score[unit])
    told = best
    if _dates(times, SCALES[best]):
        told = f"{best} since 1970"
    also = tuple(unit for unit in possible if unit != best)
    return Unit(best, also, _clues(best, streams[best], whole, gaps, written), told)


def _possible(times: Floats, written: str | None) -> tuple[str, ...]:
    """The units that nothing rules out; where all are ruled out, the two that are nearest to what is possible.

    A rate is possible where that of the busy times is not too low and that of the whole trace not too high. Pauses
    are no part of either, unless the rows between them are so few that they may have come at one stroke.
    """
    gaps = np.diff(times)
    ticks = np.sort(gaps[gaps > 0])
    coarse = 2 * len(ticks) < len(gaps)  # most rows have the time of the one before
    moments = ticks[ticks < 1.25 * ticks[0]] if coarse else ticks  # those that tell how fast it went
    usual = float(ticks[0] if coarse else ticks[: -(-len(ticks) // 4)].mean())
    busy = gaps[gaps <= _PAUSE * usual]
    nights = len(gaps) - len(busy)
    steady = busy if len(times) > _STROKE * (nights + 1) else gaps
    made_of = float(steady.sum() ** 2 / (steady**2).sum())  # so many gaps, were all alike: a burst counts once
    slack = (1.0 + _GAPS / made_of) ** 2 if made_of > _FEW else 1000.0
    rare: dict[str, float] = {}  # by what factor, as a logarithm, a unit is out of bounds
    off: dict[str, float] = {}
    for unit, scale in SCALES.items():
        rare[unit] = max(math.log(RATES[0] / slack * float(busy.mean()) * scale), 0.0)
        dense = math.log(1.0 / (float(steady.mean()) * scale) / (RATES[1] * slack))
        off[unit] = max(dense, rare[unit] if len(moments) > _MOMENTS else 0.0, 0.0)
    if written is not None and not off[written]:
        return (written,)
    dated = [unit for unit, scale in SCALES.items() if _dates(times, scale)]
    if sure := tuple(unit for unit in dated if not off[unit] and float(busy.mean()) * SCALES[unit] < 1.0 / RATES[0]):
        return sure
    found = tuple(unit for unit in SCALES if not off[unit] or (unit in dated and off[unit] < _RARELY))
    return found or tuple(sorted(SCALES, key=lambda unit: off[unit])[:2])


def _likelihood(
    times: Floats, streams: dict[str, float], whole: bool, gaps: tuple[Floats, Floats] | None
) -> dict[str, float]:
    """What the clues say of each unit, in nats."""
    weight = len(times) / (len(times) + 10.0)  # a few rows tell little
    often = _WHOLE | ({"s": 0.5} if whole and _coarse(times) else {})
    score: dict[str, float] = {}
    for unit, scale in SCALES.items():
        found = math.log(_COMMON[unit]) - weight * 0.5 * (math.log10(max(streams[unit], 1e-12)) - 1.0) ** 2
        found += weight * math.log(often[unit] if whole else 1.0 - often[unit])
        if gaps is not None:
            found += _of_turns(gaps[0] * scale, gaps[1])
        score[unit] = found
    return score


def _coarse(times: Floats) -> bool:
    """Whether several rows often have the same tick of a clock that counts ones."""
    ties = float((np.diff(times) == 0).mean())
    return ties > 0.1 and times[-1] < 2**53 and int(np.gcd.reduce(np.diff(times).astype(np.int64))) == 1


def _streams(times: Floats, output: NDArray[np.int64]) -> float:
    """Answers under way at once if times were seconds: of the gaps all but the longest, which are pauses."""
    gaps = np.sort(np.diff(times))
    kept = gaps[: max(1, int(0.95 * len(gaps)))]
    mean = float(kept.mean()) or float(gaps[:-1].sum() / len(gaps)) or float(gaps.mean())
    return float(output.mean()) / _PACE / mean


def _dates(times: Floats, scale: float) -> bool:
    return bool(_SINCE_1970[0] < times[0] * scale and times[-1] * scale < _SINCE_1970[1])


def _turn_gaps(
    arrival: Floats, output: NDArray[np.int64], session: NDArray[np.int32] | None
) -> tuple[Floats, Floats] | None:
    """Between the turns of sessions: the time from one to the next, and the tokens of the answer in between."""
    if session is None or not (session >= 0).any():
        return None
    order = np.lexsort((np.arange(len(arrival)), arrival, session))
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    if not same.any():
        return None
    return np.diff(arrival[order])[same], output[order][:-1][same].astype(float)


def _of_turns(gaps: Floats, tokens: Floats) -> float:
    """How well gaps between turns fit: those that no engine could have kept, and how long people think."""
    impossible = float((gaps < tokens / _FASTEST).mean())
    weight = len(gaps) / (len(gaps) + 5.0)
    typical = math.log10(max(float(np.median(gaps)), 1e-9))
    return -weight * (10.0 * (impossible > 0.2) + 0.5 * ((typical - 1.3) / 1.0) ** 2)


def _clues(unit: str, streams: float, whole: bool, gaps: tuple[Floats, Floats] | None, written: str | None) -> str:
    told = [f"{streams:.2g} answers under way at once", "whole numbers" if whole else "numbers with decimals"]
    if gaps is not None:
        told.append(f"{float(np.median(gaps[0])) * SCALES[unit]:.2g} s between turns")
    if written == unit:
        told.append("as such columns are published")
    return ", ".join(told)
