"""The study's cases: one stream of vectors, the same first graph and memory for every index, on real files."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, TypeVar

import numpy as np

from assay.data.navis import building
from assay.data.navis.disk import LocalDisk
from assay.data.navis.index import Navis
from assay.data.navis.records import Config
from assay.data.navis.seek import Array
from assay.data.store.directory import DirStore
from assay.data.vectors.generate import drifting
from assay.data.vectors.graph import brute_force, recall
from assay.record.timing import Gauge

T = TypeVar("T")
OURS, PACKED, RAM = "navis", "packed", "usearch"
DESIGNS: dict[str, dict[str, Any]] = {
    PACKED: {"packed": True, "moving": False, "aware": False},  # DiskANN's nodes, inserted in place: OdinANN's way
    "layout": {"packed": False, "moving": False, "aware": False},
    "entrance": {"packed": True, "moving": True, "aware": False},
    "cache": {"packed": True, "moving": False, "aware": True},
    OURS: {"packed": False, "moving": True, "aware": True},
}
DEGREE, BREADTH, SEARCH, ALPHA = 32, 64, 64, 1.05
K = 10
SLICES = 4
CACHE = 0.05  # of the bytes of all edge lists
BUFFER = 64  # insertions between two checkpoints, about: several of them are in what is timed


class Contender(Protocol):
    """What can be added to and searched."""

    def insert(self, ids: Array, vectors: Array) -> None:
        """Add vectors."""

    def search(self, queries: Array, k: int) -> Array:
        """Ids of the nearest."""

    def close(self) -> None:
        """Let go."""


class OnDisk:
    """An index in a folder of its own."""

    def __init__(self, base: building.Base, vectors: Array, total: int, design: dict[str, Any], seed: int) -> None:
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        width, degree = vectors.shape[1], base.lists.shape[1] - 1
        config = Config(width, degree=degree, breadth=BREADTH, search=SEARCH, alpha=ALPHA, **design)
        self.index = Navis(
            int(CACHE * total * 4 * (degree + 1)), BUFFER * (4 * width + 8 * 4 * (degree + 1)), workers=4
        )
        place = Path(self.folder.name)
        self._loop = asyncio.new_event_loop()
        self.disk = LocalDisk(place / "pages")
        self._run(self.index.open(DirStore(place), self.disk, seed=seed))
        self._run(self.index.build(vectors, np.arange(len(vectors)), config, base=base, seed=seed))
        self.index.did.flush_writes = 0  # what building wrote is not insertions'

    def _run(self, work: Any) -> Any:
        return self._loop.run_until_complete(work)

    def insert(self, ids: Array, vectors: Array) -> None:
        """Durable when it returns."""
        self._run(self.index.insert(ids, vectors))

    def search(self, queries: Array, k: int) -> Array:
        """As many at once as there are workers."""
        return self.index.search(queries, k)[0]

    def checkpoint(self) -> None:
        """Lay what changed into pages."""
        self._run(self.index.checkpoint())

    def counts(self) -> dict[str, float]:
        """Per insertion: pages read and written, and how the walk went."""
        did = self.index.did
        n = max(did.inserts, 1)
        return {
            "reads_per_insert": (did.insert_reads + did.flush_reads) / n,
            "kib_read_per_insert": 4 * (did.insert_reads + did.flush_reads) / n,
            "kib_written_per_insert": (4 * did.flush_writes + did.log_bytes / 1024) / n,
            "hops": did.insert_hops / n, "cached_share": did.cached / max(did.expanded, 1), "joined": did.joined,
            "direct": float(self.disk.direct),
        }  # fmt: skip

    def close(self) -> None:
        """And delete the folder."""
        self.index.close()
        self._loop.close()
        self.folder.cleanup()


class InMemory:
    """usearch's HNSW, all in memory and durable by nothing: what an index on disk could be at best."""

    def __init__(self, vectors: Array) -> None:
        from usearch.index import Index

        self.index = Index(ndim=vectors.shape[1], metric="l2sq", connectivity=DEGREE // 2, expansion_add=BREADTH,
                           expansion_search=SEARCH)  # fmt: skip
        self.index.add(np.arange(len(vectors)), vectors, threads=2)

    def insert(self, ids: Array, vectors: Array) -> None:
        """In memory."""
        self.index.add(ids, vectors, threads=2)

    def search(self, queries: Array, k: int) -> Array:
        """Ids."""
        return np.asarray(self.index.search(queries, k, threads=2).keys).reshape(len(queries), k)

    def counts(self) -> dict[str, float]:
        """Nothing is read."""
        return {}

    def close(self) -> None:
        """Nothing to do."""


def stream_of(width: int, base: int, inserts: int, queries: int, seed: int) -> tuple[Array, Array]:
    """(vectors in the order of their arrival, queries from where the stream has come to)."""
    made = drifting(base + inserts + queries, width, clusters=24, seed=seed).vectors
    return made[: base + inserts], made[base + inserts :]


@cache
def warm(width: int, designs: tuple[str, ...] = tuple(DESIGNS)) -> None:
    """Compile and load what these designs need, once in a process, before any of them is timed."""
    vectors, queries = stream_of(width, 100, 40, 4, 0)
    begun = begin(vectors[:100], 0)
    for name in designs:
        made = OnDisk(begun, vectors[:100], 140, DESIGNS[name], 0)
        made.insert(np.arange(100, 140), vectors[100:])
        made.checkpoint()
        made.search(queries, K)
        made.close()


def begin(vectors: Array, seed: int) -> building.Base:
    """What every design begins with."""
    return building.base(vectors, DEGREE, BREADTH, ALPHA, seed)


def trial(width: int, base: int, inserts: int, queries: int, every: bool, seed: int) -> dict[str, dict[str, Any]]:
    """A stream into `packed` and ours, or into every design and memory; then both are searched while they grow."""
    designs = tuple(DESIGNS) if every else (PACKED, OURS)
    warm(width, designs)
    vectors, asked = stream_of(width, base, inserts, queries, seed)
    begun = begin(vectors[:base], seed)
    with Gauge() as gauge:
        found = grown(vectors, asked, begun, designs, every, seed)
        for name, row in together(vectors, begun, queries, seed).items():
            found[name] |= {f"{column}_meanwhile": value for column, value in row.items()}
    return {name: row | {"free_cores": gauge.free} for name, row in found.items()}


def grown(
    vectors: Array, asked: Array, begun: building.Base, designs: tuple[str, ...], ram: bool, seed: int
) -> dict[str, dict[str, Any]]:
    """Insert all but the first, the contenders in turn slice by slice; then search, in turn as well."""
    base = len(begun.lists)
    contenders: dict[str, Any] = {
        name: OnDisk(begun, vectors[:base], len(vectors), DESIGNS[name], seed) for name in designs
    }
    if ram:
        contenders[RAM] = InMemory(vectors[:base])
    names = list(contenders)
    turns = names[seed % len(names) :] + names[: seed % len(names)]
    inserting: dict[str, list[float]] = {name: [] for name in names}
    searching: dict[str, list[float]] = {name: [] for name in names}
    answers: dict[str, list[Array]] = {name: [] for name in names}
    for part in np.array_split(np.arange(base, len(vectors)), SLICES):
        for name in turns:
            inserting[name].append(timed(partial(contenders[name].insert, part, vectors[part]))[0])
    for part in np.array_split(np.arange(len(asked)), SLICES):
        for name in turns:
            seconds, ids = timed(partial(contenders[name].search, asked[part], K))
            searching[name].append(seconds / len(part))
            answers[name].append(ids)
    truth = brute_force(vectors, asked, K)[0]
    found = {}
    for name, made in contenders.items():
        found[name] = {
            "inserts_per_s": (len(vectors) - base) / sum(inserting[name]),
            "searches_per_s": 1 / float(np.median(searching[name])),
            "recall": recall(np.concatenate(answers[name]), truth), **made.counts(),
        }  # fmt: skip
        made.close()
    return found


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds, and what came of it."""
    began = perf_counter()
    made = work()
    return perf_counter() - began, made


def together(vectors: Array, begun: building.Base, queries: int, seed: int) -> dict[str, dict[str, Any]]:
    """Search while another thread inserts: each design inserts all, and is searched until it has."""
    base = len(begun.lists)
    asked = vectors[:base][:: max(base // queries, 1)][:queries] + np.float32(0.001)
    limit = brute_force(vectors[:base], asked, K)[1][:, -1]
    found = {}
    order = [PACKED, OURS] if seed % 2 else [OURS, PACKED]
    for name in order:
        made = OnDisk(begun, vectors[:base], len(vectors), DESIGNS[name], seed)
        made.search(asked, K)  # the cache is as warm as searching makes it
        found[name] = _together(made, vectors, base, asked, limit)
        made.close()
    return {name: found[name] for name in (PACKED, OURS)}


def _together(made: OnDisk, vectors: Array, base: int, asked: Array, limit: Array) -> dict[str, Any]:
    inserted = threading.Event()
    began = perf_counter()
    ended: list[float] = []

    def insert() -> None:
        made.insert(np.arange(base, len(vectors)), vectors[base:])
        ended.append(perf_counter() - began)
        inserted.set()

    other = threading.Thread(target=insert)
    other.start()
    took: list[float] = []
    right: list[float] = []
    while not took or not inserted.is_set():  # at least one, however late this thread gets a turn
        i = len(took) % len(asked)
        start = perf_counter()
        _, far = made.index.search(asked[i], K)
        took.append(perf_counter() - start)
        # New vectors may only push out farther ones, so ten as near as the ten before them are as right.
        right.append(float((far[0] <= limit[i] * (1 + 1e-5) + 1e-9).mean()))
    other.join()
    seconds = perf_counter() - began
    return {
        "inserts_per_s": (len(vectors) - base) / ended[0], "searches_per_s": len(took) / seconds,
        "search_ms": 1e3 * float(np.mean(took)), "recall": float(np.mean(right)), "searches": len(took),
    }  # fmt: skip
