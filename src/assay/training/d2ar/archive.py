"""What was seen of a place before: pictures by date, what is clear in them, and how a season usually looks.

Needs numpy only.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
YEAR = 365


@dataclass(frozen=True)
class Archive:
    """Past observations of a place: reflectances [date, band, y, x], days since the epoch, degrees of its middle."""

    images: Floats
    days: Ints
    lat: float = 0.0
    lon: float = 0.0

    @cached_property
    def clear(self) -> NDArray[np.bool_]:
        """Pixels that are not cloud: not much brighter in the first band than usual, or cold in the last (snow)."""
        bright = self.images[:, 0] > np.median(self.images[:, 0], 0)[None] + 0.12
        warm = self.images[:, -1] > 0.16 if self.images.shape[1] > 4 else True
        return ~(bright & warm)

    @cached_property
    def _shown(self) -> tuple[Floats, Floats]:
        """Pictures without clouds (zeros there), and which pixels count; a column each."""
        clear = self.clear.astype(np.float32)
        return (self.images * clear[:, None]).reshape(len(clear), -1), clear.reshape(len(clear), -1)

    def seasonal(self, days: Any, *, others: bool = False, near: float = 18.0) -> Floats:
        """The usual picture of these days of the year: clear pixels, weighted by how near in season; no bytes needed.

        `others` leaves out the day's own year, as it will be for a day that is yet to come.
        """
        days = np.atleast_1d(np.asarray(days, np.int64))
        apart = np.abs((days[:, None] - self.days[None]) % YEAR)
        weight = np.exp(-0.5 * (np.minimum(apart, YEAR - apart) / near) ** 2) + 1e-4
        if others:
            same = days[:, None] // YEAR == self.days[None] // YEAR
            weight = np.where(same & (~same).any(1, keepdims=True), 0.0, weight)
        weight = (weight / weight.sum(1, keepdims=True)).astype(np.float32)
        shown, clear = self._shown
        bands, height, width = self.images.shape[1:]
        total = (weight @ clear).reshape(-1, 1, height, width)
        mean = (weight @ shown).reshape(-1, bands, height, width) / np.maximum(total, 1e-6)
        if total.min() > 1e-5:
            return np.asarray(mean)
        plain = np.tensordot(weight, self.images, 1)  # where it was never clear
        return np.where(total > 1e-5, mean, plain)

    def last(self, day: int, *, within: int = 30) -> Floats:
        """The newest picture from the same season, as it was taken."""
        apart = np.abs((day - self.days) % YEAR)
        near = np.minimum(apart, YEAR - apart)
        fit = near <= max(within, near.min())
        return np.asarray(self.images[np.flatnonzero(fit)[np.argmax(self.days[fit])]])


def tiles(images: Any, size: int) -> Any:
    """[n, band, y, x] as [n, tile, band, size, size], row by row."""
    n, bands, height, width = images.shape
    cut = images.reshape(n, bands, height // size, size, width // size, size)
    return cut.transpose(0, 2, 4, 1, 3, 5).reshape(n, -1, bands, size, size)


def whole(cut: Any, down: int) -> Any:
    """Tiles of one scene, laid together again."""
    count, bands, size, _ = cut.shape
    return cut.reshape(down, count // down, bands, size, size).transpose(2, 0, 3, 1, 4).reshape(bands, down * size, -1)
