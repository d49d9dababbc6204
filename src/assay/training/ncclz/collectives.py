"""Rings whose hops carry coded frames: sums of whole numbers, or of floats.

One loop serves all: what differs is where a frame comes from, how it is coded for a hop, and where it goes. Frames
follow one another: while one is on the wire the next is decoded, summed and coded.
"""

from __future__ import annotations

import itertools
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.ncclz import coders, quantise
from assay.training.ncclz.arbiter import SPEEDS, Arbiter, Speeds, estimate
from assay.training.ncclz.links import Port

Floats = quantise.Floats
Bytes = NDArray[np.uint8]
FRAME = 1 << 17  # symbols: one of NCCL's slots of 512 KiB
SMALL = 1 << 16  # bytes of a message that is not worth a look
FEW = 8  # one outlier in so many numbers, and nothing is coded
PIECES = 4, 4096  # of a message that are looked at: 64 KiB
ASKED = struct.Struct("<?3xIqdI")  # what a rank is about to do: refused, numbers, their bytes, bound, what and how


@dataclass(frozen=True)
class Plain:
    """Floats as they are."""

    kind: Any = np.float32
    lossless = True

    def encode(self, frame: Floats) -> Bytes:
        """The same memory."""
        return frame.view(np.uint8)

    def decode(self, message: Bytes) -> Floats:
        """The same memory."""
        return message.view(self.kind)


@dataclass(frozen=True)
class Report:
    """What a collective did: whether it coded, how many frames by which coder, how it predicted, what was exempt."""

    coded: bool
    frames: tuple[int, ...] = (0, 0, 0)
    predict: bool = False
    outliers: int = 0


@dataclass
class Coded:
    """Whole numbers by the coder that the arbiter chooses for every frame, or always by one; counts what it chose."""

    arbiter: Arbiter
    always: int | None = None
    frames: list[int] = field(default_factory=lambda: [0, 0, 0])
    lossless = True

    def encode(self, frame: NDArray[np.int32]) -> Bytes:
        """Choose and code."""
        found = coders.encode(frame, self.arbiter.choose(frame) if self.always is None else self.always)
        self.frames[found[0]] += 1
        return found

    def decode(self, message: Bytes) -> NDArray[np.int32]:
        """Whatever the sender chose."""
        return coders.decode(message)

    def report(self, predict: bool = False, outliers: int = 0) -> Report:
        """What became of the frames."""
        return Report(True, tuple(self.frames), predict, outliers)


def cut(count: int, parts: int) -> list[list[tuple[int, int]]]:
    """The frames of every rank's segment.

    >>> cut(10, 3)
    [[(0, 3)], [(3, 6)], [(6, 10)]]
    """
    ends = [count * k // parts for k in range(parts + 1)]
    return [[(a, min(a + FRAME, stop)) for a in range(start, stop, FRAME)] for start, stop in itertools.pairwise(ends)]


def reduce_ring(
    port: Port, count: int, source: Callable[[int, int], Any], sink: Callable[[int, int, Any], None], coder: Any,
    add: Callable[..., Any] = np.add,
) -> None:  # fmt: skip
    """Sum `source(a, b)` over all ranks and hand every frame of the sum to `sink(a, b, frame)`.

    A coder encodes frames, decodes messages, and says whether it is lossless. The first half sums: receive, decode,
    add, code, send on. The second half passes sums on as they came.
    """
    frames, me, n = cut(count, port.size), port.index, port.size
    for a, b in frames[me]:
        port.send(coder.encode(source(a, b)))
    for step in range(1, n):
        for a, b in frames[(me - step) % n]:
            total = coder.decode(port.recv())
            with np.errstate(over="ignore", invalid="ignore"):  # infinities are answers
                add(total, source(a, b), out=total)
            message = coder.encode(total)
            port.send(message)
            if step == n - 1:
                sink(a, b, total if coder.lossless else coder.decode(message))  # what the others will see
    for step in range(1, n):
        for a, b in frames[(me + 1 - step) % n]:
            message = port.recv()
            if step < n - 1:
                port.send(message)
            sink(a, b, coder.decode(message))
    port.flush()


def put(out: NDArray[Any], a: int, b: int, frame: Any) -> None:
    """A sink that keeps frames where they belong."""
    out[a:b] = frame


def plain(port: Port, x: Floats, add: Callable[..., Any] = np.add) -> Floats:
    """The ring on floats; where the link is not shaped, gloo's own all-reduce."""
    out = x.copy()
    if port.size > 1 and not port.link.shaped and add is np.add:
        import torch

        port.dist.all_reduce(torch.from_numpy(out), group=port.group)
    elif port.size > 1:
        reduce_ring(port, len(x), lambda a, b: x[a:b], partial(put, out), Plain(x.dtype), add)
    return out


@dataclass(frozen=True)
class Choices:
    """What is left to NCCLZ unless said otherwise: which coder, whether to predict, and whether to code at all."""

    coder: int | None = None
    predict: bool | None = None
    always: bool = False
    speeds: Speeds = SPEEDS


CHOOSE = Choices()


def all_reduce(port: Port, x: Any, eps: float | None, choices: Choices = CHOOSE) -> tuple[Floats, Report]:
    """The sum over all ranks, off by at most n eps; exactly the plain ring's where eps is None.

    Numbers are float32 or float64, and their sum is. Where outliers come in, the sum's own rounding is added to the
    bound.

    Raises:
        ValueError: on every rank, whichever it was: an eps that is no positive number, ranks of different sizes, kinds,
            bounds or choices, over 512 of them, or numbers that are no floats.
    """
    x, wrong = _row(x)
    _alike(port, "a sum", x, eps, choices, wrong)
    arbiter = arbiter_for(port, len(x), choices, x.itemsize)
    if eps is None or _left_alone(port, x, arbiter, choices):
        return plain(port, x), Report(coded=False)
    peak, exempt, smaller = _agreed(port, x, eps)
    predict = smaller if choices.predict is None else choices.predict
    if exempt * FEW > len(x):
        return plain(port, x), Report(coded=False, outliers=exempt)
    on, coder = quantise.grid(eps, peak, x.itemsize), Coded(arbiter, choices.coder)
    total = np.empty_like(x)
    reduce_ring(
        port, len(x), lambda a, b: quantise.quantised(x[a:b], on, predict),
        lambda a, b, codes: quantise.restored(codes, on.step, predict, total[a:b]), coder,
    )  # fmt: skip
    if exempt:
        quantise.add_outliers(port.gather(quantise.outliers(x, on.most)), total)
    return total, coder.report(predict, exempt)


def _row(x: Any) -> tuple[Floats, str]:
    """Numbers in one row; and what is wrong with them, which all ranks have to hear of."""
    try:
        return quantise.flat(x), ""
    except ValueError as error:
        return np.empty(0, np.float32), str(error)


def _left_alone(port: Port, x: Floats, arbiter: Arbiter, choices: Choices) -> bool:
    """Whether numbers travel as they are, whatever is in them."""
    return port.size == 1 or (not choices.always and (x.nbytes <= SMALL or arbiter.hopeless))


def _alike(port: Port, what: str, x: Floats, eps: float | None, choices: Any, wrong: str = "") -> None:
    """Tell everybody what this rank is about to do: all go on, or all raise, and none waits for ever.

    Before every sum, the plain ones too: what ranks of different sizes send each other would never end, or end them.
    """
    if eps is not None and not 0 < eps < np.inf:
        wrong = wrong or f"eps is {eps}, should be a positive number"
    if port.size > quantise.MOST_RANKS:
        raise ValueError(f"{port.size} ranks, of which the sums of {quantise.MOST_RANKS} fit 32 bits")
    if port.size > 1:
        mine = ASKED.pack(bool(wrong), len(x), x.itemsize, eps or 0.0, zlib.crc32(repr((what, choices)).encode()))
        each = [ASKED.unpack(row.tobytes()) for row in port.gather(np.frombuffer(mine, np.uint8))]
        others = [at for at, (refused, *_) in enumerate(each) if refused]
        if others and not wrong:
            wrong = f"the ring's rank {others[0]} has numbers or a bound that cannot be summed; its own error says why"
        if not wrong and any(row != each[0] for row in each):
            told = "; ".join(f"{count} float{8 * word}, {bound:g}" for _, count, word, bound, _ in each)
            wrong = f"ranks differ in size and eps, or in what they choose: {told}"
    if wrong:
        raise ValueError(wrong)


def arbiter_for(port: Port, count: int, choices: Choices = CHOOSE, word: int = 4) -> Arbiter:
    """What chooses coders for a message of so many numbers."""
    hops = max(1, 2 * (port.size - 1)) / port.size
    frames = max(1, round(hops * count / FRAME))
    return Arbiter(port.link.bandwidth, choices.speeds, frames, hops, word)


def _agreed(port: Port, x: Floats, eps: float) -> tuple[float, int, bool]:
    """One small message round the ring, so that all ranks go the same way.

    The largest number and the most outliers of any rank; whether differences are fewer bytes, in the mean.
    """
    peak, exempt = quantise.surveyed(x, eps)
    on = quantise.grid(eps, peak, x.itemsize)
    mine = np.array([peak, exempt, _look(x, on, predict=True) - _look(x, on, predict=False)])
    rows = np.array([np.ascontiguousarray(row).view(np.float64) for row in port.gather(mine.view(np.uint8))])
    return float(rows[:, 0].max()), int(rows[:, 1].max()), bool(rows[:, 2].sum() < 0)


def _look(x: Floats, on: quantise.Grid, predict: bool) -> float:
    """Bytes of a few pieces by the coder with fewest of them, as far as can be estimated."""
    pieces, size = PIECES
    starts = np.linspace(0, max(0, len(x) - size), pieces).astype(int)
    symbols = np.concatenate([quantise.quantised(x[start : start + size], on, predict)[1:] for start in starts])
    return float(estimate(symbols).min())


def all_reduce_levels(port: Port, x: Any, bits: int, key: int, choices: Choices = CHOOSE) -> tuple[Floats, Report]:
    """The sum over all ranks of QSGD's levels: right in the mean, off by at most n scales / levels.

    `key` draws the rounding; every rank has its own, every call another. A bucket's scale is its largest finite number;
    what is not finite travels as it is. Where many are not, nothing is coded.

    Raises:
        ValueError: on every rank, whichever it was: different sizes, kinds, bits or choices, or no floats.
    """
    x, wrong = _row(x)
    _alike(port, f"levels of {bits} bits", x, None, choices, wrong)
    arbiter = arbiter_for(port, len(x), choices, x.itemsize)
    if _left_alone(port, x, arbiter, choices):
        return plain(port, x), Report(coded=False)
    levels = 2 ** (bits - 1) - 1
    wild = quantise.outliers(x, quantise.infinite(x))
    exempt = len(wild) // quantise.OUTLIERS[x.itemsize].itemsize
    shared = plain(port, np.append(quantise.scales(x), x.dtype.type(exempt)), np.maximum)
    scale, most = shared[:-1], shared[-1]
    if most * FEW > len(x):
        return plain(port, x), Report(coded=False, outliers=exempt)
    coder, out = Coded(arbiter, choices.coder), np.empty_like(x)
    reduce_ring(
        port, len(x), lambda a, b: quantise.levelled(x[a:b], a, scale, levels, key),
        lambda a, b, codes: quantise.unlevelled(codes, a, scale, levels, out[a:b]), coder,
    )  # fmt: skip
    if most:
        quantise.add_outliers(port.gather(wild), out)
    return out, coder.report(outliers=exempt)
