"""Applications on real processes: ranks on host cores and, with a proxy, an agent a node on a spare one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from assay.sim import own_code
from assay.sim.random import stream
from assay.sim.ranks import Rank, Ranks
from assay.sim.scratch import scratch
from assay.training.buddy import loaded
from assay.training.buddy.apps import APPS
from assay.training.buddy.client import NAP, Comm
from assay.training.buddy.ledger import ledger
from assay.training.buddy.rings import COUNTS, Ints, Ring, Sums
from assay.training.buddy.router import FULL, QUIET, Direct, Router, connected

ROOM = 1 << 15  # rows of a ring
MODES = ("inline", "proxy", "bulk")
NEVER = 1 << 62
IMPORTS = ("assay.training.buddy.launch", "assay.training.buddy.loaded")  # once for all ranks
CHECKS = {"ledger": ledger}  # applications that only check


@dataclass(frozen=True)
class Task:
    """One application, or `own` (file.py:function), with its size; `passes` of the histogram."""

    app: str
    scale: int = 4
    passes: int = 0
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
    agents = machine.nodes if mode == "proxy" else 0
    size, widest = machine.size, 1 + max(words(task) for task in tasks)
    arrays: dict[str, Any] = {
        "hurry": np.zeros(size, np.int64), "values": np.zeros((2, size, 2), np.int64),
        "arrived": np.zeros(size, np.int64), "left": np.zeros((len(tasks), size), np.int64),
    }  # fmt: skip
    for index in range(size):
        for name in ("out", "into"):
            arrays[f"{name}-{index}"] = np.zeros((ROOM, widest), np.int64)
            arrays[f"{name}-counts-{index}"] = np.zeros(COUNTS, np.int64)
    with scratch() as folder:
        target = partial(_process, mode=mode, tasks=list(tasks), machine=machine, seed=seed, folder=str(folder))
        with Ranks(size + agents, target, arrays=arrays, imports=IMPORTS) as running:
            answers = running.wait(timeout)
    return [_joined([answer[at] for answer in answers], size, task) for at, task in enumerate(tasks)]


def words(task: Task) -> int:
    """Of a task's payload."""
    return APPS[task.app][2] if task.app in APPS else task.words


def _joined(answers: list[dict[str, Any]], size: int, task: Task) -> Ran:
    ranks, agents = answers[:size], answers[size:]
    rows = sum(one["rows"] for one in ranks)
    return Ran(
        [one["result"] for one in ranks], max(one["end"] for one in ranks) - min(one["begin"] for one in ranks),
        sum(one["host"] for one in ranks), sum(one["busy"] for one in agents), rows, rows * 8 * (1 + words(task)),
        sum(one["packets"] for one in answers), sum(one["touched"] for one in ranks),
    )  # fmt: skip


def _process(
    rank: Rank, mode: str, tasks: list[Task], machine: Machine, seed: int, folder: str
) -> list[dict[str, Any]]:
    """A rank, or an agent behind the ranks."""
    agent = rank.index >= machine.size
    place = machine.spare if agent else machine.host
    if place:
        os.sched_setaffinity(0, place)
    pause = _pauses(machine.fuzz, seed, rank.index)
    # A node is what has a router: without a proxy that is every rank.
    node = rank.index - machine.size if agent else rank.index
    nodes, per = (machine.nodes, machine.per_node) if mode == "proxy" else (machine.size, 1)
    peers = connected(folder, node, nodes, partial(rank.meet, 600.0)) if agent or mode != "proxy" else None
    if peers is None:
        rank.meet(600.0)
    loaded.load()  # compiled on nobody's time
    full = NEVER if mode == "bulk" else machine.full
    quiet = float(NEVER) if mode == "bulk" else machine.quiet
    found = []
    for at, task in enumerate(tasks):
        router = None
        if agent:
            out, into = zip(*(_rings(rank, node * per + local, task) for local in range(per)), strict=True)
            router = Router(node, per, 1 + words(task), out, into, peers or {}, full, quiet, pause)
        elif peers is not None:
            router = Router(node, 1, 1 + words(task), (), (Direct(),), peers, full, quiet, pause)
        rank.meet(600.0)  # nobody's rows reach a ring before it is empty and known
        found.append(
            _serve(rank, router, at, node, per)
            if agent and router
            else _apply(rank, router, at, task, machine, seed, pause)
        )
        rank.meet(600.0)
    for peer in (peers or {}).values():
        peer.close()
    return found


def _rings(rank: Rank, index: int, task: Task) -> tuple[Ring, Ring]:
    """Of a rank, as wide as the task's rows."""
    out, into = (
        Ring(
            rank.array(f"{name}-{index}").reshape(-1)[: ROOM * (1 + words(task))].reshape(ROOM, -1),
            rank.array(f"{name}-counts-{index}"),
        )
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


def _serve(rank: Rank, router: Router, at: int, node: int, per: int) -> dict[str, Any]:
    """An agent until all ranks have left this task."""
    left, hurry = rank.array("left"), rank.array("hurry")
    mine, busy = slice(node * per, (node + 1) * per), 0.0
    while not left[at].all():
        began = time.thread_time()
        if router.turn(bool(hurry[mine].any())):
            busy += time.thread_time() - began
        else:
            time.sleep(NAP)
    return {"busy": busy, "packets": router.packets, "routed": router.routed}


def _apply(
    rank: Rank, router: Router | None, at: int, task: Task, machine: Machine, seed: int, pause: Callable[[], None]
) -> dict[str, Any]:
    """A rank's part of an application."""
    out, into = _rings(rank, rank.index, task)
    sums = Sums(rank.array("values"), rank.array("arrived"), rank.index)
    sums.round = int(rank.array("arrived")[rank.index])
    inbox = router.incoming[0] if router else into
    comm = Comm(rank.index, machine.size, words(task), out, inbox, sums, rank.array("hurry"), router, pause)
    begin, spent = time.perf_counter(), time.thread_time()
    if task.app in CHECKS:
        result = CHECKS[task.app](comm)
    elif task.own:
        result = np.asarray(own_code.load(task.own)(comm), np.int64)
    else:
        more = {"passes": task.passes} if task.app == "histogram" else {}
        result = APPS[task.app][0](comm, task.scale, seed, **more)
    end, host = time.perf_counter(), time.thread_time() - spent - comm.idle
    rank.array("left")[at, rank.index] = 1
    return {
        "result": result, "begin": begin, "end": end, "host": host, "rows": comm.sent, "handled": comm.handled,
        "packets": router.packets if router else 0, "touched": comm.touched, "rounds": comm.rounds,
    }  # fmt: skip
