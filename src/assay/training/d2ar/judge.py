"""What a decoded scene is worth: pixels, structure, land cover, an index, and whether new things are still there.

Needs numpy and torch only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Floats = NDArray[np.float32]
RANGE = 0.5  # of reflectances, for SSIM's constants
ROOF = np.array([0.26, 0.27, 0.28, 0.30, 0.33, 0.29], np.float32)  # of a new hall
SIDE, COUNT = 8, 6  # pixels of a new hall's side; halls in a scene
ALARMS = 0.05  # of places without a new hall that may raise an alarm


def psnr(image: Floats, truth: Floats) -> float:
    """Decibels, against a reflectance of 1.

    >>> round(psnr(np.zeros((1, 2, 2)), np.full((1, 2, 2), 0.1)), 6)
    20.0
    """
    return float(-10 * np.log10(max(float(np.mean((image - truth) ** 2)), 1e-12)))


def ssim(image: Floats, truth: Floats) -> float:
    """Structural similarity in windows of 7 x 7, a mean over bands and places; 1 is the same picture."""
    a, b = (torch.from_numpy(np.asarray(one, np.float64))[:, None] for one in (image, truth))
    mean = lambda x: functional.avg_pool2d(x, 7, 1)  # noqa: E731
    ma, mb = mean(a), mean(b)
    va, vb, both = mean(a * a) - ma**2, mean(b * b) - mb**2, mean(a * b) - ma * mb
    low, high = (0.01 * RANGE) ** 2, (0.03 * RANGE) ** 2
    found = (2 * ma * mb + low) * (2 * both + high) / ((ma**2 + mb**2 + low) * (va + vb + high))
    return float(found.mean())


@dataclass(frozen=True)
class LandCover:
    """A Gaussian for the spectra of every class: fitted to the archive as it was taken, asked of what was decoded."""

    means: Floats
    inverse: Floats
    offset: Floats
    classes: NDArray[np.int64]

    def of(self, image: Floats) -> NDArray[np.int64]:
        """The class of every pixel."""
        flat = np.ascontiguousarray(np.moveaxis(image, 0, -1))
        scores = []
        for mean, inverse, offset in zip(self.means, self.inverse, self.offset, strict=True):
            off = flat - mean
            scores.append(offset - 0.5 * ((off @ inverse) * off).sum(-1))
        return np.asarray(self.classes[np.argmax(np.stack(scores), 0)])


def learn_cover(images: Floats, labels: Any, every: int = 11) -> LandCover:
    """Fit to some of the archive's pixels."""
    flat = np.moveaxis(images, 1, -1).reshape(-1, images.shape[1])[::every]
    label = np.asarray(labels).reshape(-1)[::every]
    means, inverses, offsets, classes = [], [], [], []
    for one in np.unique(label):
        mine = flat[label == one].astype(np.float64)
        if len(mine) < 30:
            continue
        cov = np.cov(mine.T) + 2e-5 * np.eye(flat.shape[1])
        means.append(mine.mean(0))
        inverses.append(np.linalg.inv(cov))
        offsets.append(np.log(len(mine) / len(flat)) - 0.5 * np.linalg.slogdet(cov)[1])
        classes.append(int(one))
    lists = [np.asarray(x, np.float32) for x in (means, inverses, offsets)]
    return LandCover(lists[0], lists[1], lists[2], np.asarray(classes, np.int64))


def built(image: Floats, labels: Any, town: int, avoid: tuple[int, ...], seed: int) -> tuple[Floats, Any, list[Any]]:
    """New halls in a scene: the picture with them, the labels with them, and their corners."""
    draw, image, labels = np.random.default_rng((seed, 21)), image.copy(), labels.copy()
    height, width = labels.shape
    corners: list[Any] = []
    for _ in range(400):
        y, x = (int(draw.integers(SIDE, side - 2 * SIDE)) for side in (height, width))
        box = np.s_[y : y + SIDE, x : x + SIDE]
        near = any(abs(y - b) < 3 * SIDE and abs(x - a) < 3 * SIDE for b, a in corners)
        if near or np.isin(labels[box], (town, *avoid)).any():
            continue
        image[(slice(None), *box)] = ROOF[:, None, None] * draw.uniform(0.9, 1.1) + draw.normal(
            0, 0.004, (6, SIDE, SIDE)
        )
        labels[box] = town
        corners.append((y, x))
        if len(corners) == COUNT:
            break
    return image, labels, corners


def missed(decoded: Floats, season: Floats, corners: list[Any], seed: int) -> float:
    """The share of new halls that a detector of local change does not find where it raises few false alarms.

    A place's score is how far its mean difference from the season is from that of its surroundings.
    """
    off = np.pad((decoded - season).cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0)))

    def mean(y: Any, x: Any, side: int) -> Any:
        total = off[:, y + side, x + side] - off[:, y, x + side] - off[:, y + side, x] + off[:, y, x]
        return total / side**2

    def score(y: Any, x: Any) -> Any:
        pad = SIDE // 2
        inner, outer = mean(y, x, SIDE), mean(y - pad, x - pad, SIDE + 2 * pad)
        return np.sqrt(((inner - outer) ** 2).mean(0))

    draw = np.random.default_rng((seed, 22))
    ys, xs = (draw.integers(SIDE, side - 2 * SIDE, 600) for side in decoded.shape[1:])
    far = np.ones(600, bool)
    for y, x in corners:
        far &= (np.abs(ys - y) > 2 * SIDE) | (np.abs(xs - x) > 2 * SIDE)
    alarm = np.quantile(score(ys[far], xs[far]), 1 - ALARMS)
    found = score(*(np.array(axis) for axis in zip(*corners, strict=True)))
    return float(np.mean(found <= max(alarm, 1e-6)))


def greenness(image: Floats) -> Floats:
    """NDVI, of bands in Sentinel-2's order."""
    return np.asarray((image[3] - image[2]) / np.maximum(image[3] + image[2], 0.02), np.float32)
