"""Run a program on a graph by functions: real processes on a real store, or in virtual time."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.data.graphflash.files import read_network
from assay.data.graphflash.function import serving
from assay.data.graphflash.job import GRAPHFLASH, Design, Job, Progress, prepare
from assay.data.graphflash.parts import Network, network
from assay.data.graphflash.programs import PROGRAMS, Params, least_residual, wanted
from assay.data.interface import Store
from assay.data.store.address import open_store
from assay.data.store.delayed import Delayed, Profile
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Metered
from assay.record.errors import BadInput
from assay.sim.clock import Clock, VirtualClock, WallClock, run_virtual
from assay.sim.faas import COLD, LIMIT, MEMORY, Bill, Modelled, Platform, Processes
from assay.sim.ledger import LIST_PRICES, Ledger, PriceBook
from assay.sim.scratch import scratch

IMPORTS = ("assay.data.graphflash.image",)
PACE = 5e-9  # seconds an edge takes in the model: what the compiled loops take on one core of 2024


@dataclass(frozen=True, eq=False)
class Ran:
    """The answer, and what it took."""

    values: NDArray[Any]  # by vertex
    names: NDArray[Any]  # of the vertices, as the file had them
    seconds: float  # of supersteps, from the first call to the answer; cutting the graph is not in it
    prepared: float  # seconds of cutting and putting
    steps: int
    resumed: int  # supersteps that an earlier run had finished
    woken: int
    messages: int
    scanned: int
    parts: int
    groups: int
    boundary: int
    largest: int  # bytes of a function's parts with their state, at most
    ledger: Ledger
    bill: Bill

    @property
    def requests(self) -> int:
        """Requests to the store, the functions' and the coordinator's."""
        return self.ledger.requests()

    def usd(self, prices: PriceBook = LIST_PRICES) -> float:
        """Dollars: requests to the store, calls, and gigabyte-seconds."""
        return self.ledger.usd(prices) + self.bill.usd(prices)


@dataclass(frozen=True, eq=False)
class Task:
    """A program, the graph as it wants it, and how both are to be run."""

    program: str
    graph: Network
    params: Params
    design: Design
    workers: int
    parts: int
    how: str
    tolerance: float


def plan(
    program: str, graph: Network | Path | str | Any, *, design: Design = GRAPHFLASH, workers: int = 2,
    parts: int | None = None, how: str = "metis", root: int | None = None, damping: float = 0.85,
    tolerance: float = 1e-6, rounds: int = 20, undirected: bool = False,
) -> Task:  # fmt: skip
    """A task from what a user says; BadInput where it makes no sense.

    `root` is where `bfs` and `sssp` start; `damping` and `tolerance` (how far all ranks are off together) are of
    `pagerank`, `rounds` of `labels`. `parts` defaults to four a worker.
    """
    if program not in PROGRAMS:
        raise BadInput(f"no program '{program}'; one of {', '.join(PROGRAMS)} expected")
    if workers < 1 or not 0 < damping < 1 or not 0 < tolerance < 1:
        raise BadInput(
            f"{workers} workers, damping {damping}, tolerance {tolerance}; one or more, and shares of 1, expected"
        )
    given = _given(graph)
    try:
        made = wanted(PROGRAMS[program], given)
    except ValueError as error:
        raise BadInput(str(error)) from None
    if undirected and not PROGRAMS[program].symmetric:
        made = made.symmetric
    params = Params(n=made.n, root=_place(made, root), damping=damping, rounds=rounds)
    return Task(program, made, params, design, workers, parts or 4 * workers, how, tolerance)


def _given(graph: Any) -> Network:
    if isinstance(graph, str | Path):
        graph = read_network(Path(graph))
    elif not isinstance(graph, Network):
        names, numbers = np.unique(np.asarray(graph, np.int64), return_inverse=True)
        graph = network(numbers.reshape(-1, 2), None, len(names), names)
    if not graph.n:
        raise BadInput("the graph has no vertices; at least one edge expected")
    return graph  # type: ignore[no-any-return]


def _place(graph: Network, root: int | None) -> int:
    if root is None:
        return 0
    names = np.arange(graph.n) if graph.names is None else graph.names
    at = int(np.searchsorted(names, root))
    if at == len(names) or names[at] != root:
        raise BadInput(f"the graph has no vertex {root}; it has {graph.n} from {names[0]} to {names[-1]}")
    return at


def run_graph(
    program: str, graph: Network | Path | str | Any, *, store: str | None = None, memory: int = MEMORY,
    limit: float = LIMIT, progress: Progress = lambda done, total: None, **options: Any,
) -> Ran:  # fmt: skip
    """Run `pagerank`, `components`, `bfs`, `sssp`, `labels` or `triangles` by functions that are real processes.

    `graph` is a file, an array of edges, or a :class:`Network`. Without `store` everything lies in a temporary folder;
    with one, a run that was killed goes on from its last superstep. `memory` and `limit` are the bytes and seconds of a
    function; other options are those of :func:`plan`.

    >>> ran = run_graph("bfs", [(0, 1), (1, 2), (5, 1)], root=0, workers=1)
    >>> dict(zip(ran.names.tolist(), ran.values.tolist()))
    {0: 0, 1: 1, 2: 2, 5: -1}
    """
    task = plan(program, graph, **options)

    async def main(url: str, fsync: bool) -> Ran:
        inside = open_store(url, fsync=fsync)
        async with processes(task.workers, memory, limit) as platform:
            return await perform(task, inside, platform, url=url, fsync=fsync, progress=progress)

    if store is not None:
        return asyncio.run(main(store, True))
    with scratch() as folder:
        return asyncio.run(main(str(folder), False))


def processes(slots: int, memory: int = MEMORY, limit: float = LIMIT) -> Processes:
    """The platform whose functions are real processes."""
    return Processes(f"{IMPORTS[0]}:handle", slots=slots, memory=memory, limit=limit, imports=IMPORTS)


def simulate(
    program: str, graph: Network, profile: Profile, *, cold: tuple[float, float] = COLD, pace: float = PACE,
    seed: int = 0, **options: Any,
) -> Ran:  # fmt: skip
    """The same job on a virtual clock: a store with a latency profile, functions with a cold start.

    >>> from assay.data.store.delayed import PROFILES
    >>> made = network([(0, 1), (1, 2), (2, 0)])
    >>> simulate("components", made, PROFILES["s3-standard"], workers=1).seconds > 0.1
    True
    """
    task = plan(program, graph, **options)

    async def main() -> Ran:
        world = MemStore(VirtualClock())
        slow = Delayed(world, profile, seed=seed)
        async with Modelled(serving(slow), slots=task.workers, cold=cold, seed=seed) as platform:
            return await perform(task, slow, platform, pace=pace, clock=VirtualClock(), bare=world)

    return run_virtual(main())


async def perform(
    task: Task, store: Store, platform: Platform, *, url: str = "", fsync: bool = False,
    progress: Progress = lambda done, total: None, pace: float = 0.0, clock: Clock | None = None,
    bare: Store | None = None,
) -> Ran:  # fmt: skip
    """Do a task on a store, by a platform's functions; `bare` is the store without what slows it down.

    Cutting is done once a graph, and tidying up when the answer is there: neither is timed, billed or slowed down.
    """
    now = clock.now if clock else time.perf_counter
    began = time.perf_counter()
    cut = await prepare(bare or store, task.graph, task.parts, task.how)
    prepared, params = time.perf_counter() - began, task.params
    if task.program == "pagerank":
        least = least_residual(task.tolerance, params.damping, cut.n, cut.boundary)
        params = msgspec.structs.replace(params, least=least)
    ledger = Ledger()
    metered = Metered(store, ledger, who="coordinator", clock=clock)
    job = Job(
        metered, cut, task.program, params, task.design, task.workers, url, fsync, clock or WallClock(), pace=pace,
        ledger=ledger,
    )  # fmt: skip
    platform.settle()
    begun = now()
    try:
        values = await job.run(platform, progress)
        seconds = now() - begun
    finally:
        platform.release()
    job.store = bare or store
    await job.tidy()
    names = np.arange(cut.n) if task.graph.names is None else task.graph.names
    return Ran(
        values, names, seconds, prepared, job.steps, job.resumed, job.woken, job.messages, job.scanned,
        len(cut.parts), job.count, cut.boundary, job.largest, ledger, platform.settle(),
    )  # fmt: skip
