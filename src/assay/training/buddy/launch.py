"""Applications on real processes: ranks on host cores and, with a proxy, an agent a node on a spare one."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from assay.sim import own_code
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.buddy import loaded
from assay.training.buddy.apps import APPS
from assay.training.buddy.bells import APART, NAP, Bell
from assay.training.buddy.client import Comm
from assay.training.buddy.ledger import ledger
from assay.training.buddy.rings import COUNTS, Ints, Ring, Sums
from assay.training.buddy.router import FULL, QUIET, Direct, Router, connected

ROOM = 1 << 14  # rows of a ring: those of two ranks and what they compute with stay in a core's cache,
RING = 1 << 16  # words: and so do fewer, wider rows
PACKET = 1 << 14  # words that are no longer held back, however few rows they are
MODES = ("inline", "proxy", "bulk")
ON_BOTH = "inline on both"  # ranks have the spare processors, too
Turn = tuple[str, "Task"]  # a mode, and what is run in it
NEVER = 1 << 62
LINGER = 1e-3  # seconds that an agent stays awake without anything to do: looking, on a spare processor
SLICE = 2e-3  # seconds: who is kept from its processor so long shares it with strangers, and naps from then on
IMPORTS = ("assay.training.buddy.launch", "assay.training.buddy.loaded")  # once for all ranks
TRIM_ABOVE, MAP_ABOVE = -1, -3  # parameters of mallopt
CHECKS = {"ledger": ledger}  # applications that only check


@dataclass(frozen=True)
class Task:
    """One application, or `own` (file.py:function), with its size; its `setting` is one of :mod:`.apps`."""

    app: str
    scale: int = 4
    setting: int = 0
    own: str = ""
    words: int = 1


@dataclass(frozen=True)
class Machine:
    """Nodes and their ranks; where ranks and agents may run, by number of the processor (none: anywhere)."""

    nodes: int = 2
    per_node: int = 1
    host: tuple[int, ...] = ()
    spare: tuple[int, ...] = ()
    full: int = FULL
    quiet: float = QUIET
    fuzz: float = 0.0  # how likely anybody pauses before whatever it does

    @property
    def size(self) -> int:
        """Ranks."""
        return self.nodes * self.per_node


@dataclass
class Ran:
    """What came of a task: every rank's result, and seconds and counts of ranks and agents."""

    results: list[Ints] = field(default_factory=list)
    seconds: float = 0.0  # from the first rank's start to the last one's end
    host: float = 0.0  # seconds of a processor that ranks spent, together
    agent: float = 0.0  # and agents that had something to do
    rows: int = 0
    nbytes: int = 0
    packets: int = 0
    touched: int = 0

    @property
    def result(self) -> Ints:
        """Of all ranks, in order."""
        return np.concatenate(self.results)


def run(mode: str, tasks: Sequence[Task], machine: Machine, seed: int, timeout: float = 900.0) -> list[Ran]:
    """Some applications, one after the other, by one set of processes."""
    return in_turns([(mode, task) for task in tasks], machine, seed, timeout)


def in_turns(turns: Sequence[Turn], machine: Machine, seed: int, timeout: float = 900.0) -> list[Ran]:
    """The same with a mode for each: what is compared has the same processes, and a noisy moment hits neighbours."""
    agents = machine.nodes if any(mode == "proxy" for mode, _ in turns) else 0
    size = machine.size
    arrays: dict[str, Any] = {
        "hurry": np.zeros(size, np.int64), "values": np.zeros((2, size, 2), np.int64),
        "arrived": np.zeros(size, np.int64), "asleep": np.zeros((size + agents) * APART, np.int64),
        "left": np.zeros((len(turns), size), np.int64),
    }  # fmt: skip
    for index in range(size):
        for name in ("out", "into"):
            arrays[f"{name}-{index}"] = np.zeros(RING, np.int64)
            arrays[f"{name}-counts-{index}"] = np.zeros(COUNTS, np.int64)
    with scratch() as folder:
        for name in ("ranks", "agents"):
            Path(folder, name).mkdir()
        target = partial(_process, turns=list(turns), machine=machine, seed=seed, folder=str(folder))
        with Ranks(size + agents, target, arrays=arrays, imports=IMPORTS) as running:
            answers = running.wait(timeout)
    return [_joined([answer[at] for answer in answers], size, task) for at, (_, task) in enumerate(turns)]


def words(task: Task) -> int:
    """Of a task's payload."""
    return APPS[task.app].words if task.app in APPS else task.words


def _joined(answers: list[dict[str, Any]], size: int, task: Task) -> Ran:
    ranks, agents = answers[:size], answers[size:]
    rows = sum(one["rows"] for one in ranks)
    return Ran(
        [one["result"] for one in ranks], max(one["end"] for one in ranks) - min(one["begin"] for one in ranks),
        sum(one["host"] for one in ranks), sum(one["busy"] for one in agents), rows, rows * 8 * (1 + words(task)),
        sum(one["packets"] for one in answers), sum(one["touched"] for one in ranks),
    )  # fmt: skip


def _process(rank: Rank, turns: list[Turn], machine: Machine, seed: int, folder: str) -> list[dict[str, Any]]:
    """A rank, or an agent behind the ranks."""
    agent = rank.index >= machine.size
    pause = _pauses(machine.fuzz, seed, rank.index)
    peers = _peers(rank, turns, machine, folder)
    bell = Bell(folder, rank.index, rank.array("asleep"))
    loaded.load()  # compiled on nobody's time
    _keep_memory()
    found = []
    for at, (mode, task) in enumerate(turns):
        place = machine.spare if agent else machine.host
        if mode == ON_BOTH and not agent and place:
            every = machine.host + machine.spare  # side by side at once: ranks that have come to share one stay there
            place = (every[rank.index % len(every)],)
        if place:
            os.sched_setaffinity(0, place)
        router = _router(rank, mode, task, machine, peers, pause)
        if not agent:
            comm = _comm(rank, router, task, machine, pause, bell)
            job = _job(comm, task, seed)  # with its input, which is made on nobody's time
        rank.meet(600.0)  # nobody's rows reach a ring before it is empty and known
        if not agent:
            found.append(_apply(rank, router, at, comm, job))
        elif router:
            found.append(_serve(rank, router, at, machine, bell))
        else:
            found.append({"busy": 0.0, "packets": 0})
        rank.meet(600.0)
    bell.close()
    for peer in peers.values():
        peer.close()
    return found


def _keep_memory() -> None:
    """What is freed stays with this process: otherwise every larger array is mapped, and its pages cleared, anew.

    Programs that send much reuse their buffers; here the allocator does (glibc's: elsewhere it goes without). Inline
    gains most by it, for a ring lies where it lies: a gather took half as long again without.
    """
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for parameter in (TRIM_ABOVE, MAP_ABOVE):
            mallopt(parameter, 1 << 25)


def _peers(rank: Rank, turns: list[Turn], machine: Machine, folder: str) -> dict[int, socket.socket]:
    """A node is what has a router: an agent, and without a proxy every rank. All are connected, each kind by itself."""
    found: dict[int, socket.socket] = {}
    kinds = {"agents": (machine.size, machine.nodes, True), "ranks": (0, machine.size, False)}
    for kind, (first, nodes, proxied) in kinds.items():
        if not any((mode == "proxy") == proxied for mode, _ in turns):
            continue
        if (rank.index >= machine.size) == proxied:
            found = connected(str(Path(folder, kind)), rank.index - first, nodes, partial(rank.meet, 600.0))
        else:
            rank.meet(600.0)
    return found


def _router(
    rank: Rank, mode: str, task: Task, machine: Machine, peers: dict[int, socket.socket], pause: Callable[[], None]
) -> Router | None:
    """The agent's where there is a proxy, and each rank's where there is none."""
    width = 1 + words(task)
    full, quiet = min(machine.full, PACKET // width), machine.quiet
    if mode == "bulk":
        full, quiet = NEVER, float(NEVER)
    node, per = rank.index - machine.size, machine.per_node
    if (node >= 0) != (mode == "proxy"):
        return None
    if node < 0:
        return Router(rank.index, 1, width, (), (Direct(),), peers, full, quiet, pause)
    out, into = zip(*(_rings(rank, node * per + local, task) for local in range(per)), strict=True)
    return Router(node, per, width, out, into, peers, full, quiet, pause)


def _rings(rank: Rank, index: int, task: Task) -> tuple[Ring, Ring]:
    """Of a rank, as wide as the task's rows."""
    width = 1 + words(task)
    room = min(ROOM, RING // width)
    out, into = (
        Ring(rank.array(f"{name}-{index}")[: room * width].reshape(room, -1), rank.array(f"{name}-counts-{index}"))
        for name in ("out", "into")
    )
    return out, into


def _pauses(fuzz: float, seed: int, index: int) -> Callable[[], None]:
    if not fuzz:
        return lambda: None
    random = stream(seed, "buddy", "pauses", index)

    def pause() -> None:
        if random.random() < fuzz:
            time.sleep(0.002 * random.random())

    return pause


def _serve(rank: Rank, router: Router, at: int, machine: Machine, bell: Bell) -> dict[str, Any]:
    """An agent until all ranks have left this task."""
    left, hurry = rank.array("left"), rank.array("hurry")
    first, busy = (rank.index - machine.size) * machine.per_node, 0.0
    mine, undisturbed = slice(first, first + machine.per_node), bool(machine.spare)
    router.delivered = lambda place: bell.ring(first + place)
    last = time.perf_counter()
    while not left[at].all():
        began, now = time.thread_time(), time.perf_counter()
        if router.turn(bool(hurry[mine].any())):
            busy += time.thread_time() - began
            last = time.perf_counter()
        elif now - last >= LINGER:
            bell.wait(router.patience, router.awaited, router.sockets)
        elif undisturbed:  # more will come soon, and a bell costs the rank that rings it
            os.sched_yield()
            undisturbed = time.perf_counter() - now < SLICE
        else:
            time.sleep(NAP)
    return {"busy": busy, "packets": router.packets, "routed": router.routed}


def _job(comm: Comm, task: Task, seed: int) -> Callable[[], Ints]:
    """What a rank runs, with its input at hand."""
    if task.app in CHECKS:
        return partial(CHECKS[task.app], comm)
    if task.own:
        own = own_code.load(task.own)
        return lambda: np.asarray(own(comm), np.int64)
    given = _given(task.app, comm.rank, comm.size, task.scale, seed, task.setting)
    return partial(APPS[task.app].run, comm, given, task.setting)


@cache
def _given(app: str, *arguments: int) -> Any:
    """A rank's input: made once for all modes and repetitions."""
    return APPS[app].given(*arguments)


def _comm(
    rank: Rank, router: Router | None, task: Task, machine: Machine, pause: Callable[[], None], bell: Bell
) -> Comm:
    """A rank's connection, for one task."""
    out, into = _rings(rank, rank.index, task)
    sums = Sums(rank.array("values"), rank.array("arrived"), rank.index)
    sums.round = int(rank.array("arrived")[rank.index])
    inbox = router.incoming[0] if router else into
    agent = machine.size + rank.index // machine.per_node
    hurry = rank.array("hurry")
    return Comm(rank.index, machine.size, words(task), out, inbox, sums, hurry, router, pause, bell, agent)


def _apply(rank: Rank, router: Router | None, at: int, comm: Comm, job: Callable[[], Ints]) -> dict[str, Any]:
    """A rank's part of an application."""
    begin, spent = time.perf_counter(), time.thread_time()
    result = job()
    end, host = time.perf_counter(), time.thread_time() - spent - comm.idle
    rank.array("left")[at, rank.index] = 1
    if router is None:
        comm.leave()
    return {
        "result": result, "begin": begin, "end": end, "host": host, "rows": comm.sent, "handled": comm.handled,
        "packets": router.packets if router else 0, "touched": comm.touched, "rounds": comm.rounds,
    }  # fmt: skip
