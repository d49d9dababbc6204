"""Undirected simple graphs in compressed rows, the families that theory speaks of, and how well they mix.

A graph is a :class:`CSR` (two arrays, as SciPy and every solver know them) or :class:`Complete`,
which needs no arrays at all. Both answer ``n``, ``m``, ``degrees``, ``degree``, ``gamma`` and
``is_connected``.

>>> ring = cycle(6)
>>> ring.n, ring.m, ring.degree, conductance(ring).high
(6, 6, 2, 0.3333333333333333)

- Chung, "Spectral Graph Theory", 1997: the normalised Laplacian, Cheeger's inequality, sweep cuts.
- Bollobás and Leader, "Edge-isoperimetric inequalities in the grid", Combinatorica 1991: the torus.
- Steger and Wormald, "Generating random regular graphs quickly", 1999; McKay and Wormald, "Uniform
  generation of random regular graphs of moderate degree", 1990: pairings and switchings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from assay.sim.compiled import njit
from assay.sim.random import Word, below, bits, key, stream

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]

_ENUMERATE = 20  # up to here every cut is looked at
_DENSE = 400  # up to here LAPACK is quicker than Lanczos
_FILL = 2 * 10**7  # entries of a factorised band that still pay


@dataclass(frozen=True, eq=False)
class CSR:
    """The neighbours of node u are ``indices[indptr[u]:indptr[u + 1]]``, ascending; each edge stands in two rows.

    ``phi`` is the conductance in closed form where the family that built the graph has one.
    Build graphs with the ``from_`` methods or a family: the fields are taken as they are.
    """

    indptr: Int64s
    indices: Int32s
    phi: float | None = None

    @classmethod
    def from_edges(cls, edges: npt.ArrayLike, n: int | None = None, phi: float | None = None) -> CSR:
        """Build from an (edges, 2) array of node numbers; directions, repeats and self-loops are dropped.

        ``n`` defaults to the largest number + 1. Loops go quietly because published edge lists
        have them and a walk to "a neighbour" never takes them.

        >>> CSR.from_edges([(0, 1), (1, 0), (1, 2), (2, 2)]).indices.tolist()
        [1, 0, 2, 1]
        """
        pairs = np.asarray(edges)
        if pairs.size == 0:
            pairs = np.empty((0, 2), np.int64)
        if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu":
            raise ValueError(f"edges are {pairs.dtype} of shape {pairs.shape}; integers of shape (edges, 2) expected")
        least, top = int(pairs.min(initial=0)), int(pairs.max(initial=-1))
        n = top + 1 if n is None else n
        if least < 0 or top >= n or n >= 2**31:
            raise ValueError(f"node numbers run from {least} to {top}; 0 to n - 1 expected, with n = {n} below 2**31")
        u, v = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)
        codes = np.concatenate([u * n + v, v * n + u])[np.tile(u != v, 2)]
        codes.sort()
        codes = codes[np.diff(codes, prepend=-1) > 0]
        rows, columns = np.divmod(codes, max(n, 1))
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=n))])
        return cls(indptr.astype(np.int64), columns.astype(np.int32), phi)

    @classmethod
    def from_scipy(cls, matrix: Any) -> CSR:
        """Build from a square SciPy sparse matrix: an entry other than zero, in either triangle, is an edge.

        >>> from scipy.sparse import coo_array
        >>> CSR.from_scipy(coo_array(([1.0, 0.0], ([0, 1], [1, 2])), shape=(3, 3))).m
        1
        """
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"the matrix has shape {matrix.shape}; an adjacency matrix is square")
        entries = matrix.tocoo()
        kept = entries.data != 0
        rows, columns = entries.coords if hasattr(entries, "coords") else (entries.row, entries.col)
        return cls.from_edges(np.stack([rows[kept], columns[kept]], axis=1).astype(np.int64), matrix.shape[0])

    @classmethod
    def from_networkx(cls, graph: Any) -> CSR:
        """Build from a NetworkX graph (or what walks like one: it iterates nodes, and has ``edges``).

        Node i is the i-th that the graph iterates; directions and parallel edges are dropped.
        """
        number = {node: i for i, node in enumerate(graph)}
        ends = np.fromiter((number[node] for edge in graph.edges() for node in edge[:2]), np.int64)
        return cls.from_edges(ends.reshape(-1, 2), len(number))

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.indptr.size - 1

    @property
    def m(self) -> int:
        """The number of edges."""
        return self.indices.size // 2

    @cached_property
    def degrees(self) -> Int64s:
        """The number of neighbours of each node."""
        return np.diff(self.indptr)

    @property
    def degree(self) -> int | None:
        """The degree of every node, or None where degrees differ."""
        return _common(self.degrees)

    @property
    def gamma(self) -> float:
        """Average degree over least degree: 1 for regular graphs, infinite where a node is isolated."""
        least = int(self.degrees.min())
        return 2 * self.m / self.n / least if least else float("inf")

    @cached_property
    def is_connected(self) -> bool:
        """Whether every node reaches every other."""
        from scipy.sparse.csgraph import connected_components

        count, _ = connected_components(self.to_scipy(), directed=False)
        return bool(count == 1)

    def neighbours(self, u: int) -> Int32s:
        """Return the neighbours of node u, ascending."""
        return self.indices[self.indptr[u] : self.indptr[u + 1]]

    def to_scipy(self) -> csr_array:
        """Return the 0/1 adjacency matrix."""
        from scipy.sparse import csr_array

        return csr_array((np.ones(self.indices.size), self.indices, self.indptr), shape=(self.n, self.n))


@dataclass(frozen=True)
class Complete:
    """Every node is a neighbour of every other, without the n**2 entries that would say so.

    >>> Complete(10**6).m
    499999500000
    """

    n: int

    def __post_init__(self) -> None:
        _at_least("n", self.n, 1)

    @property
    def m(self) -> int:
        """The number of edges."""
        return self.n * (self.n - 1) // 2

    @property
    def degrees(self) -> Int64s:
        """The number of neighbours of each node."""
        return np.full(self.n, self.n - 1, np.int64)

    @property
    def degree(self) -> int:
        """The degree of every node."""
        return self.n - 1

    @property
    def gamma(self) -> float:
        """Average degree over least degree."""
        return 1.0

    @property
    def is_connected(self) -> bool:
        """Whether every node reaches every other."""
        return True

    @property
    def phi(self) -> float | None:
        """The conductance: an even split has the fewest crossing edges for its size."""
        return (self.n - self.n // 2) / (self.n - 1) if self.n > 1 else None


Graph = CSR | Complete


def as_graph(source: Any) -> Graph:
    """Take a graph in whichever form the caller has it: ours, NetworkX, a SciPy sparse matrix, or an edge array.

    >>> from scipy.sparse import eye_array
    >>> as_graph(eye_array(3, k=1)).m, as_graph([(0, 1), (1, 2)]).m, as_graph(complete(4)).m
    (2, 2, 6)
    """
    if isinstance(source, CSR | Complete):
        return source
    if hasattr(source, "tocoo"):
        return CSR.from_scipy(source)
    if hasattr(source, "edges"):
        return CSR.from_networkx(source)
    return CSR.from_edges(source)


def _common(degrees: Int64s) -> int | None:
    first = int(degrees[0]) if degrees.size else 0
    return first if bool((degrees == first).all()) else None


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name} is {value}; at least {least} expected")


# ------------------------------------------------------------------------------------------ families


def complete(n: int) -> Complete:
    """Return the complete graph on n nodes.

    >>> complete(4).m
    6
    """
    return Complete(n)


def cycle(n: int) -> CSR:
    """Return the ring of n nodes; half of it is cut off by two edges.

    >>> cycle(5).neighbours(0).tolist()
    [1, 4]
    """
    _at_least("n", n, 3)
    u = np.arange(n)
    return CSR.from_edges(np.stack([u, (u + 1) % n], axis=1), n, phi=1 / (n // 2))


def torus(side: int) -> CSR:
    """Return the side x side grid whose borders meet: 4-regular, node (i, j) is i * side + j.

    >>> torus(4).degree, torus(4).m
    (4, 32)
    """
    _at_least("side", side, 3)
    i, j = np.divmod(np.arange(side * side), side)
    down, right = (i + 1) % side * side + j, i * side + (j + 1) % side
    u = np.arange(side * side)
    edges = np.concatenate([np.stack([u, down], axis=1), np.stack([u, right], axis=1)])
    # A band of whole rows is best (Bollobás and Leader): 2 side edges cut off at most side // 2 rows.
    return CSR.from_edges(edges, side * side, phi=1 / (2 * (side // 2)))


def star(n: int) -> CSR:
    """Return node 0 joined to the n - 1 others. Each cut takes as many edges as its leaves have: phi is 1.

    >>> star(5).degrees.tolist()
    [4, 1, 1, 1, 1]
    """
    _at_least("n", n, 2)
    leaves = np.arange(1, n)
    return CSR.from_edges(np.stack([np.zeros_like(leaves), leaves], axis=1), n, phi=1.0)


def barbell(clique: int, path: int = 0) -> CSR:
    """Return two cliques joined by a path of ``path`` further nodes; numbered along its length.

    >>> barbell(3, 1).m
    8
    """
    _at_least("clique", clique, 2)
    _at_least("path", path, 0)
    one = np.argwhere(np.triu(np.ones((clique, clique), bool), 1))
    between = np.arange(clique - 1, clique + path)
    edges = np.concatenate([one, one + clique + path, np.stack([between, between + 1], axis=1)])
    # Only bridges cut with one edge; the middle one leaves the larger volume on its smaller side.
    return CSR.from_edges(edges, 2 * clique + path, phi=1 / (clique * (clique - 1) + 1 + 2 * (path // 2)))


def ring_of_cliques(count: int, size: int) -> CSR:
    """Return ``count`` cliques of ``size`` nodes, each joined to the next by one edge, the last to the first.

    >>> ring_of_cliques(4, 5).m
    44
    """
    _at_least("count", count, 2)
    _at_least("size", size, 2)
    one = np.argwhere(np.triu(np.ones((size, size), bool), 1))
    first = np.arange(count) * size
    cliques = (first[:, None, None] + one).reshape(-1, 2)
    joints = np.stack([first + 1, np.roll(first, -1)], axis=1)
    # An arc of count // 2 cliques has two edges out; with size 2 the graph is the ring of 2 count nodes.
    phi = 1 / count if size == 2 else 2 / (count // 2 * (size * (size - 1) + 2))
    return CSR.from_edges(np.concatenate([cliques, joints]), count * size, phi)


def random_regular(n: int, d: int, seed: int = 0) -> CSR:
    """Return a random simple d-regular graph, connected if d >= 3.

    A uniform pairing of n d half-edges, whose few loops and double edges are switched with random
    other edges: asymptotically uniform for fixed d, not exactly uniform. From d = n / 2 on, the
    complement of such a graph.

    >>> graph = random_regular(1000, 8, seed=1)
    >>> graph.degree, graph.is_connected
    (8, True)
    """
    if not 0 <= d < n or n * d % 2:
        raise ValueError(f"no {d}-regular graph has {n} nodes; 0 <= d < n with n * d even expected")
    if 2 * d >= n:
        return _complement(random_regular(n, n - 1 - d, seed)) if d < n - 1 else _all_pairs(n)
    for attempt in range(1000):
        mate = _pairing(n * d, stream(seed, "random-regular", n, d, attempt))
        if not _switch(mate, d, np.uint64(key(seed, "random-regular", n, d, attempt))):
            continue
        rows = np.sort((mate // max(d, 1)).reshape(n, d), axis=1).astype(np.int32)
        graph = CSR(np.arange(n + 1, dtype=np.int64) * d, rows.ravel())
        if d < 3 or graph.is_connected:
            return graph
    raise ValueError(f"no connected {d}-regular graph on {n} nodes found in 1000 attempts")


def _pairing(stubs: int, rng: np.random.Generator) -> Int64s:
    """Pair up half-edges uniformly: ``mate[s]`` is the other half of s."""
    order = rng.permutation(stubs)
    mate = np.empty(stubs, np.int64)
    mate[order[0::2]], mate[order[1::2]] = order[1::2], order[0::2]
    return mate


@njit(cache=True)
def _joined(mate: Int64s, d: int, u: int, v: int) -> int:
    """How many edges join u and v."""
    found = 0
    for s in range(u * d, (u + 1) * d):
        found += mate[s] // d == v
    return found


@njit(cache=True)
def _switch(mate: Int64s, d: int, key: Word) -> bool:
    """Switch every loop and double edge with random edges until none is left; False if that got stuck.

    Half-edge s belongs to node s // d. An edge s-t and a random edge p-q become s-p and t-q, if both
    are new and no loops; so the number of bad edges only falls.
    """
    draws = 0
    for s in range(mate.size):
        u = s // d
        tries = 0
        while mate[s] // d == u or _joined(mate, d, u, mate[s] // d) > 1:
            tries += 1
            if tries > 1000 * d:
                return False
            t = mate[s]
            p = int(below(bits(key, draws), mate.size))
            q = mate[p]
            draws += 1
            v, x, y = t // d, p // d, q // d
            if u == x or v == y or (u == y and v == x) or (u == v and x == y):
                continue
            if _joined(mate, d, u, x) or _joined(mate, d, v, y):
                continue
            mate[s], mate[p], mate[t], mate[q] = p, s, q, t
    return True


def _all_pairs(n: int) -> CSR:
    return CSR.from_edges(np.argwhere(np.triu(np.ones((n, n), bool), 1)), n)


def _complement(graph: CSR) -> CSR:
    missing = np.triu(graph.to_scipy().toarray() == 0, 1)
    return CSR.from_edges(np.argwhere(missing), graph.n)


def erdos_renyi(n: int, p: float, seed: int = 0) -> CSR:
    """Return G(n, p): each pair of nodes is an edge with probability p, independently. May be disconnected.

    >>> erdos_renyi(1000, 0.01, seed=1).m
    4966
    """
    _at_least("n", n, 1)
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; a probability, 0 to 1, expected")
    pairs = n * (n - 1) // 2
    rng = stream(seed, "erdos-renyi", n, repr(float(p)))
    chosen = rng.choice(pairs, int(rng.binomial(pairs, p)), replace=False, shuffle=False) if pairs else np.empty(0)
    # Pair number c = v (v - 1) / 2 + u with u < v; the float root may be one off, so it is corrected.
    c = chosen.astype(np.int64)
    v = ((1 + np.sqrt(1 + 8 * c.astype(np.float64))) / 2).astype(np.int64)
    v -= v * (v - 1) // 2 > c
    v += v * (v + 1) // 2 <= c
    return CSR.from_edges(np.stack([c - v * (v - 1) // 2, v], axis=1), n)


# ------------------------------------------------------------------------------------------ measures


@dataclass(frozen=True)
class Conductance:
    """What is known of a conductance: it lies in [low, high]; ``exact`` if the two are one."""

    low: float
    high: float
    exact: bool


def fiedler(graph: Graph) -> float:
    """Return the second least eigenvalue of the normalised Laplacian I - D^-1/2 A D^-1/2; 0 if disconnected.

    >>> round(fiedler(complete(5)), 12), round(fiedler(cycle(4)), 12)
    (1.25, 1.0)
    """
    _at_least("n", graph.n, 2)
    if isinstance(graph, Complete):
        return graph.n / (graph.n - 1)
    return _second(graph)[0] if graph.is_connected else 0.0


def conductance(graph: Graph) -> Conductance:
    """Return the least (edges leaving S) / (degrees in S) over sets S of at most half of all degrees.

    Exact by enumeration up to 20 nodes and for families with a closed form. Else Cheeger's bounds
    [lambda / 2, sqrt(2 lambda)], the upper one lowered to the best sweep cut of the Fiedler vector.

    >>> conductance(barbell(3))
    Conductance(low=0.14285714285714285, high=0.14285714285714285, exact=True)
    >>> conductance(random_regular(100, 3, seed=1)).exact
    False
    """
    _at_least("n", graph.n, 2)
    if graph.phi is not None:
        return Conductance(graph.phi, graph.phi, exact=True)
    assert isinstance(graph, CSR)
    if not graph.is_connected:
        return Conductance(0.0, 0.0, exact=True)
    if graph.n <= _ENUMERATE:
        phi = _least_cut(_masks(graph), graph.degrees)
        return Conductance(phi, phi, exact=True)
    value, vector = _second(graph)
    high = min(float(np.sqrt(2 * value)), _sweep(graph, vector))
    return Conductance(min(value / 2, high), high, exact=False)


def _masks(graph: CSR) -> npt.NDArray[np.uint64]:
    """Each node's neighbours as the bits of one word."""
    return np.array([sum(1 << int(v) for v in graph.neighbours(u)) for u in range(graph.n)], np.uint64)


@njit(cache=True)
def _least_cut(masks: npt.NDArray[np.uint64], degrees: Int64s) -> float:
    """Try every set without the last node, in Gray code order: each differs from the one before by one node."""
    volume_all = degrees.sum()
    one = np.uint64(1)
    inside, cut, volume = np.uint64(0), 0, 0
    best_cut, best_volume = volume_all, 1
    for code in range(1, 1 << (masks.size - 1)):
        u = 0
        while not code >> u & 1:
            u += 1
        common, shared = masks[u] & inside, 0
        while common:
            common &= common - one
            shared += 1
        sign = -1 if inside >> np.uint64(u) & one else 1
        cut += sign * (degrees[u] - 2 * shared)
        volume += sign * degrees[u]
        inside ^= one << np.uint64(u)
        smaller = min(volume, volume_all - volume)
        if cut * best_volume < best_cut * smaller:
            best_cut, best_volume = cut, smaller
    return float(best_cut / best_volume)


def _second(graph: CSR) -> tuple[float, Floats]:
    """Return lambda_2 and D^-1/2 times its eigenvector, of a connected graph."""
    from scipy.linalg import eigh
    from scipy.sparse import diags_array, eye_array

    scale = 1 / np.sqrt(graph.degrees)
    root = diags_array(scale)
    laplacian = (eye_array(graph.n) - root @ graph.to_scipy() @ root).tocsr()
    if graph.n <= _DENSE:
        values, vectors = eigh(laplacian.toarray(), subset_by_index=[1, 1])
    else:
        values, vectors = _lanczos(laplacian, np.sqrt(graph.degrees / (2 * graph.m)))
    return max(float(values[0]), 0.0), vectors[:, 0] * scale


def _lanczos(laplacian: csr_array, top: Floats) -> tuple[Floats, Floats]:
    """Return the least eigenpair of ``laplacian`` orthogonal to its kernel ``top``."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    # Rings, grids and bottlenecks have gaps so small that Lanczos crawls, but they separate well and
    # factorise sparsely. Expanders are the other way round.
    shift = 1e-9
    solve = _factor(laplacian, shift)

    def apply(x: Floats) -> Floats:  # largest first: 1 / (lambda + shift) or 2 - lambda; the kernel goes to 0
        y = x.ravel() - top * (top @ x.ravel())
        y = solve(y) if solve else 2 * y - laplacian @ y
        return np.asarray(y - top * (top @ y))

    n = top.size
    operator = LinearOperator((n, n), matvec=apply, dtype=np.float64)
    start = stream(0, "fiedler", n).standard_normal(n)  # fixed: the answer must not vary between calls
    values, vectors = eigsh(operator, 1, which="LA", v0=start, ncv=min(n, 40), tol=1e-9, maxiter=10_000, rng=0)
    return (1 / values - shift if solve else 2 - values), vectors


def _factor(laplacian: csr_array, shift: float) -> Callable[[Floats], Floats] | None:
    """Return a solver of (laplacian + shift I) y = x, or None where its factors would fill up."""
    from scipy.sparse import eye_array
    from scipy.sparse.csgraph import reverse_cuthill_mckee
    from scipy.sparse.linalg import splu

    n = laplacian.shape[0]
    order = reverse_cuthill_mckee(laplacian, symmetric_mode=True)
    banded = (laplacian + shift * eye_array(n)).tocsr()[order][:, order].tocoo()
    rows, columns = banded.coords
    band = int(np.abs(rows.astype(np.int64) - columns).max())
    if n * band > _FILL or 4 * band > n:  # an expander has no narrow band, and Lanczos is at its best there
        return None
    factors = splu(banded.tocsc(), permc_spec="NATURAL", diag_pivot_thresh=0.0, options={"SymmetricMode": True})

    def solve(x: Floats) -> Floats:
        y = np.empty_like(x)
        y[order] = factors.solve(x[order])
        return y

    return solve


def _sweep(graph: CSR, vector: Floats) -> float:
    """Return the least conductance among the sets of the k smallest entries, k = 1..n-1."""
    rank = np.empty(graph.n, np.int64)
    order = np.argsort(vector, kind="stable")
    rank[order] = np.arange(graph.n)
    u = np.repeat(rank, graph.degrees)
    v = rank[graph.indices]
    forward = u < v
    # An edge between ranks u < v crosses the cuts after u, ..., v - 1.
    cuts = np.cumsum(np.bincount(u[forward], minlength=graph.n) - np.bincount(v[forward], minlength=graph.n))[:-1]
    volumes = np.cumsum(graph.degrees[order])[:-1]
    return float((cuts / np.minimum(volumes, 2 * graph.m - volumes)).min())


def edges_of(graph: CSR) -> Iterable[tuple[int, int]]:
    """Yield each edge once, as (smaller, larger).

    >>> list(edges_of(star(3)))
    [(0, 1), (0, 2)]
    """
    sources = np.repeat(np.arange(graph.n), graph.degrees)
    once = sources < graph.indices
    return zip(sources[once].tolist(), graph.indices[once].tolist(), strict=True)
