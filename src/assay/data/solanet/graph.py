"""A graph of nearest neighbours from a file or an array, built by real processes, and what can be done with it."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.data.disk.graphs import DiskGraph
from assay.data.engine.segments import digest
from assay.data.solanet import rank
from assay.data.solanet.build import Build, Done, Recipe
from assay.data.solanet.rank import METRICS, TREE, Effort, Parts
from assay.data.solanet.windows import raw
from assay.data.store.address import open_store
from assay.data.store.blocking import blocking
from assay.data.vectors.files import read_vectors
from assay.sim.ranks import Ranks
from assay.sim.scratch import scratch

Progress = Callable[[int, int], None]
STEPS = 1000  # of a progress bar


@dataclass(frozen=True, eq=False)
class Knn:
    """Row i holds the nearest neighbours of point i, nearest first, and their distances.

    >>> graph = Knn(np.array([[1], [0], [1]], np.int32), np.array([[1.0], [1.0], [2.0]], np.float32))
    >>> graph.edge_index().tolist()  # as PyTorch Geometric has it: from the neighbour to the point
    [[1, 0, 1], [0, 1, 2]]
    """

    ids: npt.NDArray[np.int32]
    dist: npt.NDArray[np.float32]
    facts: dict[str, Any] = field(default_factory=dict)

    def edges(self, points: int = 1 << 16) -> Iterator[npt.NDArray[np.int64]]:
        """Pairs (neighbour, point), the points in order, so many of them at a time."""
        n, k = self.ids.shape
        for start in range(0, n, points):
            some = np.asarray(self.ids[start : start + points], np.int64)
            to = np.repeat(np.arange(start, start + len(some)), k)
            yield np.stack([some.ravel(), to], axis=1)

    def edge_index(self) -> npt.NDArray[np.int64]:
        """All edges, (2, n * k): messages go from the neighbour to the point."""
        return np.ascontiguousarray(np.concatenate(list(self.edges())).T)

    def to_disk(self, folder: Path) -> DiskGraph:
        """The same edges as a graph on disk, for what streams its edges."""
        return DiskGraph.build(folder, self.edges(), len(self.ids))


def knn_graph(
    vectors: str | os.PathLike[str] | npt.NDArray[Any], k: int = 32, *, ranks: int = 1, out: str | None = None,
    metric: str = "euclidean", refine: str = TREE, seed: int = 0, effort: Effort | None = None,
    progress: Progress = lambda done, total: None,
) -> Knn:  # fmt: skip
    """The k nearest neighbours of every point, nearly all of them, by so many processes.

    Args:
        vectors: a file (fvecs, fbin, npy and their kin), or an array of shape (n, d).
        k: neighbours a point.
        ranks: processes; each holds one part of the points.
        out: a folder or the address of a store, which keeps `ids.npy` and `dist.npy`, and by which a killed build goes
            on; without it, nothing is kept.
        metric: `euclidean` or `cosine` (one minus it is the distance).
        refine: `tree`, or `all-pairs`, the rival.
        seed: of all that is drawn by chance; with it the graph is always the same.
        effort: how hard to search; the defaults find about 99 % of the neighbours, or more.
        progress: called with (done, total).

    >>> points = np.random.default_rng(0).normal(size=(200, 8)).astype(np.float32)
    >>> graph = knn_graph(points, k=5, ranks=2)
    >>> graph.ids.shape, bool((np.diff(graph.dist, axis=1) >= 0).all())
    ((200, 5), True)
    """
    with _file(vectors) as path, _kept(out) as url:
        recipe = _recipe(path, k, ranks, metric, refine, seed)
        build = blocking(Build(recipe))
        done = build.begin(open_store(url))
        if done is None:
            if not build.complete():
                _run(recipe, effort or Effort(), path, url, progress)
            done = build.finish(Parts(recipe.n, recipe.parts, recipe.seed).order())
        return _opened(build, done)


def _opened(build: Any, done: Done) -> Knn:
    ids, dist = (build.array(name, done) for name in ("ids", "dist"))  # every byte is checked
    return Knn(ids, dist, done.facts)


@contextmanager
def _file(vectors: Any) -> Iterator[Path]:
    """The file with the points; an array is written into one, because ranks share no memory."""
    if isinstance(vectors, str | os.PathLike):
        yield Path(vectors)
        return
    with scratch() as folder:
        np.save(folder / "points.npy", np.asarray(vectors))
        yield folder / "points.npy"


@contextmanager
def _kept(out: str | None) -> Iterator[str]:
    if out is not None:
        yield out
        return
    with scratch() as folder:
        yield str(folder / "graph")


def _recipe(path: Path, k: int, parts: int, metric: str, refine: str, seed: int) -> Recipe:
    rows = read_vectors(path)
    n, width = rows.shape
    if metric not in METRICS:
        raise ValueError(f"no metric '{metric}'; {' or '.join(METRICS)} expected")
    if not 1 <= k < n:
        raise ValueError(f"{path}: {k} neighbours of {n} points; 1 to {n - 1} expected")
    most = max(n // (k + 1), 1)
    if not 1 <= parts <= most or Parts(n, parts, seed).length(parts - 1) <= k:
        raise ValueError(f"{path}: {n} points in {parts} parts, {k} neighbours; more points than that in each expected")
    for start in range(0, n, 1 << 16):
        some = rows[start : start + (1 << 16)]
        if some.dtype.kind == "f" and not np.isfinite(some).all():
            bad = start + int(np.flatnonzero(~np.isfinite(some).all(axis=1))[0])
            raise ValueError(f"{path}: row {bad} has a number that is not finite; finite ones expected")
    content = digest(raw(rows)).hex()
    return Recipe(n, width, k, parts, metric, refine, seed, content)


def _run(recipe: Recipe, effort: Effort, path: Path, url: str, progress: Progress) -> None:
    """Start the ranks, and wait for all of them."""
    arrays = {"ports": np.zeros(recipe.parts, np.int64), "done": np.zeros(recipe.parts)}
    given = recipe, effort, str(path), url, secrets.token_bytes(16)
    with Ranks(recipe.parts, rank.work, *given, arrays=arrays, imports=[rank.__name__, f"{__package__}.warm"]) as ranks:
        ended = threading.Event()
        done = ranks.array("done")

        def tell() -> None:
            while not ended.wait(0.2):
                progress(int(STEPS * done.mean()), STEPS)

        telling = threading.Thread(target=tell, daemon=True)
        telling.start()
        try:
            ranks.wait(rank.PATIENCE)
        finally:
            ended.set()
            telling.join()
    progress(STEPS, STEPS)
