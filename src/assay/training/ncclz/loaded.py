"""Imported in the process that ranks are forked from: compiled code is loaded there, once.

A rank that loads it itself spends two seconds on that, and a study starts ten.
"""

from __future__ import annotations

import numpy as np

from assay.training.ncclz import coders, floats, quantise


def load() -> None:
    """Run every compiled function once."""
    x = np.sin(np.arange(1 << 12, dtype=np.float32) / 50)
    x[0] = np.inf  # an outlier
    on, out = quantise.grid(1e-3, 1.0), np.empty_like(x)
    for predict in (False, True):
        symbols = quantise.quantised(x, on, predict)
        for coder in range(3):
            quantise.restored(coders.decode(coders.encode(symbols, coder)), on.step, predict, out)
    floats.decompress(floats.compress(x, 1e-3))
    scale = quantise.scales(x[1:])
    quantise.unlevelled(quantise.levelled(x[1:], 0, scale, 127, 1), 0, scale, 127, out[1:])


load()
