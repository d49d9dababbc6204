"""Operation times of a model that was never profiled, from another model's on the same device.

A matrix product is cut into tiles that the multiprocessors of a GPU work off in waves: its time follows the number of
waves, not the FLOPs, until the weights' way through memory is slower. That much physics with a handful of constants
(time per tile of each size, bandwidth, launch), fitted to the matrices of one model, carries over to matrices of other
sizes. What streams through memory (norms, activations, rotary embedding) is a monotone function of how much it streams.

>>> m, n, k = (np.array(x, float) for x in ([1, 256, 4096], [4096] * 3, [4096] * 3))
>>> flat = Gemm.start(108)
>>> bool(np.all(np.diff(flat.seconds(m, n, k)) > 0))
True
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import least_squares

from assay.sim.profile_db import Curve, monotone

Array = NDArray[np.float64]

TILES = np.array([(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (32, 64), (64, 32), (256, 64),
                  (64, 256)], float)  # fmt: skip
UNIT = 128.0 * 128.0  # products of a tile that its constant is given for
SHARP = 20.0  # how sharply the fastest tile is chosen, and
CORNER = 8.0  # how sharply arithmetic gives way to memory
POINTS = 400  # samples a fit looks at


@dataclass(frozen=True)
class Gemm:
    """The time of an m×k by k×n product on a device with `processors` multiprocessors.

    `logs`: per tile the seconds of a 128×128 tile's step in k, then launch, bytes per second, steps of start-up,
    and how much of a partly filled wave is paid (a logit), all but the last as logarithms.
    """

    processors: int
    logs: Array
    item: float = 2.0

    @classmethod
    def start(cls, processors: int, flops: float = 2e14, bandwidth: float = 1.5e12) -> Gemm:
        """Where a fit begins, given the best rates seen: small tiles cost more per product."""
        tile = np.log(1.2 * 2 * UNIT * processors / flops) + 0.15 * np.clip(UNIT / TILES.prod(1) - 1, -0.5, 3)
        return cls(processors, np.array([*tile, np.log(3e-6), np.log(bandwidth), np.log(64.0), 0.0]))

    def seconds(self, m: ArrayLike, n: ArrayLike, k: ArrayLike) -> Array:
        """The time of each product."""
        rows, columns, depth = np.broadcast_arrays(*(np.asarray(x, float) for x in (m, n, k)))
        count = len(TILES)
        each, (launch, bandwidth, lead) = np.exp(self.logs[:count]), np.exp(self.logs[count : count + 3])
        paid = 1 / (1 + np.exp(-self.logs[count + 3]))
        tiles = np.ceil(rows[..., None] / TILES[:, 0]) * np.ceil(columns[..., None] / TILES[:, 1]) / self.processors
        waves = paid * np.ceil(tiles) + (1 - paid) * np.maximum(tiles, 1)
        logs = np.log(each * waves * (depth + lead)[..., None] * TILES.prod(1) / UNIT)
        least = logs.min(-1)
        arithmetic = np.exp(least - np.log(np.exp(-SHARP * (logs - least[..., None])).sum(-1)) / SHARP)
        memory = (columns * depth + rows * depth + rows * columns) * self.item / bandwidth
        return np.asarray((arithmetic**CORNER + memory**CORNER) ** (1 / CORNER) + launch)


def fit_gemm(m: Array, n: Array, k: Array, seconds: Array, processors: int) -> Gemm:
    """Fit the constants to measured products, robustly and in relative error."""
    order = np.lexsort((m, k, n))
    chosen = order[:: max(1, len(order) // POINTS)]
    start = Gemm.start(processors, float(np.max(2 * m * n * k / seconds)), float(np.max(2 * n * k / seconds)))
    target = np.log(seconds[chosen])

    def error(logs: Array) -> Array:
        return np.log(Gemm(processors, logs).seconds(m[chosen], n[chosen], k[chosen])) - target

    found = least_squares(error, start.logs, loss="soft_l1", f_scale=0.05, max_nfev=40)
    return Gemm(processors, found.x)


def fit_stream(volume: Array, seconds: Array) -> Curve:
    """The time of what streams `volume` elements, from measurements."""
    return monotone([float(v) for v in volume], [float(s) for s in seconds])
