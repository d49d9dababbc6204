"""Operator graphs: blocked products, chains of them, and transformer layers, with what each operator takes and sends.

A matrix lies in blocks; a product of two is a product for every triple of blocks and a sum over the middle. These are
the shards that a placer deals to devices. Operators of one product (or one elementwise step) share a `meta` number.
Sizes are chosen so that a product of blocks takes a few times as long as sending one: else there is nothing to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.sim.dag import Dag
from assay.training.interface import Floats, Ints

FLOPS = 0.7 * 9.5e12  # a P100's fp32 peak, and what of it products attain (assumed)
MEMORY = 0.7 * 732e9  # bytes/s
LAUNCH = 10e-6
LINK = 12e9  # bytes/s between two devices (assumed)
LATENCY = 20e-6
ITEM = 4.0


@dataclass(frozen=True)
class OpGraph:
    """Operators in an order in which inputs come first: seconds on one device, bytes of the result, what they read."""

    name: str
    seconds: Floats
    nbytes: Floats
    inputs: tuple[tuple[int, ...], ...]
    meta: Ints
    kind: tuple[str, ...] = ()
    labels: tuple[str, ...] = field(default=(), repr=False)

    @property
    def nodes(self) -> int:
        """How many."""
        return len(self.seconds)

    @cached_property
    def dag(self) -> Dag:
        """Who waits for whom."""
        return Dag.of(self.nodes, [(u, v) for v, before in enumerate(self.inputs) for u in before])

    @cached_property
    def data(self) -> NDArray[np.bool_]:
        """What is there before anything runs, and takes no time: weights and inputs."""
        return np.array([not before and took == 0 for before, took in zip(self.inputs, self.seconds, strict=True)])

    def settled(self, place: Ints) -> Ints:
        """The same placement with data where most of its readers are: it costs nothing to put it there beforehand.

        >>> graph = chainmm(2)
        >>> graph.settled(np.ones(graph.nodes, int))[:3].tolist()
        [1, 1, 1]
        """
        found, devices = np.asarray(place, np.int64).copy(), int(np.max(place)) + 1
        votes = np.bincount(self.dag.indices * devices + found[self._readers], minlength=self.nodes * devices)
        found[self.data] = votes.reshape(self.nodes, devices)[self.data].argmax(axis=1)
        return found

    @cached_property
    def _readers(self) -> Ints:
        """Who reads, for each of `dag.indices`."""
        return np.repeat(np.arange(self.nodes), np.diff(self.dag.indptr))

    @cached_property
    def sending(self) -> Floats:
        """Seconds that each result takes to another device."""
        return np.asarray(LATENCY + self.nbytes / LINK)

    @cached_property
    def levels(self) -> tuple[Floats, Floats]:
        """Seconds of the longest path to each operator and from it on, itself in the second, messages included."""
        top, bottom = np.zeros(self.nodes), self.seconds.copy()
        for v, before in enumerate(self.inputs):
            for u in before:
                top[v] = max(top[v], top[u] + self.seconds[u] + self.sending[u])
        for v in range(self.nodes - 1, -1, -1):
            for u in self.inputs[v]:
                bottom[u] = max(bottom[u], self.seconds[u] + self.sending[u] + bottom[v])
        return top, bottom


class _Builder:
    """Adds operators; a matrix is a list of rows of operators, all of whose blocks are `block` wide and high."""

    def __init__(self, name: str) -> None:
        self.name, self.meta = name, -1
        self.rows: list[tuple[float, float, tuple[int, ...], int, str]] = []

    def op(self, kind: str, flops: float, nbytes: float, inputs: tuple[int, ...] = ()) -> int:
        moved = nbytes + sum(self.rows[u][1] for u in inputs)
        seconds = LAUNCH + max(flops / FLOPS, moved / MEMORY) if kind != "input" else 0.0
        self.rows.append((seconds, nbytes, inputs, self.meta, kind))
        return len(self.rows) - 1

    def input(self, rows: int, columns: int, height: int, width: int) -> list[list[int]]:
        self.meta += 1
        return [[self.op("input", 0.0, ITEM * height * width) for _ in range(columns)] for _ in range(rows)]

    def product(self, a: list[list[int]], b: list[list[int]], m: int, k: int, n: int) -> list[list[int]]:
        """Blocks of m x k and k x n."""
        self.meta += 1
        size = ITEM * m * n
        parts = [[[self.op("matmul", 2.0 * m * k * n, size, (row[q], b[q][j])) for q in range(len(b))]
                  for j in range(len(b[0]))] for row in a]  # fmt: skip
        if len(b) == 1:
            return [[one[0] for one in row] for row in parts]
        self.meta += 1
        return [[self.op("sum", len(b) * m * n, size, tuple(one)) for one in row] for row in parts]

    def each(self, kind: str, flops: float, *matrices: list[list[int]]) -> list[list[int]]:
        """One operator a block, of one block of each matrix."""
        self.meta += 1
        return [[self.op(kind, flops, self.rows[blocks[0]][1], tuple(blocks)) for blocks in zip(*rows, strict=True)]
                for rows in zip(*matrices, strict=True)]  # fmt: skip

    def done(self) -> OpGraph:
        seconds, nbytes, inputs, meta, kind = zip(*self.rows, strict=True)
        return OpGraph(self.name, np.array(seconds), np.array(nbytes), inputs, np.array(meta), kind)


def chainmm(grid: int = 3, size: int = 6000) -> OpGraph:
    """(A B) + C (D E), every matrix in grid x grid blocks.

    >>> chainmm(2).nodes
    60
    """
    made, n = _Builder("chainmm"), size // grid
    a, b, c, d, e = (made.input(grid, grid, n, n) for _ in range(5))
    left, inner = made.product(a, b, n, n, n), made.product(d, e, n, n, n)
    made.each("sum", n * n, left, made.product(c, inner, n, n, n))
    return made.done()


def ffnn(grid: int = 3, batch: int = 4096, hidden: int = 8192) -> OpGraph:
    """softmax(relu(X W1) W2), rows of the batch and columns of the layers in blocks.

    >>> ffnn(2).nodes
    50
    """
    made, m, n = _Builder("ffnn"), batch // grid, hidden // grid
    x, first, second = made.input(grid, grid, m, n), made.input(grid, grid, n, n), made.input(grid, grid, n, n)
    inner = made.each("relu", m * n, made.product(x, first, m, n, n))
    out = made.product(inner, second, m, n, n)
    powers = made.each("exp", 4.0 * m * n, out)
    made.meta += 1
    sums = [made.op("sum", grid * m * n, ITEM * m, tuple(row)) for row in powers]
    made.each("scale", m * n, powers, [[sums[i]] * grid for i in range(grid)])
    return made.done()


def _attention(made: _Builder, x: list[list[int]], parts: int, heads: int, t: int, width: int) -> list[list[int]]:
    """Attention of tokens in blocks over heads in blocks; weights lie in blocks of heads."""
    wide = width // heads
    q, k, v = (
        made.product(x, made.input(len(x[0]), heads, width // len(x[0]), wide), t, width // len(x[0]), wide)
        for _ in range(3)
    )
    rows = []
    for h in range(heads):
        made.meta += 1
        scores = [[made.op("exp", 2.0 * t * t * wide, ITEM * t * t, (q[i][h], k[j][h])) for j in range(parts)]
                  for i in range(parts)]  # fmt: skip
        made.meta += 1
        rows.append([made.op("mix", 2.0 * parts * t * t * wide, ITEM * t * wide,
                             (*scores[i], *(v[j][h] for j in range(parts)))) for i in range(parts)])  # fmt: skip
    mixed = [[rows[h][i] for h in range(heads)] for i in range(parts)]
    columns = len(x[0])
    return made.product(mixed, made.input(heads, columns, wide, width // columns), t, wide, width // columns)


def llama_block(parts: int = 3, heads: int = 4, tokens: int = 6144, width: int = 4096) -> OpGraph:
    """Attention with its residual: tokens and heads in blocks.

    >>> llama_block(2, 2).nodes
    88
    """
    made, t = _Builder("llama-block"), tokens // parts
    x = made.input(parts, 2, t, width // 2)
    normed = made.each("scale", t * width, x)
    made.each("sum", t * width / 2, x, _attention(made, normed, parts, heads, t, width))
    return made.done()


def llama_layer(parts: int = 2, heads: int = 2, tokens: int = 4096, width: int = 4096) -> OpGraph:
    """The same and a gated feed-forward part.

    >>> llama_layer().nodes > llama_block(2, 2).nodes
    True
    """
    made, t, ffn = _Builder("llama-layer"), tokens // parts, 11008
    half = width // 2
    x = made.input(parts, 2, t, half)
    attended = made.each("sum", t * half, x, _attention(made, made.each("scale", t * half, x), parts, heads, t, width))
    normed = made.each("scale", t * half, attended)
    up, gate = (made.product(normed, made.input(2, 2, half, ffn // 2), t, half, ffn // 2) for _ in range(2))
    inner = made.each("gate", 4.0 * t * ffn / 2, up, gate)
    down = made.product(inner, made.input(2, 2, ffn // 2, half), t, ffn // 2, half)
    made.each("sum", t * half, attended, down)
    return made.done()


GRAPHS: dict[str, Callable[[], OpGraph]] = {
    "chainmm": chainmm,
    "ffnn": ffnn,
    "llama-block": llama_block,
    "llama-layer": llama_layer,
}


def read(fields: Any, where: str) -> OpGraph:
    """From JSON: `nodes`, each with a name, inputs by name, bytes of its result, and seconds or flops.

    >>> read({"nodes": [{"name": "a", "seconds": 1}, {"name": "b", "seconds": 2, "inputs": ["a"]}]}, "here").inputs
    ((), (0,))

    Raises:
        BadInput: a field is missing or no number, a name unknown or used twice, or nodes wait for each other.
    """
    listed = fields.get("nodes") if isinstance(fields, dict) else None
    if not isinstance(listed, list) or not listed:
        raise BadInput(f"{where}: an object with a list 'nodes' expected")
    names: dict[str, int] = {}
    for place, node in enumerate(listed):
        if not isinstance(node, dict) or not isinstance(node.get("name"), str) or node["name"] in names:
            raise BadInput(f"{where}: node {place + 1} needs a name of its own")
        names[node["name"]] = place
    seconds, nbytes, edges = [], [], []
    for place, node in enumerate(listed):
        seconds.append(_positive(node, "seconds", where) if "seconds" in node
                       else LAUNCH + _positive(node, "flops", where) / FLOPS)  # fmt: skip
        nbytes.append(_positive(node, "bytes", where) if "bytes" in node else 0.0)
        reads = node.get("inputs", [])
        if not isinstance(reads, list) or not all(isinstance(other, str) for other in reads):
            raise BadInput(f"{where}: node '{node['name']}': inputs is {reads!r}; a list of names expected")
        for other in reads:
            if other not in names:
                raise BadInput(f"{where}: node '{node['name']}' reads '{other}', which is not there")
            edges.append((names[other], place))
    return ordered(where, np.array(seconds), np.array(nbytes), edges, list(names))


def ordered(where: str, seconds: Floats, nbytes: Floats, edges: list[tuple[int, int]], names: list[str]) -> OpGraph:
    """A graph whose operators are put into an order in which inputs come first."""
    try:
        order = Dag.of(len(seconds), edges).order
    except ValueError as error:
        raise BadInput(f"{where}: {error}") from error
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    inputs: list[list[int]] = [[] for _ in order]
    for u, v in edges:
        inputs[place[v]].append(int(place[u]))
    depth = np.zeros(len(order), np.int64)
    for v, before in enumerate(inputs):
        depth[v] = max((depth[u] + 1 for u in before), default=0)
    return OpGraph(where, seconds[order], nbytes[order], tuple(tuple(sorted(set(b))) for b in inputs), depth, (),
                   tuple(names[v] for v in order))  # fmt: skip


def _positive(node: dict[str, Any], name: str, where: str) -> float:
    value = node.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BadInput(f"{where}: node '{node['name']}': {name} is {value!r}; a number, at least 0, expected")
    return float(value)
