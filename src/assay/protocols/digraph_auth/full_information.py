"""Can any algorithm at all agree on this one-way network? Settled by its views, not by one algorithm's success.

In a full-information protocol every node sends, each round, all it has ever heard, signed. Whatever another
deterministic algorithm decides, it decides as a function of what its node has seen here. So take every execution with
at most one traitor: the correct nodes of one execution must decide alike, which ties their views together; where all
correct inputs agree, they force the decision. If some tied group of views is forced both ways, no algorithm agrees on
the network. If none is, the groups themselves are an algorithm that withstands all traitors considered.

The traitors considered: towards each out-neighbour the traitor plays a correct node of its own, with an input of its
choice, which never hears some of its in-neighbours, or it says nothing at all. That is equivocation, input lies and
omission; nobody's signature is ever forged. A network found impossible is so for good, as far as `rounds` rounds
go; one found possible is so against these traitors.

>>> from assay.protocols.digraph_auth.digraphs import from_edges
>>> impossible(from_edges(3, [(0, 1), (1, 2), (2, 0)]))  # the directed triangle
True
>>> impossible(from_edges(3, [(u, v) for u in range(3) for v in range(3) if u != v]))
False
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from assay.protocols.digraph_auth.digraphs import Digraph, edges, incoming
from assay.sim.compiled import njit

Words = npt.NDArray[np.uint64]
_MIX_A, _MIX_B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_NOTHING = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, nogil=True)
def _mix(word: Any, more: Any) -> Any:
    z = (word ^ (more * _MIX_A)) + _NOTHING
    z = (z ^ (z >> np.uint64(30))) * _MIX_A
    z = (z ^ (z >> np.uint64(27))) * _MIX_B
    return z ^ (z >> np.uint64(31))


@njit(cache=True, nogil=True)
def _advance(before: Any, node: int, own: Any, said: Any, deaf: int) -> Any:
    """A view after one more round: what it was, and what came from each in-neighbour, or that nothing came."""
    view = _mix(own, np.uint64(node + 1))
    for sender in range(before.size):
        if before[node] >> sender & 1:
            heard = said[sender]
            view = _mix(view, _NOTHING if deaf >> sender & 1 else heard)
    return view


@njit(cache=True, nogil=True)
def _execute(before: Any, inputs: int, traitor: int, faces: Any, rounds: int, views: Any) -> None:
    """One execution; `faces[v]` is what the traitor plays towards v: -1 silent, else input + 2 * (whom it ignores)."""
    n = before.size
    now = np.empty(n, np.uint64)
    masks = np.empty(n, np.uint64)  # the traitor's views, one towards each node
    for node in range(n):
        now[node] = _mix(np.uint64(inputs >> node & 1), np.uint64(node + 101))
        if traitor >= 0:
            masks[node] = _mix(np.uint64(max(faces[node], 0) & 1), np.uint64(traitor + 101))
    said = np.empty(n, np.uint64)
    for _ in range(rounds):
        following = now.copy()
        for node in range(n):
            if node == traitor:
                continue
            said[:] = now
            if traitor >= 0:
                said[traitor] = masks[node] if faces[node] >= 0 else _NOTHING
            following[node] = _advance(before, node, now[node], said, 0)
        if traitor >= 0:
            for node in range(n):
                masks[node] = _advance(before, traitor, masks[node], now, faces[node] >> 1 if faces[node] >= 0 else 0)
        now = following
    for node in range(n):
        views[node] = _mix(now[node], np.uint64(node + 1001))


@njit(cache=True, nogil=True)
def _all(before: Any, traitor: int, targets: Any, choices: Any, rounds: int, views: Any, forced: Any) -> None:
    """All executions with this traitor: every input, every face towards every out-neighbour."""
    n = before.size
    faces = np.full(n, -1, np.int64)
    combos = choices.size**targets.size
    row = 0
    for inputs in range(1 << n):
        if traitor >= 0 and inputs >> traitor & 1:
            continue  # its own input does not matter: its faces have inputs of their own
        correct = (1 << n) - 1 - (1 << traitor if traitor >= 0 else 0)
        verdict = 0 if inputs & correct == 0 else (1 if inputs & correct == correct else -1)
        for combo in range(combos):
            rest = combo
            for place in range(targets.size):
                faces[targets[place]] = choices[rest % choices.size]
                rest //= choices.size
            _execute(before, inputs, traitor, faces, rounds, views[row])
            forced[row] = verdict
            row += 1


def executions(graph: Digraph, traitor: int, rounds: int, choices: npt.NDArray[np.int64]) -> tuple[Words, Any]:
    """The views of all nodes at the end of every execution with this traitor (-1: none), and what validity forces."""
    n = len(graph)
    before = np.array(incoming(graph), np.int64)
    targets = np.array([v for u, v in edges(graph) if u == traitor], np.int64)
    count = (1 << n if traitor < 0 else 1 << (n - 1)) * choices.size ** len(targets)
    views, forced = np.empty((count, n), np.uint64), np.empty(count, np.int64)
    _all(before, traitor, targets, choices, rounds, views, forced)
    return views, forced


def faces(graph: Digraph, traitor: int, thorough: bool) -> npt.NDArray[np.int64]:
    """What a traitor may play towards one out-neighbour: silence, or an input and whom it ignores (all or nobody)."""
    ears = incoming(graph)[traitor]
    subsets = [mask for mask in range(1 << len(graph)) if mask & ears == mask] if thorough else [0, ears]
    return np.array([-1, *(bit + 2 * mask for mask in sorted(set(subsets)) for bit in (0, 1))], np.int64)


def impossible(graph: Digraph, *, rounds: int | None = None, thorough: bool = False) -> bool:
    """Whether no deterministic algorithm reaches exact agreement with signatures despite one traitor."""
    n = len(graph)
    rounds = n if rounds is None else rounds
    views, pairs, forced = [], [], []
    for traitor in range(-1, n):
        choices = np.array([-1], np.int64) if traitor < 0 else faces(graph, traitor, thorough)
        found, verdict = executions(graph, traitor, rounds, choices)
        correct = [node for node in range(n) if node != traitor]
        views.append(found[:, correct].ravel())
        pairs.append(len(correct))
        forced.append(verdict)
    return _torn(views, pairs, forced)


def _torn(views: list[Words], widths: list[int], forced: list[Any]) -> bool:
    """Whether views that are tied together, by being held in one execution, are forced to different decisions."""
    keys, numbers = np.unique(np.concatenate(views), return_inverse=True)
    tied_from, tied_to, start = [], [], 0
    heads, verdicts = [], []
    for held, width, verdict in zip(views, widths, forced, strict=True):
        rows = numbers[start : start + held.size].reshape(-1, width)
        start += held.size
        tied_from.append(np.repeat(rows[:, 0], width - 1))
        tied_to.append(rows[:, 1:].ravel())
        heads.append(rows[:, 0])
        verdicts.append(verdict)
    links = np.concatenate(tied_from), np.concatenate(tied_to)
    graph = coo_array((np.ones(links[0].size, np.int8), links), shape=(keys.size, keys.size))
    _, group = connected_components(graph, directed=False)
    place, verdict = group[np.concatenate(heads)], np.concatenate(verdicts)
    zero, one = np.unique(place[verdict == 0]), np.unique(place[verdict == 1])
    return bool(np.intersect1d(zero, one, assume_unique=True).size)
