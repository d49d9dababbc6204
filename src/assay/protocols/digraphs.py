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
from functools import cache
from itertools import combinations, permutations
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


def incoming(graph: Digraph) -> tuple[int, ...]:
    """For each node, the mask of those with a link to it."""
    n = len(graph)
    return tuple(sum(1 << u for u in range(n) if graph[u] >> v & 1) for v in range(n))


@cache
def reach(graph: Digraph, v: int, failed: int) -> int:
    """The mask of nodes with a path to v that avoids the failed ones (v itself must not be among them)."""
    before = incoming(graph)
    found = frontier = 1 << v
    while frontier:
        following = 0
        for w in members(frontier):
            following |= before[w]
        frontier = following & ~found & ~failed
        found |= frontier
    return found


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
    rest = [v for v in range(len(graph)) if not failed >> v & 1]
    common = -1
    for v in rest:
        common &= reach(graph, v, failed)
    return common if rest else 0


def _reaches(graph: Digraph, f: int, second: bool, least: int) -> bool:
    n = len(graph)
    found = {(v, failed): reach(graph, v, failed) for v in range(n) for failed in sets(n, f) if not failed >> v & 1}
    items = list(found.items())
    for place, ((u, first), ours) in enumerate(items):
        for (v, other), theirs in items[place:]:
            if (second or first == other) and u != v and (ours & theirs).bit_count() < least:
                return False
    return True


def _three_reach(graph: Digraph, f: int) -> bool:
    n = len(graph)
    for shared in sets(n, f):
        grown = {shared | more for more in sets(n, f)}
        found = [(v, reach(graph, v, failed)) for failed in grown for v in range(n) if not failed >> v & 1]
        if any(u != v and not ours & theirs for (u, ours), (v, theirs) in combinations(found, 2)):
            return False
    return True


def _one_source(graph: Digraph, f: int) -> bool:
    return all(
        source(graph, failed).bit_count() > 2 * (f - failed.bit_count())
        for failed in sets(len(graph), f)
        if failed.bit_count() < len(graph)
    )


CONDITIONS: dict[str, Callable[[Digraph, int], bool]] = {
    "1-reach": lambda graph, f: _reaches(graph, f, second=False, least=1),
    "2-reach": lambda graph, f: _reaches(graph, f, second=True, least=1),
    "2-reach+": lambda graph, f: _reaches(graph, f, second=True, least=f + 1),
    "3-reach": _three_reach,
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
