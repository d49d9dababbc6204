"""One array of floats as bytes, every number within eps of what it was: quantised, predicted, coded.

What travels without being summed uses this, and what earlier libraries do at every hop of a sum.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.ncclz import arbiter, coders, quantise

Floats = quantise.Floats
Bytes = NDArray[np.uint8]
# Bytes: how many numbers, bytes of outliers (-1: the numbers themselves follow), whether they are predicted and (twice)
# float64, the step
HEAD = 32
SLOW = arbiter.Arbiter(1.0, arbiter.Speeds(0.0, 0.0, 0.0, 0.0))  # a link on which only bytes count


def compress(x: Any, eps: float | None, coder: Any = None) -> Bytes:
    """Bytes of which :func:`decompress` makes numbers within eps; NaN, infinities and what eps is too small for stay.

    >>> x = np.array([1, 1.5, np.nan, -np.inf, 3e38, 1e-42], np.float32)
    >>> decompress(compress(x, eps=0.01)).tolist()[:4]
    [1.0..., 1.5..., nan, -inf]
    >>> x = np.sin(np.arange(100_000) / 1000).astype(np.float32)
    >>> x.nbytes > 20 * len(compress(x, eps=1e-3))
    True

    Raises:
        ValueError: eps is no positive number, or these are no floats of 16 to 64 bits.
    """
    x = quantise.flat(x)
    if eps is not None:
        if not 0 < eps < np.inf:
            raise ValueError(f"eps is {eps}, should be a positive number")
        peak, exempt = quantise.surveyed(x, eps)
        if exempt * 8 <= len(x):
            return _coded(x, quantise.grid(eps, peak, x.itemsize), coder, exempt)
    head = np.array([len(x), -1, 2 * (x.itemsize == 8), 0], np.int64)
    return np.concatenate([head.view(np.uint8), x.view(np.uint8)])


def _coded(x: Floats, on: quantise.Grid, coder: Any, exempt: int) -> Bytes:
    codes = quantise.quantised(x, on, predict=False)
    predict = len(x) > 1 and arbiter.estimate(differences := quantise.differences(codes)).min() < (
        arbiter.estimate(codes).min()
    )
    symbols = differences if predict else codes
    frame = coder.encode(symbols) if coder else coders.encode(symbols, SLOW.choose(symbols))
    apart = quantise.outliers(x, on.most) if exempt else np.empty(0, np.uint8)
    head = np.array([len(x), len(apart), int(predict) + 2 * (x.itemsize == 8), 0], np.int64)
    head[3:].view(np.float64)[0] = on.step
    pad = np.zeros(-len(apart) % 8, np.uint8)
    return np.concatenate([head.view(np.uint8), apart, pad, frame])


def decompress(message: Bytes) -> Floats:
    """The numbers, in an array of one's own.

    Raises:
        Corrupt: these bytes were not made by :func:`compress`.
    """
    if len(message) < HEAD:
        raise coders.Corrupt(f"{len(message)} bytes hold no numbers")
    head = message[:HEAD].view(np.int64)
    count, apart, how, step = int(head[0]), int(head[1]), int(head[2]), float(head[3:].view(np.float64)[0])
    if how not in range(4):
        raise coders.Corrupt(f"numbers are coded by way {how}, of which there are four")
    kind = np.dtype(np.float64 if how & 2 else np.float32)
    if apart == -1:
        if len(message) != HEAD + kind.itemsize * count:
            raise coders.Corrupt(f"{count} numbers have {HEAD + kind.itemsize * count} bytes, not {len(message)}")
        return message[HEAD:].view(kind).copy()
    start = HEAD + apart + -apart % 8
    if apart < 0 or apart % quantise.OUTLIERS[kind.itemsize].itemsize or start > len(message):
        raise coders.Corrupt("the outliers are not where they should be")
    codes = coders.decode(message[start:])
    if len(codes) != count:
        raise coders.Corrupt(f"{len(codes)} numbers, the head says {count}")
    out = np.empty(count, kind)
    quantise.restored(codes, step, bool(how & 1), out)
    if apart:
        try:
            quantise.put_outliers(message[HEAD : HEAD + apart], out)
        except IndexError:
            raise coders.Corrupt("an outlier lies beyond the numbers") from None
    return out
