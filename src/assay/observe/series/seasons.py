"""Which periods a series has: peaks of its periodogram that hills of its autocorrelation confirm.

Times are steps of an even grid, gaps are NaN. A peak counts where it stands out of the spectrum around it (drifting
levels fill the long periods with power that is no cycle), with a false-alarm probability below 1 % over all
frequencies looked at. The periodogram is also taken of halves, quarters and eighths of the series: a cycle that ran
for some weeks only is faint in the whole and plain in its part.

- Vlachos, Yu, Castelli, "On periodicity detection and structural periodic similarity", SDM 2005 (peaks and hills).
- Wang, Smith, Hyndman, "Characteristic-based clustering for time series data", 2006 (strength of a season).

>>> t = np.arange(600)
>>> found = strongest(np.sin(2 * np.pi * t / 24) + 0.1 * np.cos(t * t))
>>> round(found.period, 1), found.window
(24.0, (0, 600))
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
FALSE_ALARM = 0.01
OVERSAMPLE = 4  # frequencies looked at between two independent ones
SHORTEST = 2.5  # steps; what is faster is noise between two samples
FEWEST = 48  # samples of a window that is worth looking at
MAD = 1.4826  # times the median absolute deviation is the standard deviation of a normal


@dataclass(frozen=True)
class Peak:
    """A period in steps, the window (first, behind last) it was seen in, and how far it stands out (e-fold rarity)."""

    period: float
    window: tuple[int, int]
    rarity: float


def spread(values: Floats) -> float:
    """The robust standard deviation; gaps are left out.

    >>> round(spread(np.array([1.0, 2.0, 3.0, np.nan, 100.0])), 3)
    1.483
    """
    there = values[~np.isnan(values)]
    return float(MAD * np.median(np.abs(there - np.median(there)))) if len(there) else 0.0


def clipped(values: Floats, limit: float = 4.0) -> Floats:
    """With outliers drawn in to so many robust standard deviations from the median: they carry no period."""
    sigma = spread(values)
    if sigma == 0.0:
        return values
    centre = float(np.nanmedian(values))
    return np.clip(values, centre - limit * sigma, centre + limit * sigma)


def without_slow(values: Floats, period: float) -> Floats:
    """Without the mean over two periods around each step: slower cycles and drift do not count against this one.

    >>> without_slow(np.array([1.0, 3.0, 1.0, 3.0, 1.0, 3.0]), 2.0)[2:4].tolist()
    [-1.0, 1.0]
    """
    half = max(1, round(period))
    there = ~np.isnan(values)
    sums = np.concatenate(([0.0], np.cumsum(np.where(there, values, 0.0))))
    counts = np.concatenate(([0], np.cumsum(there)))
    steps = np.arange(len(values))
    begin, end = np.maximum(0, steps - half), np.minimum(len(values), steps + half)
    slow: Floats = (sums[end] - sums[begin]) / np.maximum(counts[end] - counts[begin], 1)
    return values - slow


def periodogram(values: Floats) -> tuple[Floats, Floats]:
    """Frequencies (cycles a step) and powers; of white noise a power is exponential with mean 1.

    A gap adds nothing. A straight line is taken out first, because its ends would look like a long cycle.

    >>> frequency, power = periodogram(np.sin(2 * np.pi * np.arange(200) / 20))
    >>> round(float(1 / frequency[np.argmax(power)]))
    20
    """
    level, there = _without_line(values), ~np.isnan(values)
    count = int(there.sum())
    size = _smooth_size(OVERSAMPLE * len(values))
    filled = np.where(there, level, 0.0)
    total = float((filled**2).sum())
    if count < 4 or total <= 1e-24 * max(1.0, float(np.nanmax(np.abs(values))) ** 2) * count:
        return np.zeros(0), np.zeros(0)
    power = np.abs(np.fft.rfft(filled, size)) ** 2 / total
    return np.arange(1, len(power)) / size, power[1:]


def _smooth_size(least: int) -> int:
    """A size no shorter whose Fourier transform is fast: 4, 5, 6 or 7 times a power of two (7 is fast enough)."""
    power = 1 << max(0, (least - 1).bit_length() - 3)
    return next(size for size in (power, *(times * power for times in (4, 5, 6, 7, 8))) if size >= least)


def _without_line(values: Floats) -> Floats:
    t = np.arange(len(values), dtype=float)
    there = ~np.isnan(values)
    if there.sum() < 3:
        return values - (np.nanmean(values) if there.any() else 0.0)
    x, y = t[there] - t[there].mean(), values[there]
    slope = float((x * (y - y.mean())).sum() / (x * x).sum())
    level: Floats = values - y.mean() - slope * (t - t[there].mean())
    return level


def surroundings(frequency: Floats, power: Floats) -> Floats:
    """The level of the spectrum around each frequency: what a peak must stand out of.

    From the powers within a factor 1.5 (at least eight independent ones each side).
    """
    n = len(power)
    centres = np.unique(np.geomspace(1, n, 50).astype(int)) - 1
    levels = [_usual(power, int(centre)) for centre in centres]
    floor = 1e-3 * float(power.mean()) + 1e-300  # a pure tone has nothing around it
    return np.exp(np.interp(np.log(frequency), np.log(frequency[centres]), np.log(np.maximum(levels, floor))))


def _usual(power: Floats, centre: int) -> float:
    """The mean of an exponential whose lower 30 % lie as low as those around: the upper ones may be lines."""
    reach = 8 * OVERSAMPLE
    begin, end = max(0, min(int(centre / 1.5), centre - reach)), max(int(centre * 1.5), centre + reach) + 1
    part = power[begin : end : 1 + (end - begin) // 600]  # some hundreds tell it as well as thousands
    return float(np.partition(part, int(0.3 * len(part)))[int(0.3 * len(part))]) / -math.log(0.7)


def windows(length: int) -> list[tuple[int, int]]:
    """The whole, and halves, quarters and eighths of it, each overlapping the next by half.

    >>> windows(400)
    [(0, 400), (0, 200), (100, 300), (200, 400), (0, 100), (50, 150), (100, 200), (150, 250), (200, 300), (250, 350), \
(300, 400), (0, 50), (25, 75), (50, 100), (75, 125), (100, 150), (125, 175), (150, 200), (175, 225), (200, 250), \
(225, 275), (250, 300), (275, 325), (300, 350), (325, 375), (350, 400)]
    """
    made = []
    for parts in (1, 2, 4, 8):
        width = length // parts
        if width < FEWEST:
            break
        made += [(begin, begin + width) for begin in range(0, length - width + 1, max(1, width // 2))]
    return made


def strongest(values: Floats, refused: Iterable[Peak] = ()) -> Peak | None:
    """The peak that stands out most, over all windows, and that an autocorrelation hill confirms; None where none does.

    `refused` peaks, with the same window and about the same period, are passed over.
    """
    looks = windows(len(values))
    turned_down = list(refused)
    seen = [peak for window in looks for peak in peaks(values, window, len(looks))]
    for peak in sorted(seen, key=lambda peak: -peak.rarity):
        if any(_same(peak, other) for other in turned_down):
            continue
        if hill(values[slice(*peak.window)], peak.period):
            return peak
    return None


def _same(peak: Peak, other: Peak) -> bool:
    width = min(peak.window[1] - peak.window[0], other.window[1] - other.window[0])
    return abs(1 / peak.period - 1 / other.period) < 1.0 / width


def peaks(values: Floats, window: tuple[int, int], looks: int, most: int = 4) -> list[Peak]:
    """The few highest peaks of a window that are no accident, of so many windows looked at.

    >>> [round(peak.period) for peak in peaks(np.sin(2 * np.pi * np.arange(400) / 25), (0, 400), looks=1)][:1]
    [25]
    """
    part = values[slice(*window)]
    width, whole = len(part), looks == 1 or window == (0, len(values))
    if (~np.isnan(part)).sum() < max(FEWEST // 2, 0.3 * width):
        return []
    frequency, power = periodogram(part)
    if not len(power):
        return []
    cycles = 3.5 if whole else 5.25  # fewer cannot be told from waves of a wandering level
    rarity = power / surroundings(frequency, power) - math.log(width / 2 * looks / FALSE_ALARM)
    allowed = (frequency >= cycles / width) & (frequency <= 1 / SHORTEST)
    top = (
        np.flatnonzero(allowed[1:-1] & (rarity[1:-1] > 0) & (power[1:-1] >= power[:-2]) & (power[1:-1] > power[2:])) + 1
    )
    best = top[np.argsort(-rarity[top])[:most]]
    return [Peak(_between(frequency, power, int(i)), window, float(rarity[i])) for i in best]


def _between(frequency: Floats, power: Floats, i: int) -> float:
    """The period at the top of the parabola through the peak and its neighbours."""
    a, b, c = np.log(power[i - 1 : i + 2] + 1e-300)
    bend = a - 2 * b + c
    shift = 0.5 * (a - c) / bend if bend < 0 else 0.0
    return float(1 / (frequency[i] + shift * (frequency[1] - frequency[0])))


def autocorrelation(values: Floats) -> Floats:
    """By lag, over the pairs of which neither is a gap; NaN where there is no pair.

    >>> autocorrelation(np.array([1.0, -1.0, 1.0, -1.0, np.nan, -1.0])).round(2).tolist()
    [1.0, -1.0, 0.94, -1.0, 0.67, -1.0]
    """
    level = values - np.nanmean(values)
    there = (~np.isnan(level)).astype(float)
    size = _smooth_size(2 * len(values))
    filled = np.where(there > 0, level, 0.0)
    raw = np.fft.irfft(np.abs(np.fft.rfft(filled, size)) ** 2, size)[: len(values)]
    pairs = np.round(np.fft.irfft(np.abs(np.fft.rfft(there, size)) ** 2, size)[: len(values)])
    variance = float((filled**2).sum() / there.sum())
    with np.errstate(invalid="ignore", divide="ignore"):
        found: Floats = np.where(pairs > 0, raw / pairs / variance, np.nan) if variance > 0 else raw * np.nan
    return found


def hill(values: Floats, period: float) -> bool:
    """Whether the autocorrelation rises to a hill at this lag, or at a multiple where the lag is only a few steps.

    The mean around the top (a quarter of a period) must be above that around the valleys on both sides by more than
    chance allows: two standard errors of a correlation over so many samples.
    """
    found = autocorrelation(_without_line(values))
    times = max(1, math.ceil(8 / period))  # between two steps there is no seeing
    lag = times * period
    if lag + period / 2 >= len(found):
        return False

    def around(centre: float) -> float:
        reach = period / 8
        part = found[max(0, math.ceil(centre - reach)) : math.floor(centre + reach) + 1]
        if not len(part):
            part = found[round(centre) : round(centre) + 1]
        return float(np.nanmean(part)) if (~np.isnan(part)).any() else math.nan

    top, before, behind = around(lag), around(lag - period / 2), around(lag + period / 2)
    error = 2 / math.sqrt(max(1, int((~np.isnan(values)).sum())))
    return top > before + error and top > behind + error and top > 0


def strength(season: Floats, rest: Floats, period: float, parameters: int = 0) -> float:
    """max(0, 1 − Var(rest)/Var(season + rest)), both averaged over twelfths of the period: what a cycle explains of
    the moves on its own scale. `parameters`: how many the season was fitted with, for which the rest pays.

    >>> t = np.arange(240)
    >>> round(strength(np.sin(2 * np.pi * t / 24), np.zeros(240), 24.0), 3)
    1.0
    """
    width = max(1, int(period / 12))
    there = ~np.isnan(rest) & ~np.isnan(season)
    if there.sum() < 4:
        return 0.0
    bins = np.arange(len(rest))[there] // width
    count = np.bincount(bins)
    kept = count > 0
    mean_rest = np.bincount(bins, rest[there])[kept] / count[kept]
    mean_both = np.bincount(bins, (season + rest)[there])[kept] / count[kept]
    free = len(mean_rest) - 1 - parameters
    if free < 3 or mean_both.var() == 0:
        return 0.0
    return max(0.0, 1.0 - float(mean_rest.var() * (len(mean_rest) - 1) / free / mean_both.var()))


def stands_out(values: Floats, period: float, chance: float = FALSE_ALARM) -> bool:
    """Whether one frequency, looked at alone, has more power than noise has by such a chance."""
    frequency, power = periodogram(values)
    if not len(power):
        return False
    near = int(np.argmin(np.abs(frequency - 1 / period)))
    return bool(power[near] > -math.log(chance) * surroundings(frequency, power)[near])


def power_at(values: Floats, period: float, pieces: Sequence[tuple[int, int]], harmonics: int = 2) -> float:
    """The power of a period and its harmonics, summed over pieces that need not be in step."""
    return float(_powers(values, np.array([1 / period]), pieces, harmonics)[0])


def refined(values: Floats, period: float, pieces: Sequence[tuple[int, int]], harmonics: int = 2) -> float:
    """The period at which the pieces together have most power, each at its own phase, near a first guess."""
    longest = max(stop - start for start, stop in pieces)
    base = 1 / period
    for reach in (0.75 / longest, 0.1 / longest):
        grid = base + np.linspace(-reach, reach, 21)
        total = _powers(values, grid, pieces, harmonics)
        base = float(grid[int(np.argmax(total))])
    return 1 / base


def _powers(values: Floats, frequency: Floats, pieces: Sequence[tuple[int, int]], harmonics: int) -> Floats:
    total = np.zeros(len(frequency))
    for start, stop in pieces:
        part = _without_line(values[start:stop])
        there = np.flatnonzero(~np.isnan(part))
        turn = np.exp(-2j * np.pi * np.outer(frequency, there))
        wave = np.ones_like(turn)
        for _ in range(harmonics):
            wave *= turn
            total += np.abs(wave @ part[there]) ** 2 / max(1, len(there))
    return total
