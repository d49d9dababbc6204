"""Collectives on a ring of real TCP connections, with a probe on every Send and Recv.

All-reduce, all-gather, reduce-scatter and all-to-all as a collective library runs them: the payload goes round in
several loops, each loop is a chain of steps, and in a step a rank sends to the next and receives from the one before,
on every channel at once. Ranks are never gathered at a barrier; who is late makes the next one wait, and the
next but one. A `rate` caps what a rank puts on the wire, slice by slice: that is how a slow link is made.

Every slice is labelled with the call it belongs to, as messages in MPI or Gloo are; one for another call never
matches. Neither that nor a lost neighbour raises anything: the rank waits on, as a kernel on a GPU would, until
somebody stops it.

>>> from concurrent.futures import ThreadPoolExecutor
>>> from assay.observe.ccl_d.links import connect, listen
>>> listeners = [listen() for _ in range(3)]
>>> ports = [listener.getsockname()[1] for listener in listeners]
>>> def job(rank):
...     with Ring(rank, connect(listeners[rank], ports, rank)) as ring:
...         return ring.all_reduce(np.arange(4.0) + rank)
>>> with ThreadPoolExecutor(3) as pool:
...     [result.tolist() for result in pool.map(job, range(3))]
[[3.0, 6.0, 9.0, 12.0], [3.0, 6.0, 9.0, 12.0], [3.0, 6.0, 9.0, 12.0]]
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.observe.ccl.probe import NoProbe, Probe
from assay.observe.ccl_d.links import GLANCE, Aborted, Neighbours

LOOPS = 2  # times a payload goes round: the ends of the chain then weigh little against its length
_LABEL = struct.Struct("<qqq")
Array = NDArray[Any]


class Parcel:
    """A slice on its way: its label (which call, which slice of it, how long), what is left of it, when it may go."""

    def __init__(self, views: list[memoryview], size: int, due: float = -math.inf) -> None:
        self.left, self.size, self.due = list(views), size, due
        self._label = views[0]

    @property
    def label(self) -> tuple[int, ...]:
        """The label's three numbers, once it has arrived."""
        return _LABEL.unpack(self._label)

    def moved(self, count: int) -> None:
        """So many bytes are through."""
        while count:
            first = self.left[0]
            step = min(count, len(first))
            count -= step
            if step == len(first):
                self.left.pop(0)
            else:
                self.left[0] = first[step:]


class Ring:
    """One rank's place in a ring of connections. Arrays are left as they are; results are new."""

    def __init__(
        self, position: int, neighbours: Neighbours, probe: Probe | NoProbe | None = None, *,
        rate: Callable[[], float] = lambda: 0.0, stopped: Callable[[], bool] = lambda: False,
        clock: Callable[[], int] = time.monotonic_ns, loops: int = LOOPS,
    ) -> None:  # fmt: skip
        self.position, self.size, self.loops = position, neighbours.size, loops
        self._ends, self._probe = neighbours, probe or NoProbe()
        self._rate, self._stopped, self._clock = rate, stopped, clock
        self._lost: set[socket.socket] = set()
        self._channels = len(neighbours.inlets)
        self._operation = self._slice = 0
        self._wire_free = -math.inf  # not 0: a clock may start anywhere, below zero too

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def call(self, kind: str, array: Array) -> Array:
        """A collective by its name."""
        found: Callable[[Array], Array] = getattr(self, kind)
        return found(array)

    def all_reduce(self, array: Array) -> Array:
        """The sum of all ranks' arrays."""
        flat = np.array(array).reshape(-1)
        self._enter("all_reduce", flat)
        for piece in np.array_split(flat, self.loops):
            chunks = np.array_split(piece, self.size)
            self._reduce(chunks)
            self._spread(chunks)
        return self._leave(flat).reshape(np.shape(array))

    def reduce_scatter(self, array: Array) -> Array:
        """This rank's share of the sum: the rows that belong to its position."""
        rows = _rows(array, self.size).copy()
        self._enter("reduce_scatter", rows)
        for piece in np.array_split(rows, self.loops, axis=1):
            chunks = [np.ascontiguousarray(row) for row in piece]
            self._reduce(chunks)
            piece[self.position] = chunks[self.position]
        return self._leave(rows[self.position].copy())

    def all_gather(self, array: Array) -> Array:
        """All ranks' arrays, one after the other."""
        own = np.array(array).reshape(-1)
        rows = np.empty((self.size, own.size), own.dtype)
        rows[self.position] = own
        self._enter("all_gather", own)
        for piece in np.array_split(rows, self.loops, axis=1):
            chunks = [np.ascontiguousarray(row) for row in piece]
            self._spread(chunks)
            piece[:] = chunks
        return self._leave(rows.reshape(-1))

    def all_to_all(self, array: Array) -> Array:
        """Block i goes to rank i: what arrives from rank j stands at place j. Blocks travel on until they are home."""
        rows = _rows(array, self.size)
        got = rows.copy()
        self._enter("all_to_all", rows)
        onward = np.roll(rows, -self.position - 1, axis=0)[:-1]  # for the next rank first, for the one before last
        for piece, home in zip(
            np.array_split(onward, self.loops, axis=1), np.array_split(got, self.loops, axis=1), strict=True
        ):
            transit = np.ascontiguousarray(piece)
            for hop in range(1, self.size):
                arrived = np.empty_like(transit)
                self._step(transit.reshape(-1), arrived.reshape(-1))
                home[(self.position - hop) % self.size] = arrived[0]
                transit = arrived[1:]
        return self._leave(got.reshape(-1))

    # ---------------------------------------------------------------------------------------------- the ring

    def _reduce(self, chunks: list[Array]) -> None:
        """After n-1 steps chunk `position` holds the sum."""
        here, n = self.position, self.size
        for step in range(n - 1):
            target = chunks[(here - step - 2) % n]
            arrived = np.empty_like(target)
            self._step(chunks[(here - step - 1) % n], arrived)
            target += arrived

    def _spread(self, chunks: list[Array]) -> None:
        """Chunk `position` goes round to everybody."""
        here, n = self.position, self.size
        for step in range(n - 1):
            self._step(chunks[(here - step) % n], chunks[(here - step - 1) % n])

    def _step(self, out: Array, into: Array) -> None:
        """One Send and one Recv on every channel. The rank goes on when all are complete."""
        begin = self._clock()
        sending, receiving = self._posted(out, begin), self._wanted(into)
        self._slice += 1
        while sending or receiving:
            if self._stopped():
                raise Aborted
            now = self._clock()
            due = {self._ends.outlets[c]: c for c, parcel in sending.items() if parcel.due <= now}
            later = [parcel.due - now for parcel in sending.values() if parcel.due > now]
            wanted = {self._ends.inlets[c]: c for c in receiving}
            wait = min([GLANCE, *(left / 1e9 for left in later)])
            readable, writable, _ = select.select(
                [s for s in wanted if s not in self._lost], [s for s in due if s not in self._lost], [], wait
            )
            for outlet in writable:
                self._send(outlet, due[outlet], sending, begin)
            for inlet in readable:
                self._recv(inlet, wanted[inlet], receiving, begin)

    def _posted(self, out: Array, begin: int) -> dict[int, Parcel]:
        """What to send on each channel, and from when: the wire carries one slice after the other at its rate."""
        posted: dict[int, Parcel] = {}
        rate = self._rate()
        for channel, part in enumerate(_parts(out, self._channels)):
            if part.size:
                takes = int(part.nbytes / rate * 1e9) if rate > 0 else 0
                self._wire_free = max(self._wire_free, begin) + takes
                label = memoryview(_LABEL.pack(self._operation, self._slice, part.nbytes))
                posted[channel] = Parcel([label, part.data.cast("B")], part.nbytes, self._wire_free)
        return posted

    def _wanted(self, into: Array) -> dict[int, Parcel]:
        parts = enumerate(_parts(into, self._channels))
        return {
            channel: Parcel([memoryview(bytearray(_LABEL.size)), part.data.cast("B")], part.nbytes)
            for channel, part in parts
            if part.size
        }

    def _send(self, outlet: socket.socket, channel: int, sending: dict[int, Parcel], begin: int) -> None:
        parcel = sending[channel]
        try:
            parcel.moved(outlet.sendmsg(parcel.left))
        except BlockingIOError:
            return
        except OSError:
            self._lost.add(outlet)
            return
        if not parcel.left:
            del sending[channel]
            now = self._clock()
            self._probe.sent(channel, parcel.size, now - begin, now)

    def _recv(self, inlet: socket.socket, channel: int, receiving: dict[int, Parcel], begin: int) -> None:
        parcel = receiving[channel]
        try:
            got = inlet.recvmsg_into(parcel.left)[0]
        except BlockingIOError:
            return
        except OSError:
            got = 0
        parcel.moved(got)
        labelled = len(parcel.left) < 2
        if not got or (labelled and parcel.label != (self._operation, self._slice - 1, parcel.size)):
            self._lost.add(inlet)  # gone, or sent for another call than this one: what is wanted will not come
        elif not parcel.left:
            del receiving[channel]
            now = self._clock()
            self._probe.received(channel, now - begin, now)

    def _enter(self, kind: str, array: Array) -> None:
        self._operation, self._slice = self._operation + 1, 0
        self._probe.enter(kind, array.dtype.num, array.size, self._clock())

    def _leave(self, result: Array) -> Array:
        self._probe.leave(self._clock())
        return result


def _parts(array: Array, channels: int) -> list[Array]:
    """What each channel carries. Most rings have one, and splitting costs as much as sending."""
    return [array] if channels == 1 else np.array_split(array, channels)


def _rows(array: Array, n: int) -> Array:
    flat = np.asarray(array).reshape(-1)
    if flat.size % n:
        raise ValueError(f"{flat.size} elements do not split evenly among {n} ranks")
    return flat.reshape(n, -1)
