"""One cycle: its period, its shape, and the stretches of time in which it runs.

A shape is a weighted mean over phases, cut to as many harmonics as pay for themselves (Bayesian information), and has
mean zero. When a cycle runs is found by change points of its amplitude, measured two cycles at a time; a stretch
counts where the cycle explains enough of it. Stretches share one shape if they are in step; one that runs out of step
has a shape of its own.

>>> t = np.arange(960)
>>> wave = np.where(t < 480, np.sin(2 * np.pi * t / 24), 0.0) + 0.05 * np.cos(t * t)
>>> cycle = Cycle.found(wave, 24.0)
>>> [(piece.start, piece.stop) for piece in cycle.pieces]
[(0, 480)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from assay.observe.series import seasons
from assay.sim import changepoints

Floats = NDArray[np.float64]
ACTIVE = 0.3  # the least strength of a stretch in which a cycle is said to run
MOST_PHASES = 336  # an hour of two weeks
IN_STEP = 0.75  # correlation of two stretches' shapes that are one shape
SHAPES = {"smooth": 3, "free": MOST_PHASES // 2}  # the most harmonics


@dataclass(frozen=True)
class Profile:
    """The values of one cycle over its phases, and how many harmonics they are made of."""

    values: Floats
    harmonics: int

    def at(self, phase: Floats) -> Floats:
        """The value at phases, in cycles.

        >>> Profile(np.array([0.0, 1.0, 0.0, -1.0]), 1).at(np.array([0.25, 1.25, 0.125])).tolist()
        [1.0, 1.0, 0.5]
        """
        size = len(self.values)
        closed = np.append(self.values, self.values[0])
        return np.asarray(np.interp(phase % 1.0 * size, np.arange(size + 1), closed))


def profile(values: Floats, weights: Floats, phase: Floats, phases: int, most: int) -> Profile:
    """The shape that fits values at phases best for what it costs; gaps have weight 0."""
    phases = max(4, min(phases, int((weights > 0).sum() // 2)))
    bins = np.round(phase % 1.0 * phases).astype(np.int64) % phases
    filled = np.where(weights > 0, values, 0.0)
    mass = np.bincount(bins, weights, phases)
    seen = mass > 0
    if seen.sum() < 3:
        return Profile(np.zeros(4), 0)
    mean = np.zeros(phases)
    mean[seen] = np.bincount(bins, weights * filled, phases)[seen] / mass[seen]
    if not seen.all():
        places = np.arange(phases)
        mean = np.interp(places, places[seen], mean[seen], period=phases)
    rest = (filled - mean[bins])[weights > 0]
    kept = _harmonics(np.fft.rfft(mean), rest, phases, min(most, phases // 2))
    size = max(4 * phases, 64)
    # A shape is drawn finer than it was measured, so that a line between two of its points is the curve itself.
    wave = np.zeros(size // 2 + 1, dtype=complex)
    wave[: len(kept)] = kept * (size / phases)
    return Profile(np.fft.irfft(wave, size), len(kept) - 1)


def _harmonics(wave: NDArray[np.complex128], rest: Floats, phases: int, most: int) -> NDArray[np.complex128]:
    """The first harmonics, as many as pay for themselves; no mean."""
    count = len(rest)
    power = 2 * np.abs(wave[1:] / phases) ** 2
    if phases % 2 == 0:
        power[-1] /= 2
    together = float(power.sum())
    left = float((rest**2).mean()) + together - np.concatenate(([0.0], np.cumsum(power[:most])))
    left = np.maximum(left, 1e-12 * (together + 1e-300))
    alike = float(np.corrcoef(rest[:-1], rest[1:])[0, 1]) if count > 3 and rest.std() > 0 else 0.0
    alike = min(max(0.0, alike), 0.98)
    independent = max(4.0, count * (1 - alike) / (1 + alike))
    cost = independent * np.log(left) + 2 * np.arange(most + 1) * math.log(independent)
    best = max(1, int(np.argmin(cost)))
    chosen = wave[: best + 1].copy()
    chosen[0] = 0.0
    if phases % 2 == 0 and best == phases // 2:
        chosen[-1] /= 2  # the finer grid counts it twice
    return chosen


@dataclass(frozen=True)
class Piece:
    """A stretch (first step, behind the last) in which a cycle runs, its shape there, and how strong it is."""

    start: int
    stop: int
    profile: Profile
    strength: float


@dataclass(frozen=True)
class Cycle:
    """A period in steps, and where it runs. `most` bounds the harmonics of its shape."""

    period: float
    pieces: tuple[Piece, ...]
    most: int = SHAPES["free"]

    @classmethod
    def found(cls, values: Floats, period: float, *, most: int = SHAPES["free"]) -> Cycle:
        """Where a cycle of this period runs; it may be nowhere. What moves more slowly is taken out first."""
        values = seasons.without_slow(values, period)
        cuts = [0, *_changes(values, period), len(values)]
        judged = [_judge(values, period, a, b, most) for a, b in pairwise(cuts)]
        active = [piece for piece in judged if piece.strength >= ACTIVE]
        return cls(period, _joined(values, period, active, most), most)

    @classmethod
    def stated(cls, values: Floats, period: float, spans: Sequence[tuple[int, int]], most: int) -> Cycle:
        """A cycle whose stretches somebody says."""
        pieces = tuple(_judge(values, period, start, stop, most) for start, stop in spans)
        return cls(period, _joined(values, period, pieces, most), most)

    @property
    def strength(self) -> float:
        """The mean over its stretches, by their length."""
        lengths = [piece.stop - piece.start for piece in self.pieces]
        if not sum(lengths):
            return 0.0
        return sum(p.strength * n for p, n in zip(self.pieces, lengths, strict=True)) / sum(lengths)

    def values(self, length: int) -> Floats:
        """Its part of a series of so many steps: zero where it does not run."""
        made = np.zeros(length)
        for piece in self.pieces:
            steps = np.arange(piece.start, min(piece.stop, length))
            made[piece.start : piece.stop] = piece.profile.at(steps / self.period)
        return made

    def refit(self, partial: Floats, weights: Floats) -> Cycle:
        """The same stretches with shapes fitted anew to what all other parts leave over."""
        shared: dict[int, list[Piece]] = {}
        for piece in self.pieces:
            shared.setdefault(id(piece.profile), []).append(piece)
        made = []
        for pieces in shared.values():
            shape = _shape(partial, weights, self.period, [(p.start, p.stop) for p in pieces], self.most)
            made += [replace(piece, profile=shape) for piece in pieces]
        return replace(self, pieces=tuple(sorted(made, key=lambda piece: piece.start)))

    def judged(self, rest: Floats) -> Cycle:
        """With the strengths that remain beside this rest."""
        season = self.values(len(rest))
        pieces = [
            replace(p, strength=seasons.strength(
                season[p.start : p.stop], rest[p.start : p.stop], self.period, 2 * p.profile.harmonics
            ))
            for p in self.pieces
        ]  # fmt: skip
        return replace(self, pieces=tuple(pieces))


def _shape(values: Floats, weights: Floats, period: float, spans: Sequence[tuple[int, int]], most: int) -> Profile:
    steps = np.concatenate([np.arange(start, stop) for start, stop in spans])
    phases = min(MOST_PHASES, max(4, round(period)))
    return profile(values[steps], weights[steps], steps / period, phases, most)


def _judge(values: Floats, period: float, start: int, stop: int, most: int) -> Piece:
    there = (~np.isnan(values)).astype(float)
    shape = _shape(values, there, period, [(start, stop)], most)
    season = shape.at(np.arange(start, stop) / period)
    rest = values[start:stop] - season
    found = seasons.strength(season, rest, period, 2 * shape.harmonics) if stop - start >= 2 * period else 0.0
    return Piece(start, stop, shape, found)


def _changes(values: Floats, period: float) -> list[int]:
    """Where the amplitude of the cycle changes: change points of its size, two cycles (or eight steps) at a time."""
    width = max(math.ceil(2 * period), 8)
    blocks = len(values) // width
    if blocks < 6:
        return []
    part = values[: blocks * width].reshape(blocks, width)
    there = ~np.isnan(part)
    count = there.sum(axis=1)
    mean = np.where(there, part, 0.0).sum(axis=1) / np.maximum(count, 1)
    level = np.where(there, part - mean[:, None], 0.0)
    steps = np.arange(blocks * width).reshape(blocks, width)
    size = np.zeros(blocks)
    for harmonic in (1, 2):
        if harmonic / period > 0.5:
            break
        wave = (level * np.exp(-2j * np.pi * harmonic * steps / period)).sum(axis=1)
        size += np.abs(2 * wave / np.maximum(count, 1)) ** 2
    usable = np.flatnonzero(count >= max(4, width // 3))
    if len(usable) < 6:
        return []
    amplitude = seasons.clipped(np.sqrt(size[usable]), 6.0)
    return [int(usable[cut]) * width for cut in changepoints.pelt(amplitude, min_size=2)]


def _joined(values: Floats, period: float, pieces: Sequence[Piece], most: int) -> tuple[Piece, ...]:
    """Touching stretches in step become one; all that are in step with the longest share its shape."""
    merged: list[Piece] = []
    for piece in pieces:
        if merged and merged[-1].stop == piece.start and _alike(merged[-1].profile, piece.profile):
            merged[-1] = _judge(values, period, merged[-1].start, piece.stop, most)
        else:
            merged.append(piece)
    if not merged:
        return ()
    main = max(merged, key=lambda piece: piece.stop - piece.start)
    together = [piece for piece in merged if _alike(main.profile, piece.profile)]
    there = (~np.isnan(values)).astype(float)
    shape = _shape(values, there, period, [(p.start, p.stop) for p in together or [main]], most)
    ours = {id(piece) for piece in together}
    return tuple(replace(piece, profile=shape) if id(piece) in ours else piece for piece in merged)


def _alike(one: Profile, other: Profile) -> bool:
    """In step and of a like size: else one shape would be wrong for both."""
    phase = np.arange(64) / 64
    a, b = one.at(phase), other.at(phase)
    sizes = float(np.sqrt((a**2).mean())), float(np.sqrt((b**2).mean()))
    if min(sizes) == 0.0:
        return False
    return float((a * b).mean()) / (sizes[0] * sizes[1]) > IN_STEP and max(sizes) < 2 * min(sizes)
