"""The study's cases: generated points, the right neighbours of some of them, and every method on the same file."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.util import find_spec
from time import perf_counter, process_time
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from assay.data.solanet import rank
from assay.data.solanet.build import Build, Recipe
from assay.data.solanet.descent import descend
from assay.data.solanet.graph import Knn, knn_graph
from assay.data.solanet.rank import ALL_PAIRS, TREE, Effort
from assay.data.solanet.windows import Reader, Window
from assay.data.store.blocking import blocking
from assay.data.store.memory import MemStore
from assay.data.vectors.generate import drifting
from assay.data.vectors.graph import brute_force, nn_descent, recall
from assay.record.timing import interleave
from assay.sim.hardware import device
from assay.sim.memory import Peak
from assay.sim.random import stream
from assay.sim.scratch import scratch

Floats = npt.NDArray[np.float32]
ASKED = 400  # points whose right neighbours are computed
LOCK_FREE, IN_PLACE, EXACT = "lock-free", "in-place", "exact"
NARROW = (0.03125, 0.125, 0.25, 0.5)  # how hard the ways to refine are tried


def points(n: int, width: int, seed: int) -> Floats:
    """Clusters of sixteen dimensions in a wider space, all there from the beginning."""
    return drifting(n, width, intrinsic=min(16, width), clusters=max(n // 1000, 4), drift=0.0, seed=seed).vectors


def truth(rows: Floats, k: int, seed: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Some points, and the k nearest others of each, exactly."""
    some = np.sort(stream(seed, "asked", len(rows)).permutation(len(rows))[:ASKED])
    found = brute_force(rows, rows[some], k + 1)[0]
    other = found != some[:, None]
    other[other.all(axis=1), -1] = False  # a twin at the same place came first
    return some, found[other].reshape(len(some), k)


def wrong(graph: Knn, rows: Floats) -> int:
    """Lists that break a rule: a point in its own list, one twice, not sorted, a distance that is not the distance."""
    ids, dist = graph.ids, graph.dist
    own = (ids == np.arange(len(ids))[:, None]).any(axis=1)
    twice = (np.diff(np.sort(ids, axis=1), axis=1) == 0).any(axis=1)
    unsorted = (np.diff(dist, axis=1) < 0).any(axis=1)
    off = np.zeros(len(ids), np.bool_)
    for start in range(0, len(ids), 1024):
        some = slice(start, start + 1024)
        right = np.linalg.norm(rows[ids[some]].astype(np.float64) - rows[some, None], axis=2)
        off[some] = (np.abs(dist[some] - right) > 1e-4 * np.maximum(right, 1e-3)).any(axis=1)
    return int((own | twice | unsorted | off).sum())


def quality(n: int, width: int, k: int, parts: int, seed: int) -> dict[str, Any]:
    """A graph by so many real processes: what it found, and what it took."""
    rows = points(n, width, seed)
    some, right = truth(rows, k, seed)
    began = perf_counter()
    graph = knn_graph(rows, k, ranks=parts, seed=seed)
    seconds = perf_counter() - began
    return {"recall": recall(graph.ids[some], right), "wrong": wrong(graph, rows), "seconds": seconds, **spent(graph)}


def spent(graph: Knn) -> dict[str, float]:
    """Distances and bytes a point, by phase, and the seconds of the slowest rank."""
    each, n = graph.facts["parts"], len(graph.ids)
    counted = ("local_distances", "search_distances", "follow_distances", "pulled_bytes")
    told = {name: sum(one[name] for one in each) / n for name in counted}
    return told | {name: max(one[name] for one in each) for name in ("local", "refine", "waited")}


@dataclass
class _Seat:
    """A rank among threads of this process, for counting: the same code, windows and sockets, no processes."""

    index: int
    arrays: dict[str, Any]
    together: threading.Barrier = field(repr=False)

    def array(self, name: str) -> Any:
        return self.arrays[name]

    def meet(self, timeout: float) -> None:
        self.together.wait(timeout)


def refinements(n: int, width: int, k: int, parts: int, seed: int) -> dict[str, dict[str, Any]]:
    """Tree and all pairs from the same parts' graphs, from little effort to much: recall and distances of each."""
    rows = points(n, width, seed)
    some, right = truth(rows, k, seed)
    found = {}
    with scratch() as folder:
        np.save(folder / "points.npy", rows)
        recipe = Recipe(n, width, k, parts, "euclidean", TREE, seed, "")
        bench = _Bench(recipe, folder / "points.npy")
        for refine in (TREE, ALL_PAIRS):
            for narrow in NARROW:
                ids, facts = bench.refined(refine, Effort(narrow=narrow))
                distances = sum(one["search_distances"] + one["follow_distances"] for one in facts) / n
                found[f"{refine} {narrow:g}"] = {
                    "refine": refine, "narrow": narrow, "recall": recall(ids[some], right), "distances": distances,
                    "pulled_bytes": sum(one["pulled_bytes"] for one in facts) / n,
                }  # fmt: skip
    return found


class _Bench:
    """All parts in one process, their own graphs built once."""

    def __init__(self, recipe: Recipe, path: Any) -> None:
        self.recipe, self.path = recipe, path
        self.kept = blocking(Build(recipe))
        self.kept.begin(MemStore())

    def refined(self, refine: str, effort: Effort) -> tuple[Any, list[dict[str, Any]]]:
        """The lists after refining, by point, and each part's facts."""
        count = self.recipe.parts
        together = threading.Barrier(count)
        arrays: dict[str, Any] = {"ports": np.zeros(count, np.int64), "done": np.zeros(count)}
        secret = secrets.token_bytes(16)
        ids = np.empty((self.recipe.n, self.recipe.k), np.int32)

        def one(index: int) -> dict[str, Any]:
            seat: Any = _Seat(index, arrays, together)
            with Window(secret) as window:
                arrays["ports"][index] = window.port
                part = rank._Part(seat, msgspec.structs.replace(self.recipe, refine=refine), effort, self.path, window)
                part.local(self.kept)
                seat.meet(600.0)
                with Reader(arrays["ports"].tolist(), secret) as reader:
                    facts = part.refine(reader)
                seat.meet(600.0)
            ids[part.order[part.first : part.first + len(part.rows)]] = part.final_ids()
            return facts

        with ThreadPoolExecutor(count) as pool:
            return ids, list(pool.map(one, range(count)))


def local(n: int, width: int, k: int, rounds: int, seed: int) -> dict[str, dict[str, Any]]:
    """One part's graph on one core: lock-free, with a list changed at every offer, and exactly."""
    rows = points(n, width, seed)
    some, right = truth(rows, k, seed)
    made: dict[str, Any] = {}
    warm = rows[: 4 * k]
    contenders = {
        LOCK_FREE: lambda rows: descend(rows, k, seed=seed).ids,
        IN_PLACE: lambda rows: nn_descent(rows, k, sample=0.5, seed=seed)[0],
        EXACT: lambda rows: exact(rows, k),
    }
    for build in contenders.values():
        build(warm)

    def run(name: str) -> None:
        made[name] = contenders[name](rows)

    turns = {name: (lambda name=name: run(name)) for name in contenders}
    seconds = interleave(turns, rounds, process_time)  # all of them only compute, on one core
    return {
        name: {"seconds": float(np.median(took)), "recall": recall(made[name][some], right)}
        for name, took in seconds.items()
    }


def side_by_side(rows: Floats, k: int, ranks: int, rounds: int, peer: bool) -> dict[str, dict[str, Any]]:
    """Ranks by the tree and by all pairs, one process, a library where there is one, and all distances."""
    some, right = truth(rows, k, 0)
    made: dict[str, Any] = {}
    ways: dict[str, tuple[int, Callable[[Floats], Any]]] = {
        "solanet": (ranks, lambda rows: knn_graph(rows, k, ranks=ranks).ids),
        ALL_PAIRS: (ranks, lambda rows: knn_graph(rows, k, ranks=ranks, refine=ALL_PAIRS).ids),
        "one process": (1, lambda rows: descend(rows, k).ids),
        EXACT: (1, lambda rows: exact(rows, k)),
    }
    if peer and find_spec("pynndescent"):
        ways["pynndescent"] = ranks, lambda rows: by_pynndescent(rows, k, ranks)
    for _, build in ways.values():  # compile, import, start what starts others
        build(rows[: max(8 * k, 2 * ranks * (k + 1))])

    def run(name: str) -> None:
        made[name] = ways[name][1](rows)

    seconds = interleave({name: (lambda name=name: run(name)) for name in ways}, rounds)  # type: ignore[misc]
    return {
        name: {"seconds": float(np.median(took)), "recall": recall(made[name][some], right), "processes": ways[name][0]}
        for name, took in seconds.items()
    }


def by_pynndescent(rows: Floats, k: int, threads: int) -> npt.NDArray[np.int32]:
    """The usual tool of one process; its lists begin with the point itself."""
    from pynndescent import NNDescent

    found: npt.NDArray[np.int32] = NNDescent(rows, n_neighbors=k + 1, n_jobs=threads, random_state=0).neighbor_graph[0]
    other = found != np.arange(len(found))[:, None]
    other[other.all(axis=1), -1] = False
    lists: npt.NDArray[np.int32] = found[other].reshape(len(rows), k)
    return lists


def exact(rows: Floats, k: int) -> npt.NDArray[np.int32]:
    """The k nearest others of every row by matrix products, as fast as a library multiplies."""
    own = (rows**2).sum(axis=1)
    found = np.empty((len(rows), k), np.int32)
    for start in range(0, len(rows), 512):
        some = rows[start : start + 512]
        far = own - 2 * some @ rows.T  # all but what is the same for a point's whole row
        far[np.arange(len(some)), np.arange(start, start + len(some))] = np.inf
        nearest = np.argpartition(far, k, axis=1)[:, :k]
        order = np.argsort(np.take_along_axis(far, nearest, axis=1), axis=1)
        found[start : start + 512] = np.take_along_axis(nearest, order, axis=1)
    return found


def memory(n: int, width: int, k: int, seed: int) -> dict[str, Any]:
    """Memory that one part's graph takes beside its points, over three lists of eight bytes an entry."""
    rows = points(n, width, seed)
    descend(rows[: 4 * k], k)
    with Peak() as peak:
        descend(rows, k, seed=seed)
    return {"taken_ratio": peak.grown / (3 * n * k * 8) if peak.known else None}


APUS = {"1e9": (32, 512), "2e9": (64, 512)}
NETWORK = 25e9  # bytes/s an APU: HPE Slingshot, a port of 200 Gb/s each


def scaling(parts: int, size: int, width: int, k: int, seed: int) -> dict[str, dict[str, Any]]:
    """Seconds of the paper's builds on its machines, from the distances and bytes a point of small real ones.

    By the tree, which is how the digest was read because with all pairs more APUs hardly help, and by all pairs. A
    part's own graph takes a + b log2(points) distances a point, a round of the tree c + d log2(parts of the group), one
    of all pairs as many as another: fitted to builds that were counted. A distance takes the time to read a row from an
    APU's memory, a row of another part the time to send it; a part is pulled while the one before is searched.
    """
    sizes = np.array([size // 4, size // 2, size, 2 * size])
    grown = [descend(points(int(m), width, seed), k, seed=seed).distances / m for m in sizes]
    own = np.polyfit(np.log2(sizes), grown, 1)
    rows = points(parts * size, width, seed)
    with scratch() as folder:
        np.save(folder / "points.npy", rows)
        bench = _Bench(Recipe(len(rows), width, k, parts, "euclidean", TREE, seed, ""), folder / "points.npy")
        counted = {
            refine: np.array([one["by_round"] for one in bench.refined(refine, Effort())[1]]).sum(axis=0) / len(rows)
            for refine in (TREE, ALL_PAIRS)
        }  # round × (searched, followed)
    read = 4 * width / device("mi300x").mem_bw
    found = {}
    for refine, each in counted.items():
        number = np.arange(len(each))
        searched = np.polyfit(number, each[:, 0], 1) if refine == TREE else [each[:, 0].mean()]
        followed = np.polyfit(number[1:], each[1:, 1], 1) if refine == TREE else [each[:, 1].mean()]
        for total, several in APUS.items():
            for apus in several:
                mine = float(total) / apus
                seconds = mine * np.polyval(own, np.log2(mine)) * read
                for turn in range(int(np.log2(apus)) if refine == TREE else apus - 1):
                    search = max(float(np.polyval(searched, turn)), 0.0) * read
                    seconds += mine * max(search, (4 * width + 8 * k) / NETWORK)
                    follow = max(float(np.polyval(followed, turn)), 0.0) if turn else 0.0
                    seconds += mine * follow * max(read, 4 * width / NETWORK)
                found[f"{refine}, {total} on {apus}"] = {
                    "refine": refine, "points": total, "apus": apus, "seconds": float(seconds),
                }  # fmt: skip
    return found
