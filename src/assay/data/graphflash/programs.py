"""What functions compute on a part: PageRank, components, hops, distances, communities, triangles.

A program starts a part's state, and then takes the mail that came for it, letter by letter, computes, and says what
goes to others. With `local` it goes on inside the part until nothing changes there; without, every vertex acts once, as
in vertex-centric systems. State and mail are flat arrays, so that both can be objects of a store; mail is taken in the
order of its senders, so the same mail gives the same bytes, whoever computes and however often.

- Malewicz et al., "Pregel", SIGMOD 2010: supersteps. Tian et al., "From think like a vertex to think like a graph",
  VLDB 2013: running to convergence inside a part.
- Zhang et al., "Maiter", 2014: PageRank as residuals that are added up in any order.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.engine.sorted_sets import common
from assay.data.graphflash.parts import Floats, Int32s, Int64s, Network, Part
from assay.data.interface import Buffer
from assay.sim.compiled import njit

State = dict[str, NDArray[Any]]
HOLD = 0.02  # PageRank pushes inside a part down to this share of the largest residual, and leaves the rest for later


class Params(msgspec.Struct, frozen=True):
    """What a program is told besides the graph."""

    n: int = 0
    root: int = 0
    damping: float = 0.85
    least: float = 0.0  # the residual below which PageRank lets a vertex be
    rounds: int = 20  # of label propagation


class Mail(NamedTuple):
    """Values for vertices: of the receiver's own (by number), or what the sender's vertex is now."""

    keys: Int64s
    values: Floats


class Letter(NamedTuple):
    """Mail on its way to a group: keys, then the bits of their values, in one array."""

    to: int
    numbers: Int64s

    @classmethod
    def of(cls, to: int, keys: Int64s, values: Floats) -> Letter:
        """Seal it."""
        return cls(to, np.concatenate([keys, values.view(np.int64)]))


def opened(data: Buffer | Int64s) -> Mail:
    """What is in a letter, without a copy."""
    numbers = np.frombuffer(data, np.int64)
    half = len(numbers) // 2
    return Mail(numbers[:half], numbers[half:].view(np.float64))


class Turn(NamedTuple):
    """The outcome of one superstep in one part: mail, whether it wants another turn without any, edges looked at."""

    out: list[Letter]
    active: bool
    scanned: int


@dataclass(frozen=True)
class Program:
    """A name, what graph it wants, and its three functions."""

    name: str
    symmetric: bool  # edges count in both directions
    start: Callable[[Part, Params], State]
    absorb: Callable[[Part, State, Mail], None]  # one letter
    turn: Callable[[Part, State, int, Params, bool], Turn]
    value: str  # the array of the state that is the answer
    weighted: bool = False


def _sent(part: Part, hit: NDArray[Any], values: Floats) -> list[Letter]:
    """Letters with the values of the far vertices that were hit, a group at a time: all at once would be held twice."""
    bounds = [0, *(1 + np.flatnonzero(part.far_part[1:] != part.far_part[:-1])).tolist(), len(part.far)]
    letters = []
    for a, b in pairwise(bounds):
        which = np.flatnonzero(hit[a:b])
        if len(which):
            letters.append(Letter.of(int(part.far_part[a]), part.far[a:b][which], values[a:b][which]))
    return letters


def _dealt(to: Int32s, keys: Int64s, values: Floats) -> list[Letter]:
    """Letters of mail that is in the order of its receivers."""
    groups, firsts = np.unique(to, return_index=True)
    bounds = [*firsts.tolist(), len(to)]
    cuts = zip(groups.tolist(), bounds[:-1], bounds[1:], strict=True)
    return [Letter.of(group, keys[a:b], values[a:b]) for group, a, b in cuts]


# ------------------------------------------------------------- the smallest value wins: hops, distances, components


def _start_least(part: Part, params: Params) -> State:
    value = np.full(len(part.own), np.inf)
    fresh = np.zeros(len(part.own), np.uint8)
    here = np.searchsorted(part.own, params.root)
    if here < len(part.own) and part.own[here] == params.root:
        value[here], fresh[here] = 0.0, 1
    return {"value": value, "told": np.full(len(part.far), np.inf), "fresh": fresh}


def _start_components(part: Part, params: Params) -> State:
    own = part.own.astype(np.float64)
    return {"value": own, "told": part.far.astype(np.float64), "fresh": np.ones(len(own), np.uint8)}


def _take_least(part: Part, state: State, mail: Mail) -> None:
    _absorb_least(np.searchsorted(part.own, mail.keys), mail.values, state["value"], state["fresh"])


def _turn_least(step_cost: float | None) -> Callable[[Part, State, int, Params, bool], Turn]:
    def turn(part: Part, state: State, step: int, params: Params, local: bool) -> Turn:
        value, told, fresh = state["value"], state["told"], state["fresh"]
        cost = part.weight if step_cost is None else np.empty(0)
        each = 1.0 if step_cost is None else step_cost
        hit, scanned = _relax(part.indptr, part.near, cost, each, value, fresh, told, local)
        return Turn(_sent(part, hit, told), bool(fresh.any()), int(scanned))

    return turn


@njit(cache=True, nogil=True)
def _absorb_least(places, values, value, fresh):
    for i in range(len(places)):
        v = places[i]
        if values[i] < value[v]:
            value[v] = values[i]
            fresh[v] = 1


@njit(cache=True, nogil=True)
def _relax(indptr, near, cost, each, value, fresh, told, local):
    """Let every fresh vertex offer its neighbours a way; with `local` also those that become fresh meanwhile."""
    k = len(value)
    hit = np.zeros(len(told), np.uint8)
    queue = np.empty(k + 1, np.int64)
    head, tail = 0, 0
    for v in range(k):
        if fresh[v]:
            queue[tail] = v
            tail += 1
    last, scanned = tail, 0
    if not local:
        fresh[:] = 0
    while head != tail and (local or head != last):
        u = queue[head]
        head = head + 1 if head < k else 0
        if local:
            fresh[u] = 0
        scanned += indptr[u + 1] - indptr[u]
        for e in range(indptr[u], indptr[u + 1]):
            v = near[e]
            offer = value[u] + (cost[e] if len(cost) else each)
            if v >= k:
                if offer < told[v - k]:
                    told[v - k] = offer
                    hit[v - k] = 1
            elif offer < value[v]:
                value[v] = offer
                if not fresh[v]:
                    fresh[v] = 1
                    if local:
                        queue[tail] = v
                        tail = tail + 1 if tail < k else 0
    return hit, scanned


# ---------------------------------------------------------------------------------------------------------- PageRank


def _start_rank(part: Part, params: Params) -> State:
    rest = np.full(len(part.own), (1 - params.damping) / params.n)
    return {"value": np.zeros(len(part.own)), "rest": rest, "owed": np.zeros(len(part.far))}


def _take_rank(part: Part, state: State, mail: Mail) -> None:
    _absorb_sum(np.searchsorted(part.own, mail.keys), mail.values, state["rest"])


def _turn_rank(part: Part, state: State, step: int, params: Params, local: bool) -> Turn:
    rest, owed = state["rest"], state["owed"]
    # Pushing what is about to be joined by much more is wasted: the mail of the others is still to come.
    floor = max(params.least, HOLD * float(rest.max(initial=0.0)))
    scanned = _push(part.indptr, part.near, state["value"], rest, owed, params.damping, floor, local)
    due = owed > params.least
    out = _sent(part, due, owed)
    owed[due] = 0.0
    return Turn(out, bool((rest > params.least).any()), int(scanned))


@njit(cache=True, nogil=True)
def _absorb_sum(places, values, total):
    for i in range(len(places)):
        total[places[i]] += values[i]


@njit(cache=True, nogil=True)
def _push(indptr, near, value, rest, owed, damping, floor, local):
    """Turn residuals above the floor into rank, and hand the damped rest on to neighbours."""
    k = len(value)
    queue = np.empty(k + 1, np.int64)
    waits = np.zeros(k, np.uint8)
    head, tail, scanned = 0, 0, 0
    for v in range(k):
        if rest[v] > floor:
            queue[tail] = v
            waits[v] = 1
            tail += 1
    last = tail
    taken = rest.copy() if not local else rest  # each vertex once: what comes meanwhile is for the next superstep
    while head != tail and (local or head != last):
        u = queue[head]
        head = head + 1 if head < k else 0
        waits[u] = 0
        moved = taken[u]
        value[u] += moved
        rest[u] -= moved
        degree = indptr[u + 1] - indptr[u]
        if degree == 0:
            continue
        scanned += degree
        share = damping * moved / degree
        for e in range(indptr[u], indptr[u + 1]):
            v = near[e]
            if v >= k:
                owed[v - k] += share
            else:
                rest[v] += share
                if local and not waits[v] and rest[v] > floor:
                    waits[v] = 1
                    queue[tail] = v
                    tail = tail + 1 if tail < k else 0
    return scanned


# ------------------------------------------------------------------------------------------------- label propagation


def _start_labels(part: Part, params: Params) -> State:
    return {"value": part.own.astype(np.float64), "others": part.far.astype(np.float64)}


def _take_labels(part: Part, state: State, mail: Mail) -> None:
    order = np.argsort(part.far)
    state["others"][order[np.searchsorted(part.far, mail.keys, sorter=order)]] = mail.values


def _turn_labels(part: Part, state: State, step: int, params: Params, local: bool) -> Turn:
    """All vertices at once, once a superstep: that is what this algorithm is, so nothing runs ahead inside a part."""
    if step >= params.rounds:
        return Turn([], False, 0)
    before = state["value"]
    labels = np.concatenate([before, state["others"]])
    state["value"], changed = _vote(part.indptr, part.near, labels, len(part.own))
    to, which = _neighbours(part.indptr, part.near, part.far_part, np.flatnonzero(changed), len(part.own))
    order = np.lexsort((which, to))
    out = _dealt(to[order], part.own[which[order]], state["value"][which[order]])
    return Turn(out, bool(changed.any()) and step + 1 < params.rounds, len(part.near))


@njit(cache=True, nogil=True)
def _vote(indptr, near, labels, k):
    """The commonest label among neighbours; of several the vertex's own, else the smallest."""
    new = labels[:k].copy()
    changed = np.zeros(k, np.uint8)
    for u in range(k):
        around = np.sort(labels[near[indptr[u] : indptr[u + 1]]])
        best, most, run = new[u], 0, 0
        for i in range(len(around)):
            run = run + 1 if i and around[i] == around[i - 1] else 1
            if run > most or (run == most and around[i] == labels[u]):
                best, most = around[i], run
        if best != new[u]:
            new[u], changed[u] = best, 1
    return new, changed


@njit(cache=True, nogil=True)
def _neighbours(indptr, near, far_part, which, k):
    """(group, vertex) for each group in which some of these vertices have neighbours, once each."""
    count = 0
    for u in which:
        count += indptr[u + 1] - indptr[u]
    to, whose = np.empty(count, np.int32), np.empty(count, np.int64)
    seen = np.full(1 + (far_part.max() if len(far_part) else 0), -1, np.int64)
    found = 0
    for u in which:
        for e in range(indptr[u], indptr[u + 1]):
            if near[e] >= k and seen[far_part[near[e] - k]] != u:
                seen[far_part[near[e] - k]] = u
                to[found], whose[found] = far_part[near[e] - k], u
                found += 1
    return to[:found], whose[:found]


# --------------------------------------------------------------------------------------------------------- triangles


def _start_triangles(part: Part, params: Params) -> State:
    return {"value": np.zeros(len(part.own))}


def _larger(part: Part) -> tuple[Int64s, Int64s, Int64s]:
    """Edges to neighbours of a larger degree alone, and all vertices' numbers."""
    numbers = np.concatenate([part.own, part.far])
    rank = np.concatenate([part.degree, part.far_degree]).astype(np.int64)
    return *_upward(part.indptr, part.near, rank, numbers), numbers


def _take_wedges(part: Part, state: State, mail: Mail) -> None:
    """Which of another vertex's larger neighbours are ours, and joined to one more of them?"""
    _close_far(*_larger(part), part.own, mail.keys, mail.values, state["value"])


def _turn_triangles(part: Part, state: State, step: int, params: Params, local: bool) -> Turn:
    """Every triangle is met once: at its middle vertex, in the order of degrees.

    Each vertex tells its larger neighbours to those of them that lie elsewhere; they look which of these are theirs.
    """
    if step:
        return Turn([], False, 0)
    indptr, larger, numbers = _larger(part)
    scanned = _close_near(indptr, larger, numbers, len(part.own), state["value"])
    to, keys, values = _wedges(indptr, larger, numbers, part.far_part, len(part.own))
    order = np.argsort(to, kind="stable")
    return Turn(_dealt(to[order], keys[order], values[order]), False, int(scanned))


@njit(cache=True, nogil=True)
def _upward(indptr, near, rank, numbers):
    """Edges to neighbours of a larger degree (then number) alone, by the neighbours' numbers."""
    kept = np.zeros(len(indptr), np.int64)
    larger = np.empty(len(near), np.int64)
    at = 0
    for u in range(len(indptr) - 1):
        first = at
        for e in range(indptr[u], indptr[u + 1]):
            v = near[e]
            if rank[v] > rank[u] or (rank[v] == rank[u] and numbers[v] > numbers[u]):
                larger[at] = v
                at += 1
        order = np.argsort(numbers[larger[first:at]])
        larger[first:at] = larger[first:at][order]
        kept[u + 1] = at
    return kept, larger[:at]


@njit(cache=True, nogil=True)
def _close_near(indptr, larger, numbers, k, value):
    scanned = 0
    for u in range(k):
        mine = numbers[larger[indptr[u] : indptr[u + 1]]]
        for v in larger[indptr[u] : indptr[u + 1]]:
            if v < k:
                value[v] += common(mine, numbers[larger[indptr[v] : indptr[v + 1]]])
                scanned += len(mine) + indptr[v + 1] - indptr[v]
    return scanned


@njit(cache=True, nogil=True)
def _wedges(indptr, larger, numbers, far_part, k):
    """(group, vertex, larger neighbour) for each group that has one of a vertex's larger neighbours."""
    groups = 1 + (far_part.max() if len(far_part) else 0)
    to, keys, values = np.empty(0, np.int32), np.empty(0, np.int64), np.empty(0)
    for fill in range(2):  # count, then write
        found = 0
        seen = np.full(groups, -1, np.int64)
        for u in range(k):
            for v in larger[indptr[u] : indptr[u + 1]]:
                if v < k or seen[far_part[v - k]] == u:
                    continue
                seen[far_part[v - k]] = u
                for w in larger[indptr[u] : indptr[u + 1]]:
                    if fill:
                        to[found], keys[found], values[found] = far_part[v - k], numbers[u], numbers[w]
                    found += 1
        if not fill:
            to, keys, values = np.empty(found, np.int32), np.empty(found, np.int64), np.empty(found)
    return to, keys, values


@njit(cache=True, nogil=True)
def _close_far(indptr, larger, numbers, own, keys, values, value):
    first = 0
    while first < len(keys):
        stop = first
        while stop < len(keys) and keys[stop] == keys[first]:
            stop += 1
        theirs = values[first:stop].astype(np.int64)
        for w in theirs:
            at = np.searchsorted(own, w)
            if at < len(own) and own[at] == w:
                value[at] += common(theirs, numbers[larger[indptr[at] : indptr[at + 1]]])
        first = stop


PROGRAMS = {
    one.name: one
    for one in (
        Program("pagerank", False, _start_rank, _take_rank, _turn_rank, "value"),
        Program("components", True, _start_components, _take_least, _turn_least(0.0), "value"),
        Program("bfs", False, _start_least, _take_least, _turn_least(1.0), "value"),
        Program("sssp", False, _start_least, _take_least, _turn_least(None), "value", weighted=True),
        Program("labels", True, _start_labels, _take_labels, _turn_labels, "value"),
        Program("triangles", True, _start_triangles, _take_wedges, _turn_triangles, "value"),
    )
}


def least_residual(tolerance: float, damping: float, n: int, boundary: int) -> float:
    """The residual to leave at each vertex and at each boundary so that ranks are off by `tolerance` in all at most.

    Residuals that are left cost 1 / (1 - damping) of themselves in rank; ranks before they are made to sum to one sum
    to at least 1 - damping; and making them so doubles an error at most.
    """
    return tolerance * (1 - damping) ** 2 / (2 * max(n + boundary, 1))


def finished(program: str, value: Floats) -> NDArray[Any]:
    """The answer as people expect it: ranks sum to one, an unreachable vertex is -1 hops away and infinitely far."""
    if program == "pagerank":
        total = float(value.sum())
        return value / total if total else value
    if program == "bfs":
        return np.where(np.isinf(value), -1, value).astype(np.int64)
    return value if program == "sssp" else value.astype(np.int64)


def wanted(program: Program, graph: Network) -> Network:
    """The graph as a program wants it; BadInput-like ValueError where it cannot use it."""
    if program.weighted and graph.weights is not None and len(graph.weights) and float(graph.weights.min()) < 0:
        raise ValueError(f"a weight of {float(graph.weights.min()):g}; distances need weights of 0 or more")
    plain = graph if program.weighted else graph._replace(weights=None)
    return plain.symmetric if program.symmetric else plain
