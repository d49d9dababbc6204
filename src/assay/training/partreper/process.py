"""One process of a partially replicated job: numbered messages, their log, and the way back after a death.

A rank is carried by one process, or by two that compute the same. The first of its living carriers is its primary, the
other its replica. A message of rank `s` to rank `d` goes from primary to primary; a replica of `d` gets it from the
replica of `s`, or from the primary where `s` has none. The number of a message is how many `s` has sent to `d` before.
Numbers, and not processes, say what is missing: both carriers of a rank send the same under the same number.

After a death: revoke, shrink, drop the dead from the carriers (the next one is the primary then), tell everybody how
far one has got with each rank, and send again whatever of the log the others have not got. Nothing is done with a
message of an older communicator. Whoever dies meanwhile only makes the survivors begin this once more.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

HEAD = struct.Struct("<6q")  # kind, rank that sent, communicator, tag, number, spare
DATA, ACK, DECISION, KNOWN, STATE = range(5)
WIRE = 7  # the tag of everything
ANY = -1
OFTEN, HEAVY = 32, 1 << 20  # messages, or bytes, after which a receiver says how far it has got
ROOM = 1 << 26  # bytes to one rank that may wait for that word
EAGER = 1 << 16  # a blocking send of more waits until the bytes have left
SPINS, NAP = 2000, 5e-5
LOST, STUCK = 75, 70  # exit codes
TICK, MENDING = 0.05, 60.0  # seconds: of the watcher, and of a recovery
GRACE = 20.0  # seconds in which a replica may come to its end, too, when all ranks have

Bytes = Any  # an array of bytes, which struct and pickle take as it is


@dataclass(frozen=True)
class Seat:
    """The job as a process finds it: how many ranks, which of them have a replica, where to leave word."""

    ranks: int
    twins: tuple[int, ...]
    folder: Path
    patience: float = 600.0
    kills: tuple[tuple[int, str, int], ...] = ()  # process, point, how often that point was passed before

    @staticmethod
    def read(told: str) -> Seat:
        """What the starter wrote into the environment."""
        found = json.loads(told)
        kills = tuple((int(who), str(point), int(at)) for who, point, at in found["kills"])
        return Seat(found["ranks"], tuple(found["twins"]), Path(found["folder"]), found["patience"], kills)


@dataclass
class Message:
    """What arrived, and when among all that did."""

    source: int
    tag: int
    number: int
    data: Bytes
    arrival: int


@dataclass(eq=False)
class Receive:
    """A posted receive; `order` numbers those whose match is not certain beforehand."""

    context: int
    source: int
    tag: int
    order: int = -1
    message: Message | None = None

    def fits(self, message: Message) -> bool:
        """Whether it would take a message of its communicator."""
        return self.source in (ANY, message.source) and self.tag in (ANY, message.tag)

    def overlaps(self, other: Receive) -> bool:
        """Whether some message would fit both."""
        return (
            self.context == other.context
            and (ANY in (self.source, other.source) or self.source == other.source)
            and (ANY in (self.tag, other.tag) or self.tag == other.tag)
        )


@dataclass
class Sent:
    """The log of what went to one rank, and how far each of its carriers has got."""

    entries: deque[tuple[int, Bytes]] = field(default_factory=deque)
    count: int = 0
    nbytes: int = 0
    have: dict[int, int] = field(default_factory=dict)

    def forget(self, carriers: list[int]) -> bool:
        """What all living carriers have got; whether there is room again."""
        floor = min((self.have.get(one, 0) for one in carriers), default=self.count)
        while self.entries and self.entries[0][0] < floor:
            self.nbytes -= self.entries.popleft()[1].nbytes
        return self.nbytes < ROOM


class Process:
    """A carrier of one rank: sends, receives, and recovers."""

    def __init__(self, mpi: Any, seat: Seat) -> None:
        self.mpi, self.seat = mpi, seat
        self.comm = mpi.COMM_WORLD.Dup()
        self.comm.Set_errhandler(mpi.ERRORS_RETURN)
        _meet(mpi)
        self.group, self.me, self.size = mpi.COMM_WORLD.Get_group(), mpi.COMM_WORLD.Get_rank(), seat.ranks
        self.rank = self.me if self.me < self.size else seat.twins[self.me - self.size]
        self.carriers = {rank: [rank] for rank in range(self.size)}
        for at, rank in enumerate(seat.twins):
            self.carriers[rank].append(self.size + at)
        self.place = {one: one for one in range(self.size + len(seat.twins))}  # of a process in the communicator
        self.log: dict[int, Sent] = defaultdict(Sent)
        self.have: Counter[int] = Counter()  # messages from each rank
        self.unsaid: dict[int, list[int]] = defaultdict(lambda: [0, 0])  # of those, messages and bytes since the word
        self.mail: dict[tuple[int, int], list[Message]] = defaultdict(list)
        self.posted: list[Receive] = []
        self.coming: dict[int, deque[tuple[Any, Bytes]]] = defaultdict(deque)
        self.leaving: deque[tuple[Any, Bytes]] = deque()
        self.buried: list[Any] = []  # requests of older communicators, whose buffers MPI may still read
        self.decisions: dict[int, tuple[int, int]] = {}
        self.untold: dict[int, tuple[int, int]] = {}  # decisions that the replica has not confirmed
        self.orders = self.arrivals = self.epoch = 0
        self.contexts = 1  # the last number of a communicator: 0 is the world, 1 each by itself
        self.counts: Counter[str] = Counter()
        self.mending: list[float] = []
        self.waits = 0  # that have begun or ended: odd while one goes on
        self.broken = self.recovering = self.finished = self.late = False
        self.states: dict[int, NDArray[np.int64]] = {}
        self.status = mpi.Status()
        self.passed: Counter[str] = Counter()
        self.doom = {(point, at) for who, point, at in seat.kills if who == self.me}
        threading.Thread(target=self._watch, name="assay-partreper", daemon=True).start()

    # ------------------------------------------------------------------------------------------------------ roles

    @property
    def primary(self) -> bool:
        """Whether this process speaks for its rank."""
        return bool(self.carriers[self.rank][0] == self.me)

    def targets(self, dest: int) -> Iterator[int]:
        """The processes that get this one's messages to a rank."""
        mine, theirs = self.carriers[self.rank], self.carriers[dest]
        if mine[0] == self.me:
            yield theirs[0]
            if len(theirs) > 1 and len(mine) == 1:
                yield theirs[1]
        elif len(theirs) > 1:
            yield theirs[1]

    def pass_by(self, point: str) -> None:
        """A place where a process may be told to die; they are counted."""
        if (point, self.passed[point]) in self.doom:
            os.kill(os.getpid(), signal.SIGKILL)
        self.passed[point] += 1

    # ------------------------------------------------------------------------------------------------------ sending

    def send(self, dest: int, context: int, tag: int, data: Any, *, wait: bool = True) -> None:
        """Log and send; a blocking one returns when the bytes have left, an error on the way is mended by the log."""
        payload = np.frombuffer(data, np.uint8) if len(data) else np.empty(0, np.uint8)
        buffer: Bytes = np.empty(HEAD.size + payload.nbytes, np.uint8)
        buffer[HEAD.size :] = payload
        if dest == self.rank:
            self._deliver(Message(dest, tag, -1, buffer[HEAD.size :], self.arrivals), context)
            return
        # Whatever is sent may depend on a choice this process made; its replica must know the choice by then.
        self.until(lambda: not self.untold or not self._replica())
        sent = self.log[dest]
        self.until(lambda: sent.nbytes < ROOM or sent.forget(self.carriers[dest]))
        HEAD.pack_into(buffer, 0, DATA, self.rank, context, tag, sent.count, 0)
        number = sent.count
        sent.entries.append((number, buffer))
        sent.count += 1
        sent.nbytes += buffer.nbytes
        self.counts["logical"] += self.primary
        for target in self.targets(dest):
            if number >= sent.have.get(target, 0):
                self._put(target, buffer, "collective" if context % 2 else "sent")
        if wait and buffer.nbytes > EAGER:
            self.until(lambda: not self.leaving)

    def _put(self, target: int, buffer: Bytes, what: str) -> None:
        """One message on the wire. Where that fails the log has it, and the next look at what has come recovers."""
        self.pass_by("send")
        self.counts[what] += 1
        if self.broken:
            return
        try:
            request = self.comm.Isend([buffer, self.mpi.BYTE], self.place[target], WIRE)
        except self.mpi.Exception:
            self.broken = True
            return
        self.leaving.append((request, buffer))

    def _tell(self, target: int, kind: int, *numbers: int) -> None:
        """A word of the layer to another process: who says it, then three numbers."""
        buffer: Bytes = np.empty(HEAD.size, np.uint8)
        HEAD.pack_into(buffer, 0, kind, self.me, *(*numbers, 0, 0, 0)[:3], 0)
        self._put(target, buffer, "control")

    # ------------------------------------------------------------------------------------------------------ receiving

    def post(self, receive: Receive) -> None:
        """Let a receive take part in matching, behind those posted before it."""
        if receive.source == ANY:
            receive.order, self.orders = self.orders, self.orders + 1
        self.posted.append(receive)
        self._match()

    def until(self, ready: Callable[[], Any]) -> None:
        """Poll until something holds; deaths are mended meanwhile."""
        spins = 0
        while not ready():
            self.waits |= 1
            spins = 0 if self.progress() else spins + 1
            if spins > SPINS:
                time.sleep(NAP)
            elif spins and spins % 20 == 0:
                os.sched_yield()
        self.waits += self.waits & 1

    def progress(self) -> bool:
        """Take what has come; whether anything has."""
        try:
            if not self.broken:
                return self._poll()
        except self.mpi.Exception:
            pass
        self.recover()
        return True

    def _poll(self) -> bool:
        status, came = self.status, False
        while self.leaving and self.leaving[0][0].Test():
            self.leaving.popleft()
        while (message := self.comm.Improbe(self.mpi.ANY_SOURCE, WIRE, status)) is not None:
            buffer = np.empty(status.Get_count(self.mpi.BYTE), np.uint8)
            self.coming[status.Get_source()].append((message.Irecv([buffer, self.mpi.BYTE]), buffer))
            came = True
        for queue in self.coming.values():
            while queue and queue[0][0].Test():
                came = True
                self._take(queue.popleft()[1])
        return came

    def _take(self, buffer: Bytes) -> None:
        kind, who, context, tag, number, _ = HEAD.unpack_from(buffer)
        if kind == DATA:
            if number < self.have[who]:
                self.counts["dropped"] += 1  # a replica that took over was behind: the number is known
                return
            if number > self.have[who]:
                self.stuck(f"message {number} of rank {who} came before {self.have[who]}")
            self.have[who] += 1
            self._deliver(Message(who, tag, number, buffer[HEAD.size :], self.arrivals), context)
            self._confirm(who, buffer.nbytes)
        elif kind == ACK:
            self._got(who, context, tag)
        elif kind == DECISION:
            self.decisions[context] = (tag, number)
            self._tell(who, KNOWN, context)
            self._match()
        elif kind == KNOWN:
            self.untold.pop(context, None)
        else:
            self.states[who] = buffer[HEAD.size :].view(np.int64)

    def _confirm(self, source: int, nbytes: int) -> None:
        """Now and then a receiver says how far it has got, so that logs stay short."""
        unsaid = self.unsaid[source]
        unsaid[0] += 1
        unsaid[1] += nbytes
        if unsaid[0] >= OFTEN or unsaid[1] >= HEAVY:
            unsaid[:] = 0, 0
            for carrier in list(self.carriers[source]):
                self._tell(carrier, ACK, self.rank, self.have[source])

    def _got(self, carrier: int, rank: int, have: int) -> None:
        sent = self.log[rank]
        sent.have[carrier] = max(have, sent.have.get(carrier, 0))
        sent.forget(self.carriers[rank])

    def _deliver(self, message: Message, context: int) -> None:
        self.arrivals += 1
        self.mail[context, message.source].append(message)
        self._match()

    def _match(self) -> None:
        """Give posted receives what they fit, the earliest posted first."""
        held: list[Receive] = []
        for receive in list(self.posted):
            if any(receive.overlaps(other) for other in held):
                continue
            found = self._find(receive)
            if found is None:
                if receive.order >= 0:
                    held.append(receive)  # its match is open: whoever was posted later must not take it
                continue
            self.mail[receive.context, found.source].remove(found)
            receive.message = found
            self.decisions.pop(receive.order, None)
            self.posted.remove(receive)

    def _find(self, receive: Receive) -> Message | None:
        if receive.order < 0:
            return next(
                (one for one in self.mail.get((receive.context, receive.source), ()) if receive.fits(one)), None
            )
        if receive.order not in self.decisions and self.primary:
            found = self.waiting(receive)
            if found is not None:
                self.decide(receive.order, found.source, found.number)
            return found
        return self.chosen(receive.context, self.decisions.get(receive.order))

    def waiting(self, receive: Receive) -> Message | None:
        """The message that came first of those a receive would take, and that nobody has taken."""
        fitting = [
            one for (context, _), some in list(self.mail.items()) if context == receive.context
            for one in some if receive.fits(one)
        ]  # fmt: skip
        return min(fitting, key=lambda one: one.arrival, default=None)

    def chosen(self, context: int, decision: tuple[int, int] | None) -> Message | None:
        """The message that the primary took, once it is here, too."""
        if decision is None:
            return None
        return next((one for one in self.mail.get((context, decision[0]), ()) if one.number == decision[1]), None)

    # ------------------------------------------------------------------------------------------------------ decisions

    def _replica(self) -> int | None:
        """The replica of this primary."""
        mine = self.carriers[self.rank]
        return mine[1] if mine[0] == self.me and len(mine) > 1 else None

    def decide(self, order: int, first: int, second: int) -> None:
        """A primary chooses; the replica has to choose the same."""
        if (replica := self._replica()) is not None:
            self.untold[order] = (first, second)
            self._tell(replica, DECISION, order, first, second)

    def choice(self, make: Callable[[], tuple[int, int]]) -> tuple[int, int]:
        """What chance, or time, decides: the primary's outcome, on both carriers."""
        order, self.orders = self.orders, self.orders + 1
        self.until(lambda: order in self.decisions or self.primary)
        if order in self.decisions:
            return self.decisions.pop(order)
        found = make()
        self.decide(order, *found)
        return found

    # ------------------------------------------------------------------------------------------------------ recovery

    def recover(self) -> None:
        """Until a communicator of survivors has exchanged what they have."""
        began, self.recovering = time.monotonic(), True
        while True:
            try:
                self._mend()
                break
            except self.mpi.Exception:
                self.counts["again"] += 1
        self.mending.append(time.monotonic() - began)
        self.recovering = False
        self._match()

    def _mend(self) -> None:
        self.pass_by("recovery")
        self.comm.Revoke()
        self.pass_by("recovery")
        self.buried += [self.leaving, self.coming]
        self.leaving, self.coming = deque(), defaultdict(deque)
        comm = self.comm.Shrink()
        comm.Set_errhandler(self.mpi.ERRORS_RETURN)
        self.comm, self.epoch, self.broken = comm, self.epoch + 1, False
        group = comm.Get_group()
        alive = self.mpi.Group.Translate_ranks(group, list(range(group.Get_size())), self.group)
        self.place = {one: at for at, one in enumerate(alive)}
        for rank, some in self.carriers.items():
            some[:] = [one for one in some if one in self.place]
            if not some:
                self._lost(rank)
        self.pass_by("recovery")
        self._exchange()
        self.pass_by("recovery")

    def _exchange(self) -> None:
        """Say what one has, hear what the others have, send what they lack."""
        self.states = {}
        mine = np.array([self.have[rank] for rank in range(self.size)], np.int64)
        buffer: Bytes = np.empty(HEAD.size + mine.nbytes, np.uint8)
        HEAD.pack_into(buffer, 0, STATE, self.me, 0, 0, 0, 0)
        buffer[HEAD.size :] = mine.view(np.uint8)
        others = [one for one in self.place if one != self.me]
        for one in others:
            self.leaving.append((self.comm.Isend([buffer, self.mpi.BYTE], self.place[one], WIRE), buffer))
        while not all(one in self.states for one in others):
            if not self._poll():
                time.sleep(NAP)
        self.pass_by("recovery")
        for dest, sent in self.log.items():
            for carrier in self.carriers[dest]:
                sent.have[carrier] = int(self.states[carrier][self.rank])
            sent.forget(self.carriers[dest])
            for target in self.targets(dest):
                self._again(target, sent)
        if (replica := self._replica()) is not None:
            for order, (first, second) in self.untold.items():
                self._tell(replica, DECISION, order, first, second)
        else:
            self.untold.clear()

    def _again(self, target: int, sent: Sent) -> None:
        for number, buffer in sent.entries:
            if number >= sent.have[target]:
                self.pass_by("send")
                collective = HEAD.unpack_from(buffer)[2] % 2
                self.counts["replayed" if collective else "resent"] += 1
                self.leaving.append((self.comm.Isend([buffer, self.mpi.BYTE], self.place[target], WIRE), buffer))

    def _lost(self, rank: int) -> NoReturn:
        """Nobody carries a rank any more: the job cannot go on, and says so."""
        line = f"rank {rank} died and has no replica left; start again from the last checkpoint"
        self.leave_word("lost", {"rank": rank, "why": line})
        self._exit(LOST)

    # ------------------------------------------------------------------------------------------------------ the end

    def leave_word(self, name: str, word: Any) -> None:
        """A file in the job's folder, whole or not at all."""
        aside = self.seat.folder / f"{name}.{self.me}.part"
        aside.write_text(json.dumps(word))
        aside.rename(self.seat.folder / f"{name}.{self.me}")

    def finish(self, answer: dict[str, Any]) -> None:
        """The script is over here; the answer is kept before anybody hears of it, with what the layer counted.

        Others may still need what only this process has logged: stay until all are done.
        """
        self.finished = True
        report = {
            "rank": self.rank, "process": self.me, "counts": dict(self.counts), "mending": self.mending,
            "points": dict(self.passed), **answer,
        }  # fmt: skip
        aside = self.seat.folder / f"answer.{self.me}.part"
        aside.write_bytes(pickle.dumps(report))
        aside.rename(self.seat.folder / f"answer.{self.me}")
        self.leave_word("done", {})
        while not (over(self.seat) and (self.late or set(self.place) <= done(self.seat))):
            if not self.progress():
                time.sleep(1e-3)

    def _watch(self) -> None:
        """Ends the process when the job is over, or when a wait is longer than anybody's patience.

        It counts its own naps, and not the clock: a machine that was stopped for a while is nobody's fault.
        """
        seen, naps, ends = (0, 0), 0, 0
        while True:
            time.sleep(TICK)
            ends = ends + 1 if over(self.seat) else 0
            self.late = ends * TICK > GRACE
            if ends and (self.recovering or (self.late and not self.finished)):
                self.leave_word("left", {})  # the other carrier of this rank has done all there was to do
                self._exit(0)
            now = (self.waits, len(self.mending))
            busy = self.recovering or (self.waits & 1 and not self.finished)
            seen, naps = now, (naps + 1 if busy and now == seen else 0)
            if naps * TICK > (min(MENDING, self.seat.patience) if self.recovering else self.seat.patience):
                self.stuck("the survivors did not agree in time" if self.recovering else "nothing came in time")

    def stuck(self, why: str) -> NoReturn:
        """End with one line rather than hang."""
        self.leave_word("stuck", {"why": f"rank {self.rank}, process {self.me}: {why}"})
        sys.stderr.write(f"rank {self.rank}, process {self.me}: {why}\n")
        self._exit(STUCK)

    def _exit(self, code: int) -> NoReturn:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _meet(mpi: Any) -> None:
    """Two words with everybody, before the script begins.

    Open MPI connects two processes at their first message, and may crash where one of them dies meanwhile. Nobody goes
    on who has not had the second word of all others, which is sent after the first of all others has come; so who is
    found dead here has met everybody. A barrier would not do: one that fails in it leaves others waiting for its part.
    """
    world = mpi.COMM_WORLD
    others = [one for one in range(world.Get_size()) if one != world.Get_rank()]
    for word in (1, 2):
        sent = [world.isend(None, one, word) for one in others]
        for one in others:
            with suppress(mpi.Exception):
                world.recv(source=one, tag=word)
        for request in sent:
            with suppress(mpi.Exception):
                request.wait()


def done(seat: Seat) -> set[int]:
    """The processes that have come to the end."""
    return {int(word) for path in seat.folder.glob("done.*") if (word := path.suffix[1:]).isdigit()}


def over(seat: Seat) -> bool:
    """Whether some carrier of every rank has come to its end."""
    every = [*range(seat.ranks), *seat.twins]
    return len({every[one] for one in done(seat)}) == seat.ranks
