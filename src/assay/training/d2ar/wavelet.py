"""The rival of decades: wavelets, quantised and coded by context, as JPEG 2000 does it, without its headers.

CDF 9/7 over five levels, a dead zone, one step for all coefficients (subbands are scaled to unit norm), whole numbers
by adaptive arithmetic coding whose context is how large the neighbours and the parent are. Bands are decorrelated first
by the axes of the archive's spectra, which decoder and encoder both have. The step is sought so that the bytes fit.

>>> image = np.random.default_rng(0).random((2, 64, 64)).astype(np.float32)
>>> data = encode(image, budget=300, axes=np.eye(2, dtype=np.float32))
>>> len(data) <= 300, decode(data, (2, 64, 64), np.eye(2, dtype=np.float32)).shape
(True, (2, 64, 64))
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.d2ar import coder
from assay.training.d2ar.coder import njit

LIFTS = (-1.586134342059924, -0.052980118572961, 0.882911075530934, 0.443506852043971)
STRETCH = 2**0.5 / 1.230174104914001  # so that coefficients of all subbands weigh alike in the picture
LEVELS = 5
DEAD = 0.35  # of a step, what is added before cutting: below a half, zeros are cheap
STEPS = 256  # geometric, from 32 down


def _lift(x: Any) -> Any:
    """One level along the last axis; edges are mirrored."""
    even, odd = x[..., 0::2].copy(), x[..., 1::2].copy()
    for k, weight in enumerate(LIFTS):
        if k % 2 == 0:
            odd += weight * (even + np.concatenate([even[..., 1:], even[..., -1:]], -1))
        else:
            even += weight * (odd + np.concatenate([odd[..., :1], odd[..., :-1]], -1))
    return even * STRETCH, odd / STRETCH


def analysed(image: NDArray[Any], levels: int) -> NDArray[np.float64]:
    """Coefficients in the usual square arrangement: the coarsest in the corner. Sides are multiples of 2**levels."""
    found = np.array(image, np.float64)
    height, width = found.shape[-2:]
    for _ in range(levels):
        part = found[..., :height, :width]
        part[:] = np.concatenate(_lift(part), -1)
        part[:] = np.swapaxes(np.concatenate(_lift(np.swapaxes(part, -1, -2)), -1), -1, -2)
        height, width = height // 2, width // 2
    return found


def synthesised(found: NDArray[Any], levels: int) -> NDArray[np.float64]:
    """The image again."""
    image = np.array(found, np.float64)
    for level in range(levels - 1, -1, -1):
        height, width = image.shape[-2] >> level, image.shape[-1] >> level
        part = image[..., :height, :width]
        for swap in (True, False):
            turned = np.swapaxes(part, -1, -2).copy() if swap else part.copy()
            half = turned.shape[-1] // 2
            whole = np.empty_like(turned)
            even, odd = turned[..., :half].copy(), turned[..., half:].copy()
            even, odd = _unlift(even, odd)
            whole[..., 0::2], whole[..., 1::2] = even, odd
            part[:] = np.swapaxes(whole, -1, -2) if swap else whole
    return image


def _unlift(even: Any, odd: Any) -> Any:
    even, odd = even / STRETCH, odd * STRETCH
    for k in range(3, -1, -1):
        if k % 2 == 0:
            odd -= LIFTS[k] * (even + np.concatenate([even[..., 1:], even[..., -1:]], -1))
        else:
            even -= LIFTS[k] * (odd + np.concatenate([odd[..., :1], odd[..., :-1]], -1))
    return even, odd


@njit(cache=True, nogil=True)
def _context(levels, band, y, x, size):  # type: ignore[no-untyped-def]
    """By subband level, and by how large the four coded neighbours and the parent are."""
    a = levels[band]
    near = 0
    if x > 0:
        near += 2 * min(abs(a[y, x - 1]), 3)
    if y > 0:
        near += 2 * min(abs(a[y - 1, x]), 3)
        if x + 1 < size[1]:
            near += min(abs(a[y - 1, x + 1]), 3)
    if size[2] and (y >= size[2] or x >= size[3]):
        near += 2 * min(abs(a[y // 2, x // 2]), 3)
    if band > 0:
        near += min(abs(levels[band - 1, y, x]), 3)
    return 0 if near == 0 else 1 if near <= 1 else 2 if near <= 2 else 3 if near <= 4 else 4 if near <= 8 else 5


@njit(cache=True, nogil=True)
def _walk(q, data, out, telling, depth):  # type: ignore[no-untyped-def]
    """Tell all numbers, or read them into `q`: from the coarsest subbands to the finest, band by band."""
    bands, height, width = q.shape
    model = np.full((2 * (depth + 1) * 6, coder_slots), 1 << 15, np.int64)
    state = np.array([0, (1 << 32) - 1, 0], np.int64)
    if not telling:
        coder_start(data, state)
    for level in range(depth, -1, -1):
        h, w = height >> level, width >> level
        inner = (h // 2, w // 2) if level < depth else (0, 0)
        size = (h, w, inner[0], inner[1])
        for band in range(bands):
            # A bit for every subband of a band: whether there is anything in it.
            some = 0
            if telling:
                for y in range(h):
                    for x in range(w):
                        if (y >= inner[0] or x >= inner[1]) and q[band, y, x]:
                            some = 1
                coder_put(out, state, model, level, coder_slots - 1, some)
            else:
                some = coder_get(data, state, model, level, coder_slots - 1)
            if some == 0:
                continue
            for y in range(h):
                for x in range(0 if y >= inner[0] else inner[1], w):
                    near = _context(q, band, y, x, size)
                    context = ((depth - level) * 2 + (1 if band else 0)) * 6 + near
                    if telling:
                        coder_put_number(out, state, model, context, q[band, y, x])
                    else:
                        q[band, y, x] = coder_get_number(data, state, model, context)
    return coder_finish(out, state) if telling else 0


coder_slots = coder.SLOTS
coder_put, coder_get, coder_start, coder_finish = coder.put, coder.get, coder.start, coder.finish
coder_put_number, coder_get_number = coder.put_number, coder.get_number


def _depth(height: int, width: int) -> int:
    depth = 0
    while depth < LEVELS and height % (2 << depth) == 0 and width % (2 << depth) == 0:
        depth += 1
    return depth


def _step(index: int) -> float:
    return float(32.0 * 2.0 ** (-index / 20))


def _quantised(found: NDArray[np.float64], step: float) -> NDArray[np.int64]:
    return (np.sign(found) * np.floor(np.abs(found) / step + DEAD)).astype(np.int64)


def encode(image: NDArray[Any], budget: int, axes: NDArray[Any], mean: NDArray[Any] | None = None) -> bytes:
    """The best picture within so many bytes: the step's byte, then the coefficients; nothing where nothing fits.

    `axes` are rows onto which spectra are projected, `mean` the spectrum that is taken off before.
    """
    bands, height, width = image.shape
    flat = image.reshape(bands, -1) - (0 if mean is None else np.asarray(mean)[:, None])
    depth = _depth(height, width)
    found = analysed((axes @ flat).reshape(image.shape), depth)
    low, high, kept = 0, STEPS - 1, b""
    while low <= high:  # finer steps take more bytes, nearly always
        middle = (low + high) // 2
        data = _told(_quantised(found, _step(middle)), depth)
        if len(data) + 1 <= budget:
            kept, low = bytes([middle]) + data, middle + 1
        else:
            high = middle - 1
    return kept


def _told(q: NDArray[np.int64], depth: int) -> bytes:
    out = np.zeros(64 + 6 * int(np.count_nonzero(q)) + q.size // 2, np.uint8)
    end = _walk(q, np.zeros(1, np.uint8), out, True, depth)
    return out[:end].tobytes()


def decode(
    data: bytes, shape: tuple[int, ...], axes: NDArray[Any], mean: NDArray[Any] | None = None
) -> NDArray[np.float32]:
    """The picture."""
    q = np.zeros(shape, np.int64)
    depth = _depth(shape[1], shape[2])
    if data:
        _walk(q, np.frombuffer(data[1:] or b"\0", np.uint8), np.zeros(1, np.uint8), False, depth)
        found = np.sign(q) * (np.abs(q) + (0.5 - DEAD) * (q != 0)) * _step(data[0])
    else:
        found = q.astype(float)
    flat = axes.T @ synthesised(found, depth).reshape(shape[0], -1) + (0 if mean is None else np.asarray(mean)[:, None])
    return np.asarray(flat.reshape(shape), np.float32)
