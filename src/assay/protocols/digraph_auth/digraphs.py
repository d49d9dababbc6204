"""One-way networks: who still reaches whom when some nodes fail, and what that says about agreement.

A digraph is a tuple of bit masks: bit v of row u is the link from u to v. ``reach(graph, v, failed)`` are the nodes
with a path to v that avoids the failed ones, v included.

The conditions, for at most f faults, by name:

- ``1-reach``: reach_u(F) and reach_v(F) meet, for all u, v outside F. Crash faults, synchronous.
- ``2-reach``: reach_u(F) and reach_v(G) meet, for all F, G. Crash faults, asynchronous approximate; and our
  candidate for exact synchronous agreement with signatures.
- ``2-reach+``: they meet in more than f nodes. Our condition for asynchronous approximate agreement with signatures.
- ``3-reach``: reach_u(F ∪ G) and reach_v(F ∪ H) meet. Byzantine faults without signatures.
- ``one-source``: without any F, one component reaches all others, and it has more than 2(f - |F|) nodes.

Tseng and Vaidya, Fault-tolerant consensus in directed graphs, PODC 2015, has the first three for crash and
unauthenticated faults.

>>> triangle = from_edges(3, [(0, 1), (1, 2), (2, 0)])
>>> holds("one-source", triangle, 1), holds("2-reach", triangle, 1)
(True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import combinations, permutations
from math import comb
from pathlib import Path

Digraph = tuple[int, ...]
LARGEST = 24


def from_edges(n: int, edges: Iterable[tuple[int, int]]) -> Digraph:
    """The digraph of these links.

    >>> from_edges(2, [(0, 1)])
    (2, 0)
    """
    rows = [0] * n
    for u, v in edges:
        if not (0 <= u < n and 0 <= v < n) or u == v:
            raise ValueError(f"a link from {u} to {v}; two different nodes from 0 to {n - 1} expected")
        rows[u] |= 1 << v
    return tuple(rows)


def edges(graph: Digraph) -> list[tuple[int, int]]:
    """Its links."""
    return [(u, v) for u, row in enumerate(graph) for v in range(len(graph)) if row >> v & 1]


@cache
def incoming(graph: Digraph) -> tuple[int, ...]:
    """For each node, the mask of those with a link to it."""
    n = len(graph)
    return tuple(sum(1 << u for u in range(n) if graph[u] >> v & 1) for v in range(n))


def _closure(rows: Digraph, start: int, avoided: int) -> int:
    """Everything to be had from a node by following the rows, without the nodes to be avoided."""
    found = frontier = 1 << start
    while frontier:
        following = 0
        for w in members(frontier):
            following |= rows[w]
        frontier = following & ~found & ~avoided
        found |= frontier
    return found


@cache
def reach(graph: Digraph, v: int, failed: int) -> int:
    """The mask of nodes with a path to v that avoids the failed ones (v itself must not be among them)."""
    return _closure(incoming(graph), v, failed)


def members(mask: int) -> Iterator[int]:
    """The nodes of a mask.

    >>> list(members(0b1010))
    [1, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@cache
def sets(n: int, size: int) -> tuple[int, ...]:
    """All sets of at most so many nodes, as masks."""
    return tuple(sum(1 << v for v in chosen) for k in range(size + 1) for chosen in combinations(range(n), k))


def source(graph: Digraph, failed: int) -> int:
    """The component of the rest that reaches all of it; 0 if there is none."""
    found = sources(graph, failed)
    return found[0] if len(found) == 1 else 0


@lru_cache(maxsize=1 << 18)
def sources(graph: Digraph, failed: int) -> tuple[int, ...]:
    """The components of the rest that hear nobody but themselves. Every set that a node hears contains one of them.

    >>> sources(from_edges(3, [(0, 1), (2, 1)]), 0)
    (1, 4)
    """
    before, found = incoming(graph), []
    rest = (1 << len(graph)) - 1 & ~failed
    while rest:
        v = rest.bit_length() - 1
        heard, told = _closure(before, v, failed), _closure(graph, v, failed)
        while upstream := heard & ~told:
            v = upstream.bit_length() - 1
            heard, told = _closure(before, v, failed), _closure(graph, v, failed)
        found.append(heard)
        rest &= ~told
    return tuple(sorted(found))


@dataclass(frozen=True)
class Apart:
    """Two nodes that hear, without some nodes each, sets with too little in common."""

    u: int
    without_u: int
    v: int
    without_v: int

    def hears(self, graph: Digraph) -> tuple[int, int]:
        """What each of them hears, as masks."""
        return reach(graph, self.u, self.without_u), reach(graph, self.v, self.without_v)

    def words(self, graph: Digraph) -> str:
        """In words."""
        ours, theirs = (set(members(mask)) for mask in self.hears(graph))
        left, right = (set(members(mask)) or "{}" for mask in (self.without_u, self.without_v))
        return f"{self.u} without {left} hears {ours}, {self.v} without {right} hears {theirs}"


def _spoiled(graph: Digraph, f: int, least: int, shared: int = 0) -> Apart | None:
    """Two nodes that hear fewer than `least` in common, without the shared nodes and up to f more each.

    The least that nodes can hear are source components, so these are compared and not the nodes.
    """
    without: dict[int, int] = {}
    for failed in sets(len(graph), f):
        for core in sources(graph, failed | shared):
            without.setdefault(core, failed | shared)
    pair = _thinnest(sorted(without, key=int.bit_count), len(graph) - shared.bit_count(), least)
    if pair is None or len(graph) < 2:
        return None
    u = next(members(pair[0]))
    others = [node for node in members(pair[1]) if node != u]
    if others:
        return Apart(u, without[pair[0]], others[0], without[pair[1]])
    return Apart(u, without[pair[0]], int(u == 0), 0)  # one node that hears nobody: too few, whoever the other is


def _thinnest(cores: list[int], n: int, least: int) -> tuple[int, int] | None:
    """The two of these sets, in order of size, that share the fewest of n nodes, if fewer than `least`."""
    found = None
    for place, ours in enumerate(cores):
        for theirs in cores[place:]:
            if ours.bit_count() + theirs.bit_count() >= n + least:
                break  # so large that they share as many, and so do all that follow
            if (common := (ours & theirs).bit_count()) < least:
                found, least = (ours, theirs), common
    return found


def _three_reach(graph: Digraph, f: int) -> Apart | None:
    every = (_spoiled(graph, f, 1, shared) for shared in sets(len(graph), f))
    return next((pair for pair in every if pair is not None), None)


SPOILERS: dict[str, Callable[[Digraph, int], Apart | None]] = {
    "2-reach": lambda graph, f: _spoiled(graph, f, 1),
    "2-reach+": lambda graph, f: _spoiled(graph, f, f + 1),
    "3-reach": _three_reach,
}
MOST_SETS = 3000
"""Sets of f nodes that can be compared with one another, two by two, in some seconds."""


def apart(condition: str, graph: Digraph, f: int) -> Apart | None:
    """What spoils a condition: the two nodes that have least in common, or None where the condition holds.

    >>> apart("2-reach", from_edges(3, [(0, 1), (1, 2), (2, 0)]), 1)
    Apart(u=1, without_u=1, v=2, without_v=2)
    """
    n = len(graph)
    if (many := sum(comb(n, k) for k in range(f + 1))) > MOST_SETS:
        raise ValueError(
            f"{many:,} sets of at most {f} among {n} nodes; fewer traitors or nodes, {MOST_SETS:,} sets, expected"
        )
    return SPOILERS[condition](graph, f)


def _one_source(graph: Digraph, f: int) -> bool:
    return all(
        source(graph, failed).bit_count() > 2 * (f - failed.bit_count())
        for failed in sets(len(graph), f)
        if failed.bit_count() < len(graph)
    )


CONDITIONS: dict[str, Callable[[Digraph, int], bool]] = {
    "1-reach": lambda graph, f: all(len(sources(graph, failed)) < 2 for failed in sets(len(graph), f)),
    "2-reach": lambda graph, f: apart("2-reach", graph, f) is None,
    "2-reach+": lambda graph, f: apart("2-reach+", graph, f) is None,
    "3-reach": lambda graph, f: apart("3-reach", graph, f) is None,
    "one-source": _one_source,
}


def holds(condition: str, graph: Digraph, f: int) -> bool:
    """Whether the graph meets the condition of this name for at most f faults."""
    if condition not in CONDITIONS:
        raise ValueError(f"no condition '{condition}'; one of {', '.join(CONDITIONS)} expected")
    return CONDITIONS[condition](graph, f)


@cache
def all_digraphs(n: int) -> tuple[Digraph, ...]:
    """One of each kind: no two are the same up to the names of the nodes.

    >>> [len(all_digraphs(n)) for n in (1, 2, 3, 4)]
    [1, 3, 16, 218]
    """
    if n > 4:
        raise ValueError(f"there are too many digraphs of {n} nodes to list; at most 4 expected")
    pairs = [(u, v) for u in range(n) for v in range(n) if u != v]
    places = {pair: place for place, pair in enumerate(pairs)}
    moved = [[places[order[u], order[v]] for u, v in pairs] for order in permutations(range(n))]
    seen, kinds = set(), []
    for code in range(1 << len(pairs)):
        if code in seen:
            continue
        bits = [place for place in range(len(pairs)) if code >> place & 1]
        seen |= {sum(1 << move[place] for place in bits) for move in moved}
        kinds.append(from_edges(n, [pairs[place] for place in bits]))
    return tuple(kinds)


def read(path: str | Path) -> Digraph:
    """A network from lines 'from to' with numbers from 0 on; '#' begins a comment. At most 24: all sets are tried.

    Raises:
        ValueError: what is wrong and in which line.

    """
    found: list[tuple[int, int]] = []
    for number, line in enumerate(Path(path).read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        words = line.split("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() and len(word) < 4 for word in words) or words[0] == words[1]:
            raise ValueError(f"{path}:{number}: '{line.strip()[:60]}'; two different node numbers, 'from to', expected")
        found.append((int(words[0]), int(words[1])))
    n = 1 + max((max(pair) for pair in found), default=-1)
    if not 1 <= n <= LARGEST:
        raise ValueError(f"{path}: {n} nodes; 2 to {LARGEST} expected, numbered from 0")
    return from_edges(n, found)
