"""The same programs without a store: supersteps in one process with threads, and igraph's own algorithms."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.graphflash.parts import Int64s, Network, Part, cut, join, parts_of
from assay.data.graphflash.programs import PROGRAMS, Mail, Turn, finished, least_residual, opened
from assay.data.graphflash.run import Task


class InMemory:
    """Bulk-synchronous supersteps as a framework on servers runs them: all parts in memory, a thread a worker.

    It has the functions' parts, programs and order of mail, so it gives the same bytes.
    """

    def __init__(self, task: Task, of: int = 1, part: Int64s | None = None) -> None:
        count = max(1, min(task.parts, task.graph.n))
        homes = parts_of(task.graph, count, task.how) if part is None else part
        alone = list(cut(task.graph, homes, count))
        self.task = task
        self.groups = [join(alone[i : i + of], of) for i in range(0, count, of)]
        boundary, self.params = sum(len(one.far) for one in alone), task.params
        if task.program == "pagerank":
            least = least_residual(task.tolerance, task.params.damping, task.graph.n, boundary)
            self.params = msgspec.structs.replace(task.params, least=least)
        self.steps = 0

    def run(self) -> NDArray[Any]:
        """A value for every vertex."""
        program, groups = PROGRAMS[self.task.program], self.groups
        states = [program.start(part, self.params) for part in groups]
        mail: list[list[Mail]] = [[] for _ in groups]
        active, self.steps = [True] * len(groups), 0
        with ThreadPoolExecutor(self.task.workers) as threads:
            while due := [i for i in range(len(groups)) if active[i] or mail[i]]:

                def turn(i: int, mail: list[list[Mail]] = mail, step: int = self.steps) -> Turn:
                    for letter in mail[i]:
                        program.absorb(groups[i], states[i], letter)
                    return program.turn(groups[i], states[i], step, self.params, self.task.design.local)

                turns = dict(zip(due, threads.map(turn, due), strict=True))
                active = [turns[i].active if i in turns else False for i in range(len(groups))]
                mail = [[] for _ in groups]
                for one in turns.values():  # in the order of senders, as the store's
                    for letter in one.out:
                        mail[letter.to].append(opened(letter.numbers))
                self.steps += 1
        return finished(self.task.program, _gathered(groups, [state[program.value] for state in states]))


def _gathered(groups: list[Part], values: list[NDArray[Any]]) -> NDArray[Any]:
    whole = np.zeros(sum(len(part.own) for part in groups))
    for part, value in zip(groups, values, strict=True):
        whole[part.own] = value
    return whole


class Igraph:
    """igraph on one core: how long it takes where nothing is distributed at all; `there` is whether it is installed."""

    def __init__(self, program: str, graph: Network, root: int = 0, damping: float = 0.85) -> None:
        import igraph  # type: ignore[import-untyped, unused-ignore]

        self.program, self.root, self.damping = program, root, damping
        directed = not PROGRAMS[program].symmetric
        kept = graph.edges if directed else graph.edges[graph.edges[:, 0] < graph.edges[:, 1]]
        self.graph = igraph.Graph(n=graph.n, edges=kept, directed=directed)
        if PROGRAMS[program].weighted and graph.weights is not None:
            self.graph.es["weight"] = graph.weights.tolist()

    def run(self) -> NDArray[Any]:
        """The same answer."""
        weighted = "weight" if "weight" in self.graph.es.attributes() else None
        if self.program == "pagerank":
            return np.array(self.graph.pagerank(damping=self.damping))
        if self.program == "components":
            member = np.array(self.graph.connected_components().membership)
            first = np.full(member.max() + 1, len(member))
            np.minimum.at(first, member, np.arange(len(member)))
            return first[member]  # type: ignore[no-any-return]
        if self.program == "triangles":
            return np.array([len(self.graph.list_triangles())])
        found = np.array(self.graph.distances(source=self.root, mode="out", weights=weighted)[0], np.float64)
        return finished(self.program, found)


def igraph_is_here() -> bool:
    """Whether igraph is installed."""
    import importlib.util

    return importlib.util.find_spec("igraph") is not None


def timed(run: Any) -> tuple[float, NDArray[Any]]:
    """Seconds, and what came out."""
    began = time.perf_counter()
    found = run()
    return time.perf_counter() - began, found
