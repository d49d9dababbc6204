"""Conducts a run over sockets: starts the processes, tells them where the others are, listens, stops, kills.

Decisions and operations are told while they happen, so what a killed process put out is not lost with it. What it sent
is counted up to its last report, which is at most some hundredths of a second old.
"""

from __future__ import annotations

import contextlib
import math
import multiprocessing
import pickle
import secrets
import signal
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NoReturn

from assay.protocols.interface import NodeId
from assay.protocols.kernel.meter import Meter
from assay.protocols.kernel.run import Decision, Outcome
from assay.protocols.kernel.signatures import key_pairs
from assay.protocols.tcp.house import ASKED, inhabit
from assay.workloads.histories import Operation

if TYPE_CHECKING:
    from assay.protocols.kernel.world import World

START = 60.0
"""Seconds that all processes together have to come up."""
CALM, IDLE = 0.3, 3.0
"""Seconds without news after which nothing more will come: where all that was sent has arrived, and where a process was
killed and nobody knows."""
REREAD = 86
"""How a process ends that came to start processes itself while it read the script that started it."""


class Death(RuntimeError):  # noqa: N818 - what befell a process
    """A process failed: a node raised, or it did not come up."""


def run(
    world: World, *, until: Callable[[Outcome], bool] | None = None, limit: float = 30.0, processes: int | None = None,
    kill: Mapping[NodeId, float] | None = None,
) -> Outcome:  # fmt: skip
    """Run over TCP on loopback until `until`, until nothing moves any more, or for so many seconds.

    Nodes are spread over `processes` (one each, unless told otherwise). `kill` ends the process of a node by SIGKILL
    so many seconds after the start, whatever it is doing, and the run does not end before; at 0, it never starts.
    Latencies and losses of the world's network come on top of the real ones, at the sender.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(REREAD)  # without a word: whoever started this process says what is wrong, once
    if world.churn:
        raise ValueError("churn is for simulated runs; over sockets, kill processes or use Crash faults")
    total = world.n + len(world.clients)
    count = min(processes or total, total)
    if count < 1:
        raise ValueError(f"{processes} processes; at least 1 expected")
    for node, at in (kill or {}).items():
        if not (0 <= node < total and 0 <= at < limit):
            right = f"one of 0 to {total - 1}, and before the {limit:g} s of the run are over, expected"
            raise ValueError(f"node {node} is to be killed after {at:g} s; {right}")
    homes = [node % count for node in range(total)]
    dead = {node for node, home in enumerate(homes) if home in {homes[victim] for victim in kill or {}}}
    if len(dead) == total:
        raise ValueError(f"with {count} processes, killing these leaves no node alive; give more processes")
    conductor = Conductor(world, homes, count, dead)
    try:
        ends: dict[int, float] = {}
        for node, at in (kill or {}).items():
            ends[homes[node]] = min(at, ends.get(homes[node], at))
        conductor.start(stillborn=[home for home, at in ends.items() if at <= 0])
        return conductor.listen(until, limit, {home: at for home, at in ends.items() if at > 0})
    finally:
        conductor.clear()


def _unguarded() -> NoReturn:
    """One line instead of a traceback from every process: the mistake is in the script, not in the run."""
    script = getattr(sys.modules["__main__"], "__file__", "the script")
    cure = 'put what it does below a line `if __name__ == "__main__":`'
    print(f"{script}: a live run starts processes, and each reads this file again; {cure}", file=sys.stderr)
    raise SystemExit(2)


@dataclass
class Conductor:
    """The processes and what they have told so far."""

    world: World
    homes: list[int]
    count: int
    dead: set[NodeId]
    lines: list[Connection] = field(default_factory=list)
    workers: list[Any] = field(default_factory=list)
    counts: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Messages sent, messages that arrived, and timers that are set, of each process."""
    spent: dict[int, dict[str, Any]] = field(default_factory=dict)
    """The counters of each process's meter, as last told."""
    places: dict[tuple[int, int], int] = field(default_factory=dict)
    """Where each operation of each process stands in the history."""
    last: float = 0.0
    """When anything was heard that was new."""
    unheard: set[int] | None = None
    """Who has not said yet that nothing is new with it; None: nobody has been asked."""

    def __post_init__(self) -> None:
        total = len(self.homes)
        correct = tuple(n for n in range(self.world.n) if n not in self.world.faults and n not in self.dead)
        decisions: dict[NodeId, dict[Hashable, Any]] = {node: {} for node in range(total)}
        self.outcome = Outcome(self.world.n, correct, Meter(total), decisions)
        self.changed = self.stopping = False

    def start(self, stillborn: Sequence[int] = ()) -> None:
        """All processes up, connected and started, but for those that are killed first."""
        try:
            pickle.dumps(self.world)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            cure = "nodes, faults and clients must be classes and functions at the top level of a module"
            raise ValueError(f"the world cannot be sent to another process: {error}; {cure}") from None
        context = multiprocessing.get_context("spawn")
        token = secrets.token_bytes(16)
        nodes = range(len(self.homes))
        private, public = key_pairs(nodes, self.world.seed) if find_spec("cryptography") else ({}, {})
        for index in range(self.count):
            here, there = context.Pipe()
            own = {node: key for node, key in private.items() if self.homes[node] == index}
            arguments = (there, self.world, self.homes, index, token, (own, public))
            worker = context.Process(target=inhabit, args=arguments, daemon=True)
            worker.start()
            there.close()
            self.lines.append(here)
            self.workers.append(worker)
        deadline = time.monotonic() + START
        ports = [self._expect(index, "listening", deadline)[1] for index in range(self.count)]
        for line in self.lines:
            line.send(ports)
        for index in range(self.count):
            self._expect(index, "ready", deadline)
        for index in stillborn:
            self._kill(index)
            self.workers[index].join()
        self.epoch = time.monotonic() + 0.01
        for line in self.lines:
            if not line.closed:
                line.send(self.epoch)

    def _expect(self, index: int, what: str, deadline: float) -> Any:
        line = self.lines[index]
        while True:
            try:
                if not line.poll(max(0.0, deadline - time.monotonic())):
                    raise Death(f"process {index} did not come up within {START:g} s")
                told = line.recv()
            except (EOFError, ConnectionError):
                self.workers[index].join(1.0)
                if self.workers[index].exitcode == REREAD:
                    _unguarded()
                raise Death(f"process {index} died before it was up") from None
            if told[0] == what:
                return told
            self._told(index, told)  # a stranger was cut off, or the process failed

    def listen(self, until: Callable[[Outcome], bool] | None, limit: float, kill: dict[int, float]) -> Outcome:
        """Hears the processes until the run is over."""
        self.last, reason = time.monotonic(), "limit"
        while (now := time.monotonic() - self.epoch) < limit:
            for index in [index for index, at in kill.items() if at <= now]:
                self._kill(index)
                del kill[index]
            for line in wait([line for line in self.lines if not line.closed], timeout=0.02):
                self._take(line)  # type: ignore[arg-type]
            if kill:
                continue
            if self.changed and until is not None:
                self.changed = False
                if until(self.outcome):
                    reason = "until"
                    break
            if self._quiet():
                reason = "quiet"
                break
        self.outcome.time, self.outcome.stopped = time.monotonic() - self.epoch, reason
        self._stop()
        for spent in self.spent.values():
            self.outcome.meter.add(spent)
        return self.outcome

    def _kill(self, index: int) -> None:
        """Ends a process by SIGKILL; what it has told so far counts."""
        line = self.lines[index]
        self.workers[index].kill()
        with contextlib.suppress(EOFError, OSError):
            while line.poll(1.0):
                self._told(index, line.recv())
        self._gone(index)

    def _gone(self, index: int) -> None:
        self.lines[index].close()
        self.counts.pop(index, None)
        self.last, self.unheard = time.monotonic(), None

    def _quiet(self) -> bool:
        """Whether nothing moves any more: a long silence, and all who live say so when asked.

        Silence alone may be that of a node which is busy.
        """
        if time.monotonic() - self.last <= self._patience():
            return False
        if self.unheard is None:
            self.unheard = {index for index, line in enumerate(self.lines) if not line.closed}
            for index in self.unheard:
                with contextlib.suppress(ConnectionError):  # it has just died, which is heard in a moment
                    self.lines[index].send(ASKED)
        return not self.unheard

    def _patience(self) -> float:
        """Seconds of silence that mean the end."""
        sent, got, timers = (sum(column) for column in zip((0, 0, 0), *self.counts.values(), strict=True))
        if timers:
            return math.inf
        return CALM if sent == got and len(self.counts) == self.count else IDLE

    def _take(self, line: Connection) -> None:
        index = self.lines.index(line)
        try:
            self._told(index, line.recv())
        except (EOFError, OSError):  # perhaps in the middle of a word
            self._gone(index)
            if not self.stopping:
                self._died(index)

    def _died(self, index: int) -> None:
        """Nobody here ended it: killed by somebody else it counts as crashed, all else is the node's doing."""
        worker, nodes = self.workers[index], [node for node, home in enumerate(self.homes) if home == index]
        worker.join(1.0)
        if worker.exitcode != -signal.SIGKILL:
            listed = ", ".join(map(str, nodes))
            raise Death(f"process {index} (nodes {listed}) ended in the middle of the run, exit code {worker.exitcode}")
        self.outcome.correct = tuple(node for node in self.outcome.correct if node not in nodes)
        self.changed = True

    def _told(self, index: int, told: Any) -> None:
        _, news, counts, self.spent[index] = told
        if news or counts != self.counts.get(index):
            self.last, self.unheard = time.monotonic(), None
        elif self.unheard:
            self.unheard.discard(index)
        self.counts[index] = counts
        for entry in news:
            self._news(index, *entry)

    def _news(self, index: int, kind: str, *rest: Any) -> None:
        outcome = self.outcome
        if kind == "failed":
            raise Death(f"process {index} failed: {rest[0]}\n{rest[1]}")
        if kind == "refused":
            outcome.refused.append(rest[0])
            return
        time_, node, *more = rest
        if kind == "decide":
            slot, value = more
            outcome.log.append(Decision(time_, node, slot, value))
            outcome.decisions[node].setdefault(slot, value)
        elif kind == "invoke":
            number, f, key, value = more
            self.places[index, number] = len(outcome.operations)
            outcome.operations.append(Operation(node, f, key, value, None, time_, math.inf, "info"))
        else:
            number, result, status = more
            place = self.places[index, number]
            done = outcome.operations[place]._replace(result=result, complete=time_, status=status)
            outcome.operations[place] = done
        self.changed = True

    def _stop(self) -> None:
        """Asks all to stop, and takes their last words and counts."""
        self.stopping = True
        alive = [line for line in self.lines if not line.closed]
        for line in alive:
            try:
                line.send("stop")
            except (BrokenPipeError, ConnectionError):
                line.close()
        deadline = time.monotonic() + 10.0
        while (alive := [line for line in self.lines if not line.closed]) and time.monotonic() < deadline:
            for ready in wait(alive, timeout=0.1):
                self._take(ready)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Nothing is left running."""
        for line in self.lines:
            line.close()
        for worker in self.workers:
            worker.join(0.5)
            if worker.is_alive():
                worker.kill()
                worker.join()
