"""What the network does to a message: how long it takes, whether it is lost, doubled or overtaken.

>>> net = parse("lognormal:0.005:0.4,drop=0.01")
>>> net.drop, net.latency
(0.01, Lognormal(median=0.005, sigma=0.4))

All draws of a sender come from a stream of its own: what one node sends changes nothing for the others.

`neighbours` says who may send to whom: named shapes, graphs of ours, or the out-neighbours themselves.

>>> neighbours("star", 4)
[(1, 2, 3), (0,), (0,), (0,)]
>>> neighbours([[1], [2], [0]], 3)  # a one-way triangle
[(1,), (2,), (0,)]
>>> neighbours("complete", 3) is None  # everybody
True
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from assay.sim.streams import stream

Floats = npt.NDArray[np.float64]
BLOCK = 1024  # draws made at once


class Latency(Protocol):
    """Seconds (in rounds: rounds) from sending to delivery."""

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""


@dataclass(frozen=True)
class Constant:
    """Always the same."""

    seconds: float = 0.001

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return np.full(count, self.seconds)


@dataclass(frozen=True)
class Uniform:
    """Anything from low to high."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError(f"uniform from {self.low:g} to {self.high:g}; the lower end first expected")

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return rng.uniform(self.low, self.high, count)


@dataclass(frozen=True)
class Exponential:
    """Memoryless, with this mean."""

    mean: float

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return rng.exponential(self.mean, count)


@dataclass(frozen=True)
class Lognormal:
    """A long right tail: the logarithm is normal with this standard deviation."""

    median: float
    sigma: float

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return self.median * np.exp(self.sigma * rng.standard_normal(count))


@dataclass(frozen=True)
class Poisson:
    """Whole rounds with this mean, cut off at both ends."""

    mean: float
    low: float = 1
    high: float = 1e9

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """So many latencies."""
        return np.clip(rng.poisson(self.mean, count).astype(np.float64), self.low, self.high)


@dataclass(frozen=True, eq=False)
class Regions:
    """Between regions: `seconds[a][b]` is the median from region a to region b, `of[node]` the node's region."""

    seconds: Floats
    of: npt.NDArray[np.int64]
    sigma: float = 0.1

    @cached_property
    def home(self) -> list[int]:
        """Every node's region, once for all senders: a row of nodes for each of thousands would fill the memory."""
        homes: list[int] = np.asarray(self.of).tolist()
        return homes

    @cached_property
    def _rows(self) -> dict[float, list[list[float]]]:
        return {}

    def rows(self, unit: float) -> list[list[float]]:
        """The medians in units, a row for each region: senders of one region share it."""
        if unit not in self._rows:
            self._rows[unit] = (np.asarray(self.seconds) / unit).tolist()
        return self._rows[unit]

    def draw(self, rng: np.random.Generator, count: int) -> Floats:
        """Factors on the medians."""
        return np.exp(self.sigma * rng.standard_normal(count))


@dataclass(frozen=True)
class Net:
    """A network. `bandwidth` in bytes/s makes messages of one link wait for each other; `fifo` forbids overtaking."""

    latency: Latency = field(default_factory=Constant)
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    """In rounds: how likely the messages that wait on a link are shuffled when one is sent."""
    bandwidth: float | None = None
    fifo: bool = False
    per_round: int | None = None
    """In rounds: messages that a link delivers at most in one round."""
    room: int | None = None
    """In rounds: messages that may wait on a link; what comes on top is lost."""

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "reorder"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}; a probability from 0 to 1 expected")
        if self.bandwidth is not None and not self.bandwidth > 0:
            raise ValueError(f"bandwidth is {self.bandwidth}; bytes/s above 0 expected")
        if self.per_round is not None and self.per_round < 1:
            raise ValueError(f"per_round is {self.per_round}; at least 1 expected")

    @property
    def plain(self) -> bool:
        """Whether every message arrives once, after its latency, whatever else is under way."""
        return not (self.drop or self.duplicate or self.bandwidth or self.fifo or self.reorder or self.per_round)


Sampler = Callable[[int], tuple[int, ...]]


def latencies(net: Net, seed: int, unit: float = 1e-6) -> Callable[[int, int], int]:
    """A function that gives the latency of a sender's next message to a destination, in units, at least 1.

    What has been drawn lies in arrays: as numbers of their own, spread over the memory, the draws of thousands of
    senders would take longer to fetch than to make.
    """
    model = net.latency
    streams: dict[int, np.random.Generator] = {}
    blocks: dict[int, array[Any]] = {}

    def stream_of(src: int) -> np.random.Generator:
        if src not in streams:
            streams[src] = stream(seed, "latency", src)
        return streams[src]

    if isinstance(model, Regions):
        home, rows = model.home, model.rows(unit)

        def regional(src: int, dst: int) -> int:
            block = blocks.get(src)
            if not block:
                block = blocks[src] = array("d", model.draw(stream_of(src), BLOCK).tobytes())
            return int(rows[home[src]][home[dst]] * block.pop() + 0.5) or 1

        return regional

    def next_one(src: int, dst: int) -> int:
        block = blocks.get(src)
        if not block:
            drawn = np.rint(model.draw(stream_of(src), BLOCK) / unit).astype(np.int64)
            block = blocks[src] = array("q", np.maximum(drawn, 1)[::-1].tobytes())
        return block.pop()

    return next_one


def sampler(net: Net, seed: int, src: int, unit: float = 1e-6) -> Sampler:
    """A function that gives the latencies of all copies of the sender's next message: none, one or two."""
    latency = latencies(net, seed, unit)
    if not net.drop and not net.duplicate:
        return lambda dst: (latency(src, dst),)
    rng = stream(seed, "fate", src)
    fates: list[tuple[float, float]] = []

    def copies(dst: int) -> tuple[int, ...]:
        if not fates:
            fates.extend(map(tuple, rng.random((BLOCK, 2)).tolist()))
        lost, doubled = fates.pop()
        after = latency(src, dst)  # drawn in any case, so that losses do not shift the others' latencies
        if lost < net.drop:
            return ()
        return (after, after) if doubled < net.duplicate else (after,)

    return copies


MODELS: dict[str, tuple[type[Any], tuple[float, ...]]] = {
    "constant": (Constant, (0.001,)),
    "uniform": (Uniform, (0.001, 0.01)),
    "exponential": (Exponential, (0.005,)),
    "lognormal": (Lognormal, (0.005, 0.4)),
    "poisson": (Poisson, (2.0,)),
}


def parse(text: str) -> Net:
    """A network from `model:number:…,option=value,…`, as on the command line.

    >>> parse("uniform:1:3,drop=0.2,per_round=4").per_round
    4
    >>> parse("warp")
    Traceback (most recent call last):
    ValueError: no latency model 'warp'; one of constant, uniform, exponential, lognormal, poisson expected
    """
    first, *options = [part.strip() for part in text.split(",")]
    name, *numbers = first.split(":")
    if name not in MODELS:
        raise ValueError(f"no latency model '{name}'; one of {', '.join(MODELS)} expected")
    kind, defaults = MODELS[name]
    try:
        values = [float(number) for number in numbers]
        if not all(0 <= value < math.inf for value in values):
            raise ValueError(f"'{first}' has a number that is no latency; from 0 on expected")
        net = Net(kind(*values, *defaults[len(values) :]))
        for option in options:
            key, _, value = option.partition("=")
            if key == "fifo" and not value:
                net = replace(net, fifo=True)
            elif key in ("drop", "duplicate", "reorder", "bandwidth"):
                net = replace(net, **{key: float(value)})  # type: ignore[arg-type]
            elif key == "per_round":
                net = replace(net, per_round=int(value))
            else:
                raise ValueError(f"no option '{key}'")
    except (TypeError, ValueError) as error:
        known = "drop=, duplicate=, reorder=, bandwidth=, per_round= and fifo"
        raise ValueError(f"network '{text}': {error}; like 'lognormal:0.005:0.4,drop=0.01', options {known}") from None
    return net


NAMES = ("complete", "ring", "one-way-ring", "star", "chain", "grid", "torus")


def neighbours(topology: Any, n: int) -> list[tuple[int, ...]] | None:
    """The out-neighbours of each node, or None where all may send to all."""
    if isinstance(topology, str):
        return None if topology == "complete" else _named(topology, n)
    if isinstance(topology, (list, tuple)):
        return _lists(topology, n)
    from assay.sim import graphs  # compiled code, which a process of nodes need not load

    if isinstance(topology, graphs.Complete):
        _same(topology.n, n)
        return None
    if isinstance(topology, graphs.CSR):
        _same(topology.n, n)
        pointers, indices = topology.indptr.tolist(), topology.indices.tolist()
        return [tuple(indices[pointers[node] : pointers[node + 1]]) for node in range(n)]
    raise ValueError(f"a topology of type {type(topology).__name__}; a name, a graph or lists of neighbours expected")


def _same(have: int, want: int) -> None:
    if have != want:
        raise ValueError(f"the topology has {have} nodes, the world {want}")


def _lists(rows: Sequence[Sequence[int]], n: int) -> list[tuple[int, ...]]:
    _same(len(rows), n)
    for node, row in enumerate(rows):
        for other in row:
            if not 0 <= other < n or other == node:
                raise ValueError(f"node {node} has the neighbour {other}; another node below {n} expected")
    return [tuple(row) for row in rows]


def _named(name: str, n: int) -> list[tuple[int, ...]]:
    if name == "ring":
        return [tuple(sorted({(node - 1) % n, (node + 1) % n} - {node})) for node in range(n)]
    if name == "one-way-ring":
        return [((node + 1) % n,) if n > 1 else () for node in range(n)]
    if name == "star":
        return [tuple(range(1, n)) if node == 0 else (0,) for node in range(n)]
    if name == "chain":
        return [tuple(other for other in (node - 1, node + 1) if 0 <= other < n) for node in range(n)]
    if name in ("grid", "torus"):
        side = math.isqrt(n)
        if side * side != n:
            raise ValueError(f"{n} nodes make no square; a grid or torus needs 4, 9, 16, …")
        return lattice(side, side, wrap=name == "torus")
    raise ValueError(f"no topology '{name}'; one of {', '.join(NAMES)} expected")


def lattice(height: int, width: int, *, wrap: bool) -> list[tuple[int, ...]]:
    """The neighbours of each node of a rectangle, row by row; with `wrap` its ends meet.

    >>> lattice(1, 3, wrap=False), lattice(1, 3, wrap=True)
    ([(1,), (0, 2), (1,)], [(1, 2), (0, 2), (0, 1)])
    """
    rows = []
    for node in range(height * width):
        row, column = divmod(node, width)
        around = ((row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1))
        inside = ((r % height, c % width) for r, c in around if wrap or (0 <= r < height and 0 <= c < width))
        rows.append(tuple(sorted({r * width + c for r, c in inside} - {node})))
    return rows
