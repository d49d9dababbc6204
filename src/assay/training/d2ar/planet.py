"""A synthetic planet: what a multispectral satellite sees of a region, year after year.

Land cover stands still, the rest moves as it does outside: leaves by a double logistic whose onset shifts with the year
and with height, fields whose crop rotates and whose harvest date differs, soil darker when wet, snow where it is cold,
slopes lit by the sun of that day, haze in the blue, clouds and their shadows, a sensor's noise. Reflectances of classes
are those usual for the six bands of Sentinel-2 that have them at 10 or 20 m (B2, B3, B4, B8, B11, B12).

Needs numpy only, so that a machine without the rest of assay can make the same planet.

>>> region = Region(size=64, seed=3)
>>> seen = region.observe([100, 465])
>>> seen.images.shape, seen.labels.shape, seen.images.dtype
((2, 6, 64, 64), (2, 64, 64), dtype('uint16'))
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
BANDS = ("B2", "B3", "B4", "B8", "B11", "B12")
SCALE = 10_000  # digital numbers of a reflectance of 1, as Sentinel-2 has them
YEAR = 365
WATER, CONIFER, DECIDUOUS, GRASS, CROP, TOWN, ROCK = range(7)
LABELS = ("water", "conifer", "deciduous", "grass", "crop", "town", "rock", "soil", "snow", "cloud")
SOIL, SNOW, CLOUD = 7, 8, 9

_BARE = np.array([  # without leaves
    [.060, .050, .030, .020, .010, .008], [.020, .038, .022, .230, .105, .050], [.045, .060, .070, .170, .190, .130],
    [.060, .085, .095, .230, .260, .180], [.095, .125, .160, .240, .310, .265], [.125, .140, .155, .195, .215, .195],
    [.160, .190, .225, .275, .340, .310],
], np.float32)  # fmt: skip
_LEAF = np.array([  # in full leaf
    [.060, .050, .030, .020, .010, .008], [.018, .035, .018, .265, .105, .045], [.022, .048, .024, .400, .170, .075],
    [.035, .070, .045, .360, .220, .110], [.028, .065, .030, .460, .190, .085], [.120, .137, .150, .210, .215, .190],
    [.155, .188, .220, .285, .335, .305],
], np.float32)  # fmt: skip
_SNOW = np.array([0.88, 0.88, 0.86, 0.78, 0.11, 0.09], np.float32)
_CLOUD = np.array([0.62, 0.60, 0.60, 0.62, 0.40, 0.30], np.float32)
_HAZE = np.array([0.030, 0.019, 0.011, 0.004, 0.001, 0.0], np.float32)
# Days on which leaves come and go, and over how many days each; crops: winter cereal, maize, rape.
_SEASON = {CONIFER: (110, 300, 20, 25), DECIDUOUS: (118, 290, 8, 11), GRASS: (85, 285, 14, 20),
           TOWN: (100, 290, 20, 20), ROCK: (140, 260, 15, 15)}  # fmt: skip
_CROPS = np.array([(75, 195, 14, 5), (152, 262, 10, 6), (68, 178, 12, 5)], np.float32)


@dataclass(frozen=True)
class Seen:
    """Observations of a region: digital numbers [date, band, y, x], days since the epoch, and what is really there."""

    images: NDArray[np.uint16]
    days: NDArray[np.int64]
    labels: NDArray[np.uint8]


def smooth(random: np.random.Generator, size: int, power: float, shortest: float = 0.0) -> Floats:
    """A random field on a torus of mean 0 and spread 1, its amplitude falling with this power of the frequency."""
    row = np.fft.fftfreq(size)[:, None]
    column = np.fft.rfftfreq(size)[None, :]
    rate = np.hypot(row, column)
    rate[0, 0] = 1.0
    amplitude = rate ** (-power) * np.exp(-((rate * shortest) ** 2))
    amplitude[0, 0] = 0.0
    found = np.fft.irfft2(np.fft.rfft2(random.standard_normal((size, size))) * amplitude, s=(size, size))
    return np.asarray((found - found.mean()) / found.std(), np.float32)


def _ramp(day: Any, on: Any, off: Any, rise: Any, fall: Any) -> Any:
    return 1 / (1 + np.exp(-(day - on) / rise)) - 1 / (1 + np.exp(-(day - off) / fall))


def _parcels(random: np.random.Generator, size: int, pitch: int = 11) -> NDArray[np.int64]:
    """Fields: cells of points thrown one into each square of a grid."""
    cells = -(-size // pitch)
    points = random.random((cells + 2, cells + 2, 2))
    y, x = np.mgrid[:size, :size] / pitch
    near, owner = np.full((size, size), np.inf), np.zeros((size, size), np.int64)
    for i in (-1, 0, 1):
        for j in (-1, 0, 1):
            r, c = y.astype(int) + i, x.astype(int) + j
            at = points[r + 1, c + 1]
            # Fields are longer than wide.
            apart = (1.7 * (r + at[..., 0] - y)) ** 2 + (c + at[..., 1] - x) ** 2
            closer = apart < near
            near[closer], owner[closer] = apart[closer], ((r + 1) * (cells + 2) + c + 1)[closer]
    return np.unique(owner, return_inverse=True)[1].reshape(size, size)


@dataclass(frozen=True)
class Region:
    """A square of the planet. The same seed gives the same land; `weather` gives other days over it."""

    size: int = 256
    seed: int = 0
    lat: float = 48.0
    lon: float = 11.0
    weather: int = 0
    land: dict[str, Any] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        random = np.random.default_rng((self.seed, 1))
        size = self.size
        height = 450 + 260 * smooth(random, size, 2.0, 4.0)
        moist = smooth(random, size, 1.6, 3.0)
        built = smooth(random, size, 1.2, 2.0)
        rank = np.argsort(np.argsort(height.ravel())).reshape(size, size) / size**2
        cover = np.full((size, size), GRASS)
        cover[(rank < 0.65) & (moist < 0.6)] = CROP
        cover[moist > 0.6] = DECIDUOUS
        cover[(moist > 0.1) & (rank > 0.6)] = CONIFER
        cover[(built > 1.55) & (rank < 0.7)] = TOWN
        cover[rank > 0.95] = ROCK
        cover[rank < 0.07] = WATER
        fields = _parcels(random, size)
        count = int(fields.max()) + 1
        slopes = np.gradient(height, 40.0)  # metres a pixel: coarse, so that slopes stay gentle
        land = {
            "cover": cover, "height": height, "fields": fields, "first": random.integers(0, 3, count),
            "texture": 1 + 0.05 * smooth(random, size, 0.3)[None] + 0.04 * smooth(random, size, 0.8)[None],
            "slopes": slopes, "count": count,
        }  # fmt: skip
        object.__setattr__(self, "land", land)

    def observe(self, days: Any) -> Seen:
        """What the satellite sees on these days (0 is the first of January of the first year)."""
        days = np.asarray(days, np.int64)
        found = [self._day(int(day)) for day in days]
        images = np.stack([one for one, _ in found])
        dn = np.clip(np.rint(images * SCALE), 0, 2**16 - 1).astype(np.uint16)
        return Seen(dn, days, np.stack([label for _, label in found]).astype(np.uint8))

    def _leaves(self, year: int, day: int) -> Any:
        """The share of full leaf of every pixel: rotation, onset and harvest by year."""
        land, random = self.land, np.random.default_rng((self.seed, self.weather, 2, year))
        onset = random.normal(0, 9)  # an early or a late year
        delay = onset + (land["height"] - 450) * 0.02  # days by metre: spring climbs
        leaf = np.zeros(land["cover"].shape, np.float32)
        for cover, (on, off, rise, fall) in _SEASON.items():
            leaf = np.where(land["cover"] == cover, _ramp(day, on + delay, off, rise, fall), leaf)
        swapped = random.random(land["count"]) < 0.2  # farmers who do not follow the rotation
        kind = (land["first"] + year + swapped * random.integers(1, 3, land["count"])) % 3
        on, off, rise, fall = _CROPS[kind].T
        late = random.normal(0, 5, land["count"])
        green = _ramp(day, on + late + onset, off + late + 0.5 * onset, rise, fall)
        vigour = random.uniform(0.75, 1.0, land["count"])
        return np.where(land["cover"] == CROP, (green * vigour)[land["fields"]], leaf)

    def _day(self, when: int) -> tuple[Floats, Any]:
        land, (year, day) = self.land, divmod(when, YEAR)
        random = np.random.default_rng((self.seed, self.weather, 3, when))
        cover = land["cover"]
        leaf = np.clip(self._leaves(year, day), 0, 1)[None]
        wet = np.clip(0.5 + 0.35 * random.normal() + 0.2 * smooth(random, self.size, 1.8, 6.0), 0, 1)
        bare = np.moveaxis(_BARE[cover], -1, 0) * (1 - 0.35 * wet * (cover != WATER))[None]
        image = (leaf * np.moveaxis(_LEAF[cover], -1, 0) + (1 - leaf) * bare) * land["texture"]
        degrees = 10.5 - 9.0 * np.cos(2 * np.pi * (day - 20) / YEAR) + random.normal(0, 2.5)
        cold = degrees - 0.0065 * (land["height"] - 450)
        snow = (1 / (1 + np.exp((cold + 1.0) / 0.6)) * (cover != WATER)).astype(np.float32)
        snow *= np.where((cover == CONIFER) | (cover == DECIDUOUS), 0.5, 1.0)  # crowns hide it
        image = (1 - snow) * image + snow * _SNOW[:, None, None]
        image = self._lit(image, day) + random.gamma(2.0, 0.5) * _HAZE[:, None, None]
        image, cloud = self._clouded(image, random)
        image += random.normal(0, 0.002, image.shape)
        label = np.where((cover == CROP) & (leaf[0] < 0.4), SOIL, cover)
        label = np.where(snow > 0.45, SNOW, label)
        return image.astype(np.float32), np.where(cloud > 0.5, CLOUD, label)

    def _lit(self, image: Any, day: int) -> Any:
        """Slopes by the sun at half past ten; what is left after a correction that is not perfect."""
        tilt = np.radians(23.44) * np.sin(2 * np.pi * (day - 81) / YEAR)
        lat, hour = np.radians(self.lat), np.radians(-22.5)
        up = np.sin(lat) * np.sin(tilt) + np.cos(lat) * np.cos(tilt) * np.cos(hour)
        flat, toward = np.sqrt(1 - up**2), np.radians(152.0)
        north, east = self.land["slopes"]
        facing = up - flat * (east * np.sin(toward) - north * np.cos(toward))
        light = np.clip(facing / np.sqrt(1 + north**2 + east**2) / up, 0.3, 1.8)
        return image * (1 + 0.6 * (light - 1))

    def _clouded(self, image: Any, random: np.random.Generator) -> tuple[Any, Any]:
        """Half of the days are clear; the others have up to a tenth of clouds, with shadows."""
        share = random.uniform(0.01, 0.1) if random.random() < 0.5 else 0.0
        lumps = smooth(random, self.size, 1.7, 2.0)
        if not share:
            return image, np.zeros(lumps.shape)
        edge = np.quantile(lumps, 1 - share)
        cloud = np.clip((lumps - edge) / 0.25 + 0.5, 0, 1)
        shade = np.roll(cloud, (7, -4), (0, 1))
        image = image * (1 - 0.55 * shade)[None]
        return (1 - cloud) * image + cloud * (_CLOUD * random.uniform(0.8, 1.15))[:, None, None], cloud
