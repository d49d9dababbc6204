"""Who else balances experts: nobody, EPLB from history or from the very microbatch, LPLB, and a gate that is forced.

EPLB (DeepSeek's, as SGLang, vLLM and Megatron use it) fills all places, `slots` a rank beside the experts' own, with
copies of the experts that have the most load a copy, packs the copies longest first, and spreads an expert's tokens
evenly over its copies. With several nodes the hierarchical variant first packs groups of experts to nodes. It looks at
the past: `window` microbatches, anew every `every`. `Eplb+` is shown the very microbatch to be balanced; since nobody
can move experts with their optimizers in its midst, they stay, and only the slots are filled anew.
LPLB keeps at most one copy beside each expert's own, placed from history, and divides every microbatch's tokens between
the two by a linear programme.

>>> load = np.array([[6, 0, 1, 1], [6, 0, 1, 1]])
>>> hosts = Hosts.dealt(experts=4, ranks=2, slots=1)
>>> Nobody().rebalance(load, hosts).load().tolist(), EplbPlus().rebalance(load, hosts).load().tolist()
([12, 4], [8, 8])
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.packing import lpt, replicas
from assay.sim.solvers import milp
from assay.training.interface import Hosts, Ints, Shares


@dataclass
class Nobody:
    """Every token is computed where its expert lives."""

    key = "none"

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """All to the main ranks."""
        tokens = np.zeros((*load.shape, hosts.ranks), np.int64)
        tokens[:, np.arange(load.shape[1]), hosts.main] = load
        return Shares(tokens)


@dataclass
class Ideal:
    """The gate is overruled: every source spreads its tokens evenly over all experts. No model could be trained so."""

    key = "ideal"

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """Even shares of what each source has, what is left over dealt out in turn."""
        experts = load.shape[1]
        each, rest = np.divmod(load.sum(axis=1, keepdims=True), experts)
        turn = (np.arange(experts)[None, :] - np.cumsum(rest, axis=0) + rest) % experts
        return Nobody().rebalance(each + (turn < rest), hosts)


@dataclass
class Eplb:
    """Copies of hot experts, all experts placed from history; tokens go evenly to the copies.

    Args:
        window: microbatches that are looked back at.
        every: microbatches for which a placement stands.
        nodes: above 1, groups of experts are first packed to so many nodes (the hierarchical variant).
    """

    key = "eplb"
    window: int = 8
    every: int = 1
    nodes: int = 1
    _past: deque[NDArray[np.float64]] = field(default_factory=deque, init=False, repr=False)
    _copies: Ints | None = field(default=None, init=False, repr=False)
    _age: int = field(default=0, init=False, repr=False)

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """Balance by what was seen so far; without a past every token stays where its expert lives."""
        total = load.sum(axis=0).astype(np.float64)
        if self._past and (self._copies is None or self._age >= self.every):
            self._copies, self._age = placed(np.mean(self._past, axis=0), hosts, self.nodes), 0
        copies, self._age = self._copies, self._age + 1
        self._past.append(total)
        if len(self._past) > self.window:
            self._past.popleft()
        return Nobody().rebalance(load, hosts) if copies is None else Shares(_dealt(load, copies))


@dataclass
class EplbPlus:
    """EPLB on the exact counts of each microbatch: hot experts' copies into the slots, tokens evenly to the copies.

    Args:
        moves: experts may leave their ranks too, as if weights and optimizers could be anywhere at once.
    """

    key = "eplb+"
    moves: bool = False

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """Place for these very counts."""
        total = load.sum(axis=0).astype(np.float64)
        return Shares(_dealt(load, placed(total, hosts) if self.moves else beside(total, hosts)))


def beside(load: NDArray[np.float64], hosts: Hosts) -> Ints:
    """Copies [expert, rank] where experts stay at home: EPLB's number of copies, the heaviest to the lightest rank.

    >>> beside(np.array([8.0, 2.0, 1.0, 1.0]), Hosts.dealt(experts=4, ranks=2, slots=1)).tolist()
    [[2, 1], [1, 0], [0, 1], [0, 1]]
    """
    count = replicas(load, len(load) + hosts.ranks * hosts.slots)
    each = load / count
    order = np.argsort(-each, kind="stable")
    return _beside(each, order, count, hosts.main, hosts.ranks, hosts.slots)


@njit(cache=True, nogil=True)
def _beside(each: NDArray[np.float64], order: Ints, count: Ints, main: Ints, ranks: int, slots: int) -> Ints:
    copies, held = np.zeros((len(each), ranks), np.int64), np.zeros(ranks)
    free = np.full(ranks, slots, np.int64)
    for e in range(len(each)):
        copies[e, main[e]] = 1
        held[main[e]] += each[e]
    for e in order:
        for _ in range(count[e] - 1):
            best = -1
            for rank in range(ranks):  # where it is already only if nobody else has room
                new, old = copies[e, rank] == 0, best >= 0 and copies[e, best] == 0
                if free[rank] > 0 and (best < 0 or (new and not old) or (new == old and held[rank] < held[best])):
                    best = rank
            copies[e, best] += 1
            held[best] += each[e]
            free[best] -= 1
    return copies


def placed(load: NDArray[np.float64], hosts: Hosts, nodes: int = 1) -> Ints:
    """How many copies of each expert every rank holds, `[expert, rank]`, by EPLB's rule.

    >>> placed(np.array([8.0, 2.0, 1.0, 1.0]), Hosts.dealt(experts=4, ranks=2, slots=1)).tolist()
    [[2, 1], [0, 1], [0, 1], [1, 0]]
    """
    experts, ranks = len(load), hosts.ranks
    copies = np.zeros((experts, ranks), np.int64)
    node_of = lpt(load, nodes, most=experts // nodes)
    width = ranks // nodes
    for node in range(nodes):
        mine = np.flatnonzero(node_of == node)
        places = width * (experts // ranks + hosts.slots)
        count = replicas(load[mine], places)
        items = np.repeat(mine, count)
        where = lpt(np.repeat(load[mine] / count, count), width, most=places // width)
        np.add.at(copies, (items, node * width + where), 1)
    return copies


@njit(cache=True, nogil=True)
def _dealt(load: Ints, copies: Ints) -> Ints:
    """Each source's tokens of an expert over its copies, whole tokens; one more each in turn."""
    sources, (experts, ranks) = len(load), copies.shape
    tokens = np.zeros((sources, experts, ranks), np.int64)
    for e in range(experts):
        where = np.empty(copies[e].sum(), np.int64)
        count = 0
        for g in range(ranks):
            where[count : count + copies[e, g]] = g
            count += copies[e, g]
        turn = 0
        for r in range(sources):
            each, rest = load[r, e] // count, load[r, e] % count
            for place in range(count):
                tokens[r, e, where[place]] += each
            for place in range(turn, turn + rest):
                tokens[r, e, where[place % count]] += 1
            turn = (turn + rest) % count
    return tokens


@dataclass
class Lplb:
    """At most one copy beside each expert's own, placed from history; a linear programme divides every microbatch.

    Args:
        window: microbatches that are looked back at.
    """

    key = "lplb"
    window: int = 8
    _past: deque[NDArray[np.float64]] = field(default_factory=deque, init=False, repr=False)

    def rebalance(self, load: Ints, hosts: Hosts) -> Shares:
        """The least load of the busiest rank, where expert e may keep or pass on any part of its tokens."""
        total = load.sum(axis=0).astype(np.float64)
        plain = Nobody().rebalance(load, hosts)
        if self._past:
            twin = twins(np.mean(self._past, axis=0), hosts)
            plain = _divided(load, total, twin, hosts)
        self._past.append(total)
        if len(self._past) > self.window:
            self._past.popleft()
        return plain


def twins(load: NDArray[np.float64], hosts: Hosts) -> Ints:
    """The rank that holds the one copy of each expert, -1 where it has none: hottest first, to the lightest rank.

    >>> twins(np.array([8.0, 2.0, 1.0, 1.0]), Hosts.dealt(experts=4, ranks=2, slots=1)).tolist()
    [1, -1, 0, -1]
    """
    found, free = np.full(len(load), -1), np.full(hosts.ranks, hosts.slots)
    held = np.bincount(hosts.main, weights=load, minlength=hosts.ranks)
    for e in np.argsort(-load, kind="stable"):
        open_to = (free > 0) & (np.arange(hosts.ranks) != hosts.main[e])
        if open_to.any():
            best = int(np.argmin(np.where(open_to, held, np.inf)))
            found[e] = best
            free[best] -= 1
            held[best] += load[e] / 2
            held[hosts.main[e]] -= load[e] / 2
    return found


def _divided(load: Ints, total: NDArray[np.float64], twin: Ints, hosts: Hosts) -> Shares:
    moved = np.flatnonzero(twin >= 0)
    # Variables: the busiest rank's load, then the tokens that each twin takes over.
    rows = np.zeros((hosts.ranks, 1 + len(moved)))
    rows[:, 0] = -1.0
    rows[twin[moved], 1 + np.arange(len(moved))] += 1.0
    rows[hosts.main[moved], 1 + np.arange(len(moved))] -= 1.0
    held = np.bincount(hosts.main, weights=total, minlength=hosts.ranks)
    cost = np.zeros(1 + len(moved))
    cost[0] = 1.0
    most = np.concatenate([[np.inf], total[moved]])
    found = milp(cost, rows, np.full(hosts.ranks, -np.inf), -held, np.zeros(len(cost), bool), most=most)
    tokens = Nobody().rebalance(load, hosts).tokens
    if found.x is not None:
        share = np.divide(found.x[1:], total[moved], out=np.zeros(len(moved)), where=total[moved] > 0)
        passed = np.diff(np.floor(np.cumsum(load[:, moved], axis=0) * share + 0.5), axis=0, prepend=0).astype(np.int64)
        passed = np.minimum(passed, load[:, moved])
        tokens[:, moved, hosts.main[moved]] -= passed
        tokens[:, moved, twin[moved]] += passed
    return Shares(tokens)
