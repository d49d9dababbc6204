"""Agents that meet one at a time: the exact dynamics of voting on a graph, compiled.

Discrete incremental voting (``div``): opinions are integers; in each step a random node looks at a
random neighbour and moves its opinion one unit towards the neighbour's. In the end all hold one
value near the degree-weighted average of the start. Nothing is approximated here: no rounds, no
parallel updates; an interaction is a step.

>>> from assay.sim.graphs import random_regular
>>> outcome = run(random_regular(64, 8), [0] * 32 + [4] * 32, seed=1, replicas=3)
>>> outcome.final.tolist(), outcome.censored.any().item()
([2, 2, 2], False)

The rules, by key (u is the node that acts; every neighbour is drawn uniformly, with replacement):

- ``div``: u moves one unit towards a neighbour. The degree-weighted average is a martingale.
- ``div-edge``: the same for a uniform directed edge (u, v). The plain average is a martingale.
- ``pull``: u adopts a neighbour's opinion.
- ``median``: u takes the median of its own opinion and two neighbours'.
- ``best-of-three``: u takes the majority of three neighbours, the first one's if all differ.
- ``average``: u and a neighbour take floor and ceil of their mean, a coin says which. It keeps the
  sum exactly, so it cannot reach one value in general: **it stops when max - min <= 1**.

Cost: O(1) a step, of one 64-bit random word (two for the rules with further neighbours): the mixed-radix
digits of the word are the node and the neighbour's place in its row.

- Berenbrink, Cooper, Goette, Hintze, Radzik, "Discrete Incremental Voting: New Bounds for General
  Graphs and Expanders", arXiv:2606.06381; the process is Cooper, Radzik and Shiraga's, OPODIS 2023.
- Doerr, Goldberg, Minder, Sauerwald, Scheideler, "Stabilizing consensus with the power of two
  choices", SPAA 2011 (median). Becchetti et al., "Simple dynamics for plurality consensus", SPAA
  2014 (three neighbours). Berenbrink et al., "Simple and optimal load balancing", 2019 (average).
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit
from assay.sim.graphs import Complete, Floats, Graph, Int32s, Int64s
from assay.sim.random import Word, bits, digit, key

if TYPE_CHECKING:
    import polars

_DIV, _DIV_EDGE, _PULL, _MEDIAN, _BEST_OF_THREE, _AVERAGE = range(6)
RULES = {
    "div": _DIV,
    "div-edge": _DIV_EDGE,
    "pull": _PULL,
    "median": _MEDIAN,
    "best-of-three": _BEST_OF_THREE,
    "average": _AVERAGE,
}
_CHUNK = 1 << 27  # steps between two looks at the keyboard: a second or two
_WIDEST = 1 << 26  # opinions max - min: one counter each


# --------------------------------------------------------------------------------------- the outcome


@dataclass(frozen=True, eq=False)
class Outcome:
    """How each replica ended; every field is an array over replicas.

    ``final`` is the most common opinion at the end, the lowest of several: at consensus, everyone's.
    Where ``censored``, the cap came first and ``low`` < ``high`` still stood against each other.
    """

    steps: Int64s
    final: Int64s
    low: Int64s
    high: Int64s
    censored: npt.NDArray[np.bool_]
    average: Floats
    """Mean opinion at the start."""
    weighted_average: Floats
    """Mean opinion at the start, each node weighted by its degree: what ``div`` ends at, in expectation."""

    @property
    def table(self) -> polars.DataFrame:
        """One row a replica."""
        import polars

        return polars.DataFrame(vars(self)).with_row_index("replica")


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One replica, looked at now and then; every field is an array over the looks."""

    steps: Int64s
    low: Int64s
    high: Int64s
    at_low: Int64s
    """How many hold the least opinion."""
    at_high: Int64s
    martingale: Floats
    """The average that stays level in expectation: plain for ``div-edge`` and ``average``, else degree-weighted."""


def run(
    graph: Graph,
    opinions: npt.ArrayLike,
    rule: str = "div",
    seed: int = 0,
    replicas: SupportsIndex | Iterable[int] = 1,
    max_steps: int | None = None,
) -> Outcome:
    """Run the rule from these opinions until consensus, once for each replica.

    ``opinions`` holds one integer a node, or one such row a replica. ``replicas`` is a count, or the
    numbers of the replicas to run: ``range(8, 16)`` gives the second half of 16 exactly as ``16``
    does, since the randomness of each is keyed by (seed, rule, number) alone.

    Without ``max_steps`` a rule that needs exponential time (best-of-three between two cliques) runs
    as long; with it, replicas that reach the cap are marked ``censored``.

    Raises ValueError where some node has no neighbour, or where the graph is disconnected and no
    cap would end the run.

    >>> from assay.sim.graphs import complete
    >>> outcome = run(complete(5), [1, 1, 1, 1, 6], rule="pull", replicas=4)
    >>> sorted(set(outcome.final.tolist()) - {1, 6})
    []
    >>> run(complete(100), range(100), max_steps=10).censored.tolist()
    [True]
    """
    numbers = list(range(operator.index(replicas)) if isinstance(replicas, SupportsIndex) else replicas)
    starts = _starts(opinions, graph.n, len(numbers))
    wiring = _wire(graph, rule, max_steps)
    cap = np.iinfo(np.int64).max if max_steps is None else max_steps
    degrees = graph.degrees if graph.n > 1 else np.ones(graph.n, np.int64)
    ends, means = [], []
    for number, start in zip(numbers, starts, strict=True):
        swarm = _Swarm(wiring, start, rule, seed, number)
        swarm.advance(cap)
        ends.append((swarm.step, swarm.commonest, swarm.low + swarm.base, swarm.high + swarm.base, not swarm.settled))
        # Sums of integers, divided once: an average that is a whole number must come out as one.
        means.append((start.sum() / graph.n, (degrees @ start) / degrees.sum()))
    steps, final, low, high, censored = np.array(ends, np.int64).reshape(-1, 5).T.copy()
    average, weighted_average = np.array(means, np.float64).reshape(-1, 2).T.copy()
    return Outcome(steps, final, low, high, censored.astype(bool), average, weighted_average)


def _weights(graph: Graph) -> Floats:
    """Each node's share of all degrees."""
    return graph.degrees / (2 * graph.m) if graph.n > 1 else np.ones(graph.n)


def trajectory(
    graph: Graph,
    opinions: npt.ArrayLike,
    rule: str = "div",
    seed: int = 0,
    every: int = 1000,
    max_steps: int | None = None,
    replica: int = 0,
) -> Trajectory:
    """Follow one replica of :func:`run`, looking at it at the start, after each ``every`` steps, and at the end.

    >>> from assay.sim.graphs import cycle
    >>> path = trajectory(cycle(10), [0, 9] * 5, every=100)
    >>> path.low[0].item(), path.high[0].item(), bool((path.low[-1] == path.high[-1]))
    (0, 9, True)
    """
    if every < 1:
        raise ValueError(f"every is {every}; a number of steps, at least 1, expected")
    start = _starts(opinions, graph.n, 1)[0]
    swarm = _Swarm(_wire(graph, rule, max_steps), start, rule, seed, replica)
    weights = np.full(graph.n, 1 / graph.n) if rule in ("div-edge", "average") else _weights(graph)
    looks = np.array(list(_looks(swarm, every, max_steps, weights)))
    steps, low, high, at_low, at_high = looks[:, :5].astype(np.int64).T.copy()
    return Trajectory(steps, low, high, at_low, at_high, looks[:, 5].copy())


def _looks(swarm: _Swarm, every: int, cap: int | None, weights: Floats) -> Iterator[tuple[float, ...]]:
    while True:
        extremes = swarm.count[swarm.low], swarm.count[swarm.high]
        mean = float(weights @ swarm.x) + swarm.base
        yield swarm.step, swarm.low + swarm.base, swarm.high + swarm.base, *extremes, mean
        if swarm.settled or (cap is not None and swarm.step >= cap):
            return
        swarm.advance(swarm.step + every if cap is None else min(swarm.step + every, cap))


# ------------------------------------------------------------------------------------ what comes in


def _starts(opinions: npt.ArrayLike, n: int, replicas: int) -> Int64s:
    """Check opinions and return them as one row a replica."""
    values = np.asarray(opinions)
    if values.dtype.kind not in "iu":
        raise ValueError(f"opinions are {values.dtype}; integers expected")
    if values.shape not in ((n,), (replicas, n)):
        raise ValueError(f"opinions have shape {values.shape}; ({n},), one a node, or ({replicas}, {n}) expected")
    if values.size and int(values.max()) - int(values.min()) >= _WIDEST:
        raise ValueError(f"opinions span {values.min()}..{values.max()}; a range below {_WIDEST} expected")
    return np.broadcast_to(values.astype(np.int64), (replicas, n))


class _Wiring(NamedTuple):
    """A graph as the kernel wants it. ``degree`` is 0 where degrees differ; ``indices`` is empty if complete."""

    n: np.uint64
    degree: np.uint64
    indptr: Int64s
    indices: Int32s
    sources: Int32s
    """The node that each entry of ``indices`` belongs to; filled only for a rule that draws edges."""


def _wire(graph: Graph, rule: str, max_steps: int | None) -> _Wiring:
    if rule not in RULES:
        raise ValueError(f"no rule {rule!r}; one of {', '.join(RULES)} expected")
    if max_steps is not None and max_steps < 0:
        raise ValueError(f"max_steps is {max_steps}; a count of steps or None expected")
    if max_steps is None and not graph.is_connected:
        raise ValueError("the graph is disconnected, so consensus may never come; give max_steps or a connected graph")
    nothing = np.empty(0, np.int32)
    if isinstance(graph, Complete):
        return _Wiring(np.uint64(graph.n), np.uint64(graph.degree), np.empty(0, np.int64), nothing, nothing)
    if graph.n > 1 and not graph.degrees.all():
        raise ValueError(f"node {int(np.argmin(graph.degrees))} has no neighbours; each node needs one to look at")
    degree = graph.degree or 0
    sources = nothing
    if rule == "div-edge" and not degree:
        sources = np.repeat(np.arange(graph.n, dtype=np.int32), graph.degrees)
    # The kernel is compiled for these exact types, once.
    indptr, indices = np.ascontiguousarray(graph.indptr, np.int64), np.ascontiguousarray(graph.indices, np.int32)
    return _Wiring(np.uint64(graph.n), np.uint64(degree), indptr, indices, sources)


class _Swarm:
    """One replica under way: opinions less their least, ``count[o]`` nodes of opinion o, and how far it is."""

    def __init__(self, wiring: _Wiring, start: Int64s, rule: str, seed: int, replica: int) -> None:
        self.wiring = wiring
        self.rule = RULES[rule]
        self.key = np.uint64(key(seed, "swarm", rule, replica))
        self.base = int(start.min())
        self.x = (start - self.base).astype(np.int32)
        self.count = np.bincount(self.x).astype(np.int32)
        self.step, self.low, self.high = 0, 0, self.count.size - 1

    @property
    def settled(self) -> bool:
        return self.high - self.low <= (1 if self.rule == _AVERAGE else 0)

    @property
    def commonest(self) -> int:
        return self.base + int(np.argmax(self.count))

    def advance(self, until: int) -> None:
        """Go on to step ``until`` or to the end, in pieces short enough that Ctrl-C is heard between them."""
        while self.step < until and not self.settled:
            stop = min(until, self.step + _CHUNK)
            self.step, self.low, self.high = _advance(
                self.wiring, self.rule, self.x, self.count, self.key, self.step, stop, self.low, self.high
            )


# --------------------------------------------------------------------------------------- the kernel
# Unsigned indices throughout: Numba then leaves out the test for negative ones.


@njit(cache=True, nogil=True)
def _div(own: Any, other: Any) -> Any:
    """Move one unit towards the other: X_u += sign(X_v - X_u)."""
    return own + (other > own) - (other < own)


@njit(cache=True, nogil=True)
def _median(own: Any, other: Any, third: Any) -> Any:
    """The middle one of three."""
    return max(min(other, third), min(max(other, third), own))


@njit(cache=True, nogil=True)
def _majority(first: Any, second: Any, third: Any) -> Any:
    """What at least two of three say; the first if all differ."""
    return second if second == third else first


@njit(cache=True, nogil=True)
def _halve(own: Any, other: Any, coin: Any) -> tuple[Any, Any]:
    """Floor and ceil of the mean, or ceil and floor: the sum stays."""
    total = own + other
    mine = (total + coin) >> 1
    return mine, total - mine


@njit(cache=True, nogil=True)
def _neighbour(wiring: _Wiring, u: Word, word: Word) -> tuple[Word, Word]:
    """A uniform neighbour of u, by the first digit of the word, and the rest of the word."""
    if wiring.degree == 0:
        first = np.uint64(wiring.indptr[u])
        slot, rest = digit(word, np.uint64(wiring.indptr[u + np.uint64(1)]) - first)
        return np.uint64(wiring.indices[first + slot]), rest
    slot, rest = digit(word, wiring.degree)
    if wiring.indices.size == 0:
        return slot + np.uint64(slot >= u), rest  # all but u itself
    return np.uint64(wiring.indices[u * wiring.degree + slot]), rest


@njit(cache=True, nogil=True)
def _meeting(wiring: _Wiring, word: Word) -> tuple[Word, Word, Word]:
    """Who acts, whom it looks at, and the rest of the word."""
    if wiring.sources.size:  # a uniform directed edge; where degrees are equal, the draw below is one too
        edge, rest = digit(word, wiring.sources.size)
        return np.uint64(wiring.sources[edge]), np.uint64(wiring.indices[edge]), rest
    u, rest = digit(word, wiring.n)
    v, rest = _neighbour(wiring, u, rest)
    return u, v, rest


@njit(cache=True, nogil=True)
def _further(wiring: _Wiring, u: Word, word: Word) -> tuple[Word, Word]:
    """Two more neighbours of u."""
    second, rest = _neighbour(wiring, u, word)
    third, _ = _neighbour(wiring, u, rest)
    return second, third


@njit(cache=True, nogil=True)
def _advance(
    wiring: _Wiring, rule: int, x: Int32s, count: Int32s, key: Word, step: int, until: int, low: int, high: int
) -> tuple[int, int, int]:
    """Take steps until ``until`` or the end; return the step reached and the extreme opinions."""
    # One kernel for all rules: the branch on ``rule`` always goes the same way, so it costs nothing,
    # and rules passed as functions would defeat the cache on disk.
    gap = 1 if rule == _AVERAGE else 0
    while step < until and high - low > gap:
        word = bits(key, np.uint64(2 * step))
        u, v, rest = _meeting(wiring, word)
        own, other = x[u], x[v]
        if rule <= _DIV_EDGE:
            new = np.int32(_div(own, other))
        elif rule == _PULL:
            new = np.int32(other)
        elif rule == _AVERAGE:
            mine, theirs = _halve(own, other, digit(rest, 2)[0])
            new = np.int32(mine)
            x[v] = theirs
            count[np.uint32(other)] -= 1
            count[np.uint32(theirs)] += 1
        else:
            second, third = _further(wiring, u, bits(key, np.uint64(2 * step + 1)))
            new = _median(own, other, x[second]) if rule == _MEDIAN else _majority(other, x[second], x[third])
        # Written even if nothing changed: a branch on that would be mispredicted half of the time.
        x[u] = new
        count[np.uint32(own)] -= 1
        count[np.uint32(new)] += 1
        step += 1
        if count[np.uint32(own)] == 0 or rule == _AVERAGE:
            # No rule leaves the present extremes, so these loops move inwards only: O(range) in all.
            while count[np.uint32(low)] == 0:
                low += 1
            while count[np.uint32(high)] == 0:
                high -= 1
    return step, low, high
