"""Whether a scheme pays, and which: from what the machine's own products and passes were measured to take.

A scheme trades multiplications for passes over memory. Its seconds are those of its products, at the rate that the
vendor reaches at *their* size, and of its passes: bytes moved, and terms added on the way. It is taken where that is
less than the vendor's own time by more than two parts in a hundred and what the model hoped too much on shapes held
out.

On a GPU rates jump from size to size by as much as schemes gain, so there the model only says what is worth a trial
(`plausible`), and what the trial measured decides (`settle`).

The form of the model is reconstructed: the paper says that it weighs arithmetic against bandwidth.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np

from assay.kernels.falcongemm.schemes import Scheme, library

MARGIN = 0.02  # a smaller gain is not worth the rounding
VENDOR = "vendor"
TRIED = 4  # ways that a trial compares with the vendor at most


class Plan(NamedTuple):
    """A scheme, and how its products are handed to the vendor: `staged`, one by one, or `batched`, in one call."""

    scheme: Scheme
    way: str

    @property
    def name(self) -> str:
        """As rows and trials call it."""
        return f"{self.scheme.name}, {self.way}"


class Work(NamedTuple):
    """What a scheme does beside its products, by shape of the operands."""

    moved: float  # entries read from and written to memory by the passes
    added: float  # entries added up on the way, in cache or registers


def blocks(shape: tuple[int, int, int], scheme: Scheme, align: int = 1) -> tuple[int, int, int]:
    """The size of a scheme's products, filled up where it does not divide, and to multiples of `align`.

    >>> from assay.kernels.falcongemm.schemes import named
    >>> blocks((5, 4, 4), named("strassen"))
    (3, 2, 2)
    """
    cut = (scheme.m, scheme.k, scheme.n)
    high, deep, wide = (-(-size // (parts * align)) * align for size, parts in zip(shape, cut, strict=True))
    return high, deep, wide


def work(shape: tuple[int, int, int], scheme: Scheme, static: bool = False, align: int = 1) -> Work:
    """Entries that the passes move and add. Single blocks stay where they are, unless blocks are aligned: then copied.

    >>> from assay.kernels.falcongemm.schemes import named
    >>> work((4, 4, 4), named("strassen"))  # reads of a, b, products; writes of 5 + 5 sums, and of the result
    Work(moved=116, added=128)
    """
    (m, k, n), (high, deep, wide) = shape, blocks(shape, scheme, align)
    moved = added = 0
    for table, whole, block in ((scheme.u, m * k, high * deep), (scheme.v, k * n, deep * wide)):
        if table is scheme.v and static:
            continue
        terms = np.count_nonzero(table, axis=1)
        written = terms >= 1 if align > 1 else terms > 1
        moved += whole + int(written.sum()) * block
        added += int(terms[written].sum()) * block
    moved += scheme.rank * high * wide + m * n
    added += int(np.count_nonzero(scheme.w)) * high * wide
    return Work(moved, added)


def _between(size: int, sizes: tuple[int, ...]) -> tuple[tuple[int, float], tuple[int, float]]:
    """The grid's sizes on both sides of one, with the weight of each."""
    inside = min(max(size, sizes[0]), sizes[-1])
    low = min(bisect_right(sizes, inside) - 1, len(sizes) - 2)
    share = math.log(inside / sizes[low]) / math.log(sizes[low + 1] / sizes[low])
    return (low, 1 - share), (low + 1, share)


@dataclass(frozen=True)
class Profile:
    """What products and passes take on one machine with one dtype, measured."""

    machine: str
    dtype: str
    itemsize: int
    sizes: tuple[int, ...]
    rates: tuple[float, ...]  # FLOP/s of the vendor's product: sizes of m by k by n
    moving: float  # seconds a byte
    adding: float  # seconds a byte
    start: float  # seconds that a product or a pass takes even if it is empty
    off: float = 0.0  # how much too well it thinks of schemes, on shapes held out
    shy: float = 0.0  # how much too badly, on the same
    batched: tuple[float, ...] = ()  # FLOP/s of seven products in one call, sizes as in `rates`; none: not measured
    floor: float = 0.0  # seconds that it takes to launch all of a scheme, however small its matrices
    align: int = 1  # entries that blocks are filled up to: more than one on a GPU
    threads: int = 1
    measured: str = ""

    def rate(self, shape: tuple[int, int, int], way: str = "staged") -> float:
        """FLOP/s of the vendor's product: between the grid's sizes by their logarithms, beyond it those of its rim."""
        near = [_between(size, self.sizes) for size in shape]
        rates = self.batched if way == "batched" else self.rates
        count, total = len(self.sizes), 0.0
        for i, p in near[0]:
            for j, q in near[1]:
                for k, r in near[2]:
                    total += p * q * r * math.log(rates[(i * count + j) * count + k])
        return math.exp(total)

    def product(self, shape: tuple[int, int, int], way: str = "staged") -> float:
        """Seconds of one product by the vendor, alone or as one of several."""
        return 2.0 * shape[0] * shape[1] * shape[2] / self.rate(shape, way)

    def seconds(self, shape: tuple[int, int, int], scheme: Scheme | None, static: bool = False, way: str = "") -> float:
        """Seconds by the vendor, or by a scheme: handing on its products in one way, or in the faster one."""
        if scheme is None:
            return self.product(shape)
        ways = (way,) if way else ("staged", "batched") if self.batched else ("staged",)
        passes = work(shape, scheme, static, self.align)
        products = scheme.rank * min(self.product(blocks(shape, scheme, self.align), way) for way in ways)
        own = self.itemsize * (passes.moved * self.moving + passes.added * self.adding)
        told = max(self.floor, products + own + (2 if static else 3) * self.start)
        # Multiplications are all that a scheme saves: what is promised beyond them comes from a disturbed moment. (A
        # GPU's rates do jump that much from size to size; what is promised there is tried.)
        return told if self.align > 1 else max(told, self.product(shape) * (1 - scheme.saved))


def hope(logs: list[float]) -> float:
    """How much too well a model thinks of schemes: the upper quartile over shapes of predicted over measured gain.

    >>> hope([-0.05, -0.01]), hope([0.0, 0.04])
    (0.0, 0.03)
    """
    return max(0.0, float(np.percentile(logs, 75)))


def doubt(logs: list[float]) -> float:
    """How much too badly it thinks of them, at most: what it rules out must be sure to lose.

    >>> doubt([-0.05, 0.01]), doubt([0.01, 0.04])
    (0.05, 0.0)
    """
    return max(0.0, -min(logs))


class Choice(NamedTuple):
    """What to multiply with, and what it is predicted to gain over the vendor."""

    scheme: Scheme | None
    seconds: dict[str, float]  # predicted, by name; the vendor is there, too
    gain: float  # in throughput, of the best scheme
    why: str

    @property
    def name(self) -> str:
        """The scheme's, or the vendor."""
        return self.scheme.name if self.scheme else VENDOR


def choose(
    profile: Profile, shape: tuple[int, int, int], schemes: Iterable[Scheme] | None = None, static: bool = False
) -> Choice:
    """The least predicted seconds; the vendor wherever the gain is within the margin and the model's own error.

    >>> slow = Profile("toy", "f32", 4, (256, 1024), (1e9,) * 8, 1e-10, 1e-11, 0.0)
    >>> choose(slow, (4096, 4096, 4096)).scheme.saved > 0.12, choose(slow, (4, 4, 4)).why
    (True, 'the best scheme would lose 20 % (winograd)')
    """
    if math.isinf(profile.off):
        return Choice(None, {VENDOR: 0.0}, 0.0, f"what this machine does could not be told ({profile.measured})")
    known = list(library().values()) if schemes is None else list(schemes)
    taken = {VENDOR: profile.seconds(shape, None)}
    taken |= {one.name: profile.seconds(shape, one, static) for one in known}
    best = min(known, key=lambda one: taken[one.name])
    gain, needed = taken[VENDOR] / taken[best.name] - 1, MARGIN + profile.off
    if gain > needed:
        why = f"{best.name} {best.size} is predicted to gain {gain:.0%}".replace("%", " %")
        return Choice(best, taken, gain, why)
    told = f"{'gain' if gain > 0 else 'lose'} {abs(gain):.0%}".replace("%", " %")
    why = f"the best scheme would {told} ({best.name})"
    return Choice(None, taken, gain, f"{why}, and {needed:.1%} are asked for".replace("%", " %") if gain > 0 else why)


def plausible(profile: Profile, shape: tuple[int, int, int], plans: Iterable[Plan], static: bool = False) -> list[Plan]:
    """What is worth a trial beside the vendor: the best predicted, as far as the model's own error lets them gain.

    >>> from assay.kernels.falcongemm.schemes import named
    >>> slow = Profile("toy", "f32", 4, (256, 1024), (1e9,) * 8, 1e-10, 1e-11, 0.0)
    >>> plans = [Plan(named("winograd"), "staged")]
    >>> [len(plausible(slow, (n, n, n), plans)) for n in (4, 4096)]
    [0, 1]
    """
    known = {plan: profile.seconds(shape, plan.scheme, static, plan.way) for plan in plans}
    bar = profile.seconds(shape, None) * math.exp(profile.shy) / (1 + MARGIN)
    return [plan for plan in sorted(known, key=lambda plan: known[plan]) if known[plan] < bar][:TRIED]


Key = TypeVar("Key")


def settle(seconds: dict[Key, list[float]], vendor: Key) -> Key:
    """Who is taken after a trial of some rounds: the fastest, if it gained more than the margin in every round.

    What a scheme costs beside time (rounding, memory) does not vary, and is what the margin is for; times do, so a gain
    that one round did not show is none. With a scheme as fast as the vendor, and times that are off by two hundredths,
    five rounds would take it once in a thousand times.

    >>> settle({"vendor": [1.0, 1.1], "a": [0.9, 1.0], "b": [0.8, 1.2]}, "vendor")
    'a'
    >>> settle({"vendor": [1.0, 1.0], "a": [0.9, 0.99]}, "vendor")
    'vendor'
    """
    others = [name for name in seconds if name != vendor]
    best = min(others, key=lambda name: float(np.median(seconds[name])), default=vendor)
    gains = [theirs / ours - 1 for theirs, ours in zip(seconds[vendor], seconds[best], strict=True)]
    return best if min(gains) > MARGIN else vendor


def least(shape: tuple[int, int, int], scheme: Scheme, itemsize: int, peak: float, bandwidth: float) -> float:
    """Seconds below which no way to run a scheme can come: its products at the peak, its passes at the bandwidth.

    >>> from assay.kernels.falcongemm.schemes import named
    >>> least((4, 4, 4), named("strassen"), 1, 1.0, math.inf)  # 7 products of 2 x 2
    112.0
    """
    high, deep, wide = blocks(shape, scheme)
    return 2.0 * scheme.rank * high * deep * wide / peak + itemsize * work(shape, scheme).moved / bandwidth


def frontier(profile: Profile, static: bool = False, largest: int = 1 << 16) -> int | None:
    """From which size on a square product is given to a scheme; None where that is at none up to the largest.

    >>> frontier(Profile("toy", "f32", 4, (256, 1024), (1e9,) * 8, 1e-10, 1e-11, 0.0)) < 1024
    True
    """
    sizes = [int(size) for size in 2 ** np.arange(7, np.log2(largest) + 0.01, 0.25)]
    pays = [choose(profile, (n, n, n), static=static).scheme is not None for n in sizes]
    last = max((i for i, paid in enumerate(pays) if not paid), default=-1)
    return sizes[last + 1] if last + 1 < len(sizes) else None


def roofline(machine: str, dtype: str, itemsize: int, peak: float, bandwidth: float, reached: float) -> Profile:
    """A machine that was not measured: its data sheet, at the share of both roofs that another machine reached.

    >>> frontier(roofline("H20", "bf16", 2, 148e12, 4.0e12, 0.85)) < 16384
    True
    """
    sizes, moving = (256, 16384), 1 / (reached * bandwidth)
    rates = tuple(
        min(reached * peak, 2 * m * k * n / (itemsize * (m * k + k * n + m * n) * moving))
        for m in sizes for k in sizes for n in sizes
    )  # fmt: skip
    return Profile(machine, dtype, itemsize, sizes, rates, moving, 0.0, 5e-6, 0.0, 16, measured="data sheet")
