"""What one rank does: build its part's graph, publish it, search the others', and keep the lists that come out.

Parts are dealt at random (`order`), and points are numbered anew: part p holds numbers `p * size` and following.

In the tree of parts, groups of one, two, four, … parts pair up, round after round. A rank pulls one part of the group
opposite, searches it, and goes on from there along the links of that group, whose lists were merged in the rounds
before: it asks their owners for the rows that it comes to. So a point makes one search a round, and log2 of the parts
in all. `all-pairs`, the rival, pulls and searches every other part.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.solanet import search
from assay.data.solanet.build import FINAL, LOCAL, Build, Recipe
from assay.data.solanet.descent import descend
from assay.data.solanet.windows import Reader, Window
from assay.data.store.address import open_store
from assay.data.store.blocking import blocking
from assay.data.vectors.files import read_vectors
from assay.sim.random import key, stream
from assay.sim.ranks import Rank

Array = npt.NDArray[Any]
PATIENCE = 7 * 24 * 3600.0  # seconds that ranks wait for one another; one that died is noticed at once
BLOCK = 4096  # points that follow links at once
HOPS = 8
LEAST = 24  # entries of a list while it is built: shorter ones lead NN-descent, and searches, into dead ends
TREE, ALL_PAIRS = "tree", "all-pairs"
METRICS = ("euclidean", "cosine")


@dataclass(frozen=True)
class Effort:
    """How hard ranks search, and build.

    `breadth` is the pool of a search and `narrow` the nearest of it that are expanded though they cannot matter
    themselves, both in times k; `random` places are tried to begin with. `sample` and `stop` are NN-descent's.
    """

    breadth: float = 2.0
    narrow: float = 0.75
    random: int = 16
    sample: float = 0.5
    stop: float = 0.001
    threads: int = 1


@dataclass(frozen=True)
class Parts:
    """Who holds which numbers."""

    n: int
    count: int
    seed: int

    @property
    def size(self) -> int:
        """Points of a part; the last has the rest."""
        return -(-self.n // self.count)

    def length(self, part: int) -> int:
        """Points of this part."""
        return min(self.n, (part + 1) * self.size) - part * self.size

    def order(self) -> npt.NDArray[np.int64]:
        """Which point has which number: a shuffle, sorted within each part, for files are read in order."""
        dealt = stream(self.seed, "solanet parts", self.n, self.count).permutation(self.n)
        for start in range(0, self.n, self.size):
            dealt[start : start + self.size].sort()
        return dealt


def rounds(part: int, count: int) -> list[tuple[int, range]]:
    """For each round of the tree: the part to search, and all parts of the group opposite (none, and -1: wait).

    >>> [(with_, list(group)) for with_, group in rounds(1, 4)]
    [(0, [0]), (3, [2, 3])]
    """
    found, width = [], 1
    while width < count:
        mine = part // width
        first = (mine ^ 1) * width
        group = range(first, min(first + width, count))
        found.append((first + (part - mine * width) % len(group), group) if group else (-1, group))
        width *= 2
    return found


def load(path: Path, points: Array, metric: str) -> npt.NDArray[np.float32]:
    """Some rows of a file as floats; of length one, where angles count."""
    rows = np.ascontiguousarray(read_vectors(path)[points], np.float32)
    if metric == "cosine":
        rows /= np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-30))
    return rows


def work(rank: Rank, recipe: Recipe, effort: Effort, path: str, url: str, secret: bytes) -> dict[str, Any]:
    """The life of a rank; what it took."""
    build = Build(recipe)
    build.store = open_store(url)
    with Window(secret) as window:
        rank.array("ports")[rank.index] = window.port
        one = _Part(rank, recipe, effort, Path(path), window)
        facts = one.local(blocking(build))
        rank.meet(PATIENCE)  # all ports are known
        with Reader(rank.array("ports").tolist(), secret) as reader:
            facts |= one.refine(reader)
        blocking(build).keep(FINAL, rank.index, one.final_ids(), one.final_far(), facts)
        rank.meet(PATIENCE)  # until then others may read here
    return facts


class _Part:
    """A rank's points, its own graph (`near`, by place in the part) and its lists (`ids`, by number of all)."""

    def __init__(self, rank: Rank, recipe: Recipe, effort: Effort, path: Path, window: Window) -> None:
        self.rank, self.recipe, self.effort, self.window = rank, recipe, effort, window
        self.parts = Parts(recipe.n, recipe.parts, recipe.seed)
        self.first = rank.index * self.parts.size
        self.k = min(max(recipe.k, LEAST), self.parts.length(recipe.parts - 1) - 1)
        self.order = self.parts.order()
        points = self.order[self.first : self.first + self.parts.length(rank.index)]
        self.rows = load(path, points, recipe.metric)
        window.publish("rows", self.rows)

    def local(self, build: Any) -> dict[str, Any]:
        """The part's own graph, made or found."""
        began = perf_counter()
        found = build.kept(LOCAL, self.rank.index)
        if found is None:
            effort, tell = self.effort, self._tell(0.0, 0.5)
            made = descend(
                self.rows, self.k, sample=effort.sample, stop=effort.stop, threads=effort.threads,
                seed=key(self.recipe.seed, "part", self.rank.index) & 0xFFFFFFFF, progress=tell,
            )  # fmt: skip
            facts = {"local_distances": made.distances, "descent_rounds": made.rounds, "dropped": made.dropped}
            build.keep(LOCAL, self.rank.index, made.ids, made.far, facts)
            self.near, self.far = made.ids, made.far
        else:
            self.near, self.far, facts = found[0].copy(), found[1].copy(), found[2]
        self.ids = self.near + np.int32(self.first)
        self.window.publish("near", self.near)
        return facts | {"reused": int(found is not None), "local": perf_counter() - began}

    def refine(self, reader: Reader) -> dict[str, Any]:
        """Search the other parts; distances, bytes and seconds of it."""
        began, waited = perf_counter(), 0.0
        count, part = self.recipe.parts, self.rank.index
        if self.recipe.refine == TREE:
            plan = rounds(part, count)
        else:
            plan = [((part + i) % count, range((part + i) % count, (part + i) % count + 1)) for i in range(1, count)]
        self.order_in = search.walk_order(self.near) if plan else None
        self.back = search.reverse(self.near, self.k // 2 + 1) if plan else None
        self.fresh = np.zeros(self.ids.shape, np.bool_)
        by_round = []
        with ThreadPoolExecutor(1) as ahead:
            coming = self._next(ahead, reader, plan, 0)
            for turn, (other, group) in enumerate(plan):
                if other < 0:
                    self.window.publish(f"lists-{turn + 1}", self.ids.copy())
                    continue
                asked = perf_counter()
                rows, graph = coming.result()
                waited += perf_counter() - asked
                coming = self._next(ahead, reader, plan, turn + 1)
                if len(group) > 1:
                    links = self._links(reader, other, turn)
                searched = self._search(other, rows, graph)
                followed = self._follow(reader, other, links, turn) if len(group) > 1 else 0
                by_round.append((searched, followed))
                self.window.publish(f"lists-{turn + 1}", self.ids.copy())
                self._tell(0.5, 0.5)(turn + 1, len(plan))
        return {
            "search_distances": sum(one for one, _ in by_round), "follow_distances": sum(two for _, two in by_round),
            "by_round": by_round, "pulled_bytes": reader.nbytes, "gets": reader.gets,
            "refine": perf_counter() - began, "waited": waited,
        }  # fmt: skip

    def _next(self, ahead: ThreadPoolExecutor, reader: Reader, plan: list[Any], turn: int) -> Future[Any]:
        """The next part comes while this one is searched."""
        others = [other for other, _ in plan[turn:] if other >= 0]
        return ahead.submit(self._pull, reader, others[0]) if others else Future()

    def _pull(self, reader: Reader, part: int) -> tuple[Array, Array]:
        length = self.parts.length(part)
        rows = reader.get(part, "rows", length, (self.recipe.width,), np.float32)
        return rows, reader.get(part, "near", length, (self.k,), np.int32)

    def _links(self, reader: Reader, part: int, turn: int) -> Array:
        """The lists of a part after the rounds before."""
        return reader.get(part, f"lists-{turn}", self.parts.length(part), (self.k,), np.int32)

    def _search(self, other: int, rows: Array, graph: Array) -> int:
        self.hits = np.full((len(self.rows), search.HITS), -1, np.int32)
        self.fresh[:] = False
        effort = self.effort
        word = np.uint64(key(self.recipe.seed, "search", self.rank.index, other))
        return int(
            search.search_part(
                self.order_in, self.rows, self.near, self.back, self.ids, self.far, self.fresh, rows, graph,
                np.int32(other * self.parts.size), self.hits, max(int(effort.breadth * self.k), 16),
                max(int(effort.narrow * self.k), 1), effort.random, word,
            )
        )  # fmt: skip

    def _follow(self, reader: Reader, other: int, links: Array, turn: int) -> int:
        """Go on along the links of the group: from what was found in its one part to the others."""
        computed, low = 0, other * self.parts.size
        for start in range(0, len(self.rows), BLOCK):
            end = min(start + BLOCK, len(self.rows))
            table = np.full((end - start, search.SEEN), -1, np.int32)
            at, column = np.nonzero((self.ids[start:end] >= low) & (self.ids[start:end] < low + len(links)))
            begin = self.hits[start:end, : max(int(self.effort.narrow * self.k), 1)]
            near = np.nonzero(begin >= 0)
            points = np.concatenate([at, near[0]]) + start
            places = np.concatenate([self.ids[start:end][at, column] - low, begin[near]])
            once = np.unique(points.astype(np.int64) * len(links) + places)
            points, places, lists = once // len(links), once % len(links), links
            for _ in range(HOPS):
                to_point, to_node = (np.empty(len(points) * self.k, np.int32) for _ in range(2))
                n = search.follow(points, places, lists, low, low + len(links), start, table, to_point, to_node)
                if not n:
                    break
                nodes, where = np.unique(to_node[:n], return_inverse=True)
                rows = self._gather(reader, nodes, "rows", self.recipe.width, np.float32)
                kept = np.zeros(n, np.bool_)
                search.judge(to_point[:n], to_node[:n], where, self.rows, rows, self.ids, self.far, self.fresh, kept)
                computed += n
                if not kept.any():
                    break
                nodes, where = np.unique(to_node[:n][kept], return_inverse=True)
                points, places = to_point[:n][kept].astype(np.int64), where.astype(np.int64)
                lists = self._gather(reader, nodes, f"lists-{turn}", self.k, np.int32)
        return computed

    def _gather(self, reader: Reader, nodes: Array, name: str, width: int, dtype: npt.DTypeLike) -> Array:
        """Rows of some nodes, ascending, from whoever owns them."""
        cuts = np.searchsorted(nodes, np.arange(self.recipe.parts + 1) * self.parts.size)
        found = [
            reader.take(part, name, nodes[a:b].astype(np.int64) - part * self.parts.size, (width,), dtype)
            for part, (a, b) in enumerate(zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True))
            if b > a
        ]
        return np.concatenate(found)

    def final_ids(self) -> Array:
        """The lists with the points' own numbers."""
        found: Array = self.order[self.ids[:, : self.recipe.k]].astype(np.int32)
        return found

    def final_far(self) -> Array:
        """Distances as people expect them: Euclidean, or one minus the cosine."""
        far = self.far[:, : self.recipe.k]
        return np.sqrt(far) if self.recipe.metric == "euclidean" else far / 2

    def _tell(self, start: float, share: float) -> Callable[[int, int], None]:
        done = self.rank.array("done")

        def tell(some: int, of: int) -> None:
            done[self.rank.index] = start + share * some / of

        return tell
