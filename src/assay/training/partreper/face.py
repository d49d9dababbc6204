"""What a script sees: the calls of mpi4py that it knows, over numbered messages.

Collectives are trees and exchanges of the layer's own messages, each under the number of its collective: what a death
interrupts is sent again message by message, and the collective goes on where it stood. Replicas take part in them as
in everything else. All sums are added in the same order every time.
"""

# ruff: noqa: D102, N802 - the names, and what they do, are those of mpi4py

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.training.partreper.process import ANY, Message, Process, Receive, Seat

VARIABLE = "ASSAY_PARTREPER"  # by which a starter tells a process its seat
UFUNCS: dict[str, Any] = {
    "SUM": np.add, "PROD": np.multiply, "MAX": np.maximum, "MIN": np.minimum, "LAND": np.logical_and,
    "LOR": np.logical_or, "BAND": np.bitwise_and, "BOR": np.bitwise_or, "BXOR": np.bitwise_xor,
}  # fmt: skip
PLAIN = (
    "ANY_SOURCE", "ANY_TAG", "PROC_NULL", "IN_PLACE", "UNDEFINED", "Wtime", "Wtick", "Get_processor_name", "Exception",
    "Is_initialized", "Get_version", "Get_library_version", "BYTE", "CHAR", "BOOL", "C_BOOL", "SHORT", "INT", "LONG",
    "LONG_LONG", "INT8_T", "INT16_T", "INT32_T", "INT64_T", "UINT8_T", "UINT16_T", "UINT32_T", "UINT64_T", "FLOAT",
    "DOUBLE", "FLOAT_INT", "COMPLEX", "DOUBLE_COMPLEX", "C_DOUBLE_COMPLEX", "Op", *UFUNCS,
)  # fmt: skip
"""Names of mpi4py's module that are only values; everything else that is not ours is refused."""


class Unsupported(AttributeError):  # noqa: N818 - what a call is
    """A call of MPI that the layer has not."""


class Status:
    """Where a message came from, under which tag, and how long it was."""

    def __init__(self) -> None:
        self.source = self.tag = -1
        self.nbytes = 0

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_count(self, datatype: Any = None) -> int:
        return self.nbytes // (datatype.Get_size() if datatype is not None else 1)


def flat(spec: Any) -> NDArray[Any]:
    """The elements of a buffer as mpi4py writes it: an array, `[array, type]` or `[array, count, type]`.

    >>> flat([np.arange(6).reshape(2, 3), 4, None]).tolist()
    [0, 1, 2, 3]
    """
    parts = list(spec) if isinstance(spec, (list, tuple)) else [spec]
    array: Any = parts[0]
    if not isinstance(array, np.ndarray):
        codes = [part.typestr for part in parts[1:] if hasattr(part, "typestr")]
        array = np.frombuffer(array, np.dtype(codes[0]) if codes else np.uint8)
    if not array.flags.c_contiguous:
        raise ValueError("a buffer that is sent or received must be contiguous; numpy.ascontiguousarray makes it so")
    array = array.reshape(-1)
    return np.asarray(array[: parts[1]] if len(parts) > 1 and isinstance(parts[1], int) else array)


def blocks(spec: Any, size: int) -> list[NDArray[Any]]:
    """One block for each rank: equal ones, or by counts (and displacements) as the `v` calls name them.

    >>> [some.tolist() for some in blocks([np.arange(5), [2, 3]], 2)]
    [[0, 1], [2, 3, 4]]
    """
    if isinstance(spec, (list, tuple)) and len(spec) > 1 and isinstance(spec[1], (list, tuple, np.ndarray)):
        layout = spec[1]
        pair = isinstance(layout, tuple) and len(layout) == 2 and not isinstance(layout[0], (int, np.integer))
        counts = np.asarray(layout[0] if pair else layout, np.int64)
        from_two = spec[2] if len(spec) > 2 and isinstance(spec[2], (list, tuple, np.ndarray)) else None
        starts = np.asarray(layout[1] if pair else from_two if from_two is not None else np.cumsum(counts) - counts)
        array = flat(spec[0])
        return [array[at : at + count] for at, count in zip(starts, counts, strict=True)]
    return np.split(flat(spec), size)


class Request:
    """A send, over as soon as it is logged, or a receive."""

    def __init__(
        self, process: Process, receive: Receive | None = None, take: Callable[[Message], Any] = lambda _: None,
        members: Sequence[int] = (),
    ) -> None:  # fmt: skip
        self.process, self.receive, self._take, self._members = process, receive, take, members

    def wait(self, status: Status | None = None) -> Any:
        """Until the message is here: what it holds, or none of a send."""
        self.process.pass_by("call")
        return self._wait(status)

    def _wait(self, status: Status | None = None) -> Any:
        receive = self.receive
        if receive is None:
            return None
        self.process.until(lambda: receive.message)
        assert receive.message is not None
        _note(receive.message, status, self._members)
        return self._take(receive.message)

    def test(self, status: Status | None = None) -> tuple[bool, Any]:
        """Whether it is here now, which is the same on both carriers, and what it holds."""
        self.process.pass_by("call")
        receive = self.receive
        if receive is None:
            return True, None
        self.process.progress()
        here, _ = self.process.choice(lambda: (int(receive.message is not None), 0))
        return (True, self._wait(status)) if here else (False, None)

    def Wait(self, status: Status | None = None) -> bool:
        self.wait(status)
        return True

    def Test(self, status: Status | None = None) -> bool:
        return self.test(status)[0]

    @staticmethod
    def waitall(requests: Sequence[Request]) -> list[Any]:
        return [one.wait() for one in requests]

    @staticmethod
    def Waitall(requests: Sequence[Request], statuses: Any = None) -> bool:
        for one, status in zip(requests, statuses or [None] * len(requests), strict=True):
            one.wait(status)
        return True

    @staticmethod
    def waitany(requests: Sequence[Request], status: Status | None = None) -> tuple[int, Any]:
        """The first that is over; which one that is, the primary decides."""
        process = requests[0].process
        process.pass_by("call")

        def first() -> tuple[int, int]:
            process.until(lambda: any(_here(one) for one in requests))
            return next(at for at, one in enumerate(requests) if _here(one)), 0

        at, _ = process.choice(first)
        return at, requests[at]._wait(status)

    @staticmethod
    def Waitany(requests: Sequence[Request], status: Status | None = None) -> int:
        return Request.waitany(requests, status)[0]


def _here(request: Request) -> bool:
    return request.receive is None or request.receive.message is not None


def _note(message: Message, status: Status | None, members: Sequence[int]) -> None:
    if status is not None:
        status.source, status.tag, status.nbytes = members.index(message.source), message.tag, message.data.nbytes


class Comm:
    """A communicator of ranks; each rank may be carried by two processes, which the script does not see."""

    def __init__(self, process: Process, members: Sequence[int], context: int) -> None:
        self._process, self._members, self._context = process, list(members), context
        self.rank, self.size = self._members.index(process.rank), len(members)
        self._collectives = 0

    def Get_rank(self) -> int:
        return self.rank

    def Get_size(self) -> int:
        return self.size

    def __getattr__(self, name: str) -> Any:
        raise Unsupported(f"MPI.Comm.{name}: partial replication has no such call; it has {', '.join(CALLS)}")

    # ---------------------------------------------------------------------------------------------- point to point

    def _post(self, source: int, tag: int, take: Callable[[Message], Any]) -> Request:
        if source == PROC_NULL:
            return Request(self._process)
        named = source if source == ANY else self._members[source]
        receive = Receive(2 * self._context, named, tag)
        self._process.post(receive)
        return Request(self._process, receive, take, self._members)

    def _send(self, data: Any, dest: int, tag: int, *, wait: bool) -> Request:
        self._process.pass_by("call")
        if dest != PROC_NULL:
            self._process.send(self._members[dest], 2 * self._context, tag, data, wait=wait)
        return Request(self._process)

    def _into(self, buffer: Any) -> Callable[[Message], None]:
        array = flat(buffer)

        def take(message: Message) -> None:
            some = message.data.view(array.dtype)
            array[: len(some)] = some

        return take

    def send(self, obj: Any, dest: int, tag: int = 0) -> None:
        self._send(pickle.dumps(obj, -1), dest, tag, wait=True)

    def isend(self, obj: Any, dest: int, tag: int = 0) -> Request:
        return self._send(pickle.dumps(obj, -1), dest, tag, wait=False)

    def Send(self, buf: Any, dest: int, tag: int = 0) -> None:
        self._send(_bytes(flat(buf)), dest, tag, wait=True)

    def Isend(self, buf: Any, dest: int, tag: int = 0) -> Request:
        return self._send(_bytes(flat(buf)), dest, tag, wait=False)

    def irecv(self, buf: Any = None, source: int = ANY, tag: int = ANY) -> Request:
        self._process.pass_by("call")
        return self._post(source, tag, lambda message: pickle.loads(message.data))

    def Irecv(self, buf: Any, source: int = ANY, tag: int = ANY) -> Request:
        self._process.pass_by("call")
        return self._post(source, tag, self._into(buf))

    def recv(self, buf: Any = None, source: int = ANY, tag: int = ANY, status: Status | None = None) -> Any:
        return self.irecv(buf, source, tag)._wait(status)

    def Recv(self, buf: Any, source: int = ANY, tag: int = ANY, status: Status | None = None) -> None:
        self.Irecv(buf, source, tag)._wait(status)

    def sendrecv(self, sendobj: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY,
                 recvtag: int = ANY, status: Status | None = None) -> Any:  # fmt: skip
        request = self.irecv(None, source, recvtag)
        self.isend(sendobj, dest, sendtag)
        return request._wait(status)

    def Sendrecv(self, sendbuf: Any, dest: int, sendtag: int = 0, recvbuf: Any = None, source: int = ANY,
                 recvtag: int = ANY, status: Status | None = None) -> None:  # fmt: skip
        request = self.Irecv(recvbuf, source, recvtag)
        self.Isend(sendbuf, dest, sendtag)
        request._wait(status)

    def iprobe(self, source: int = ANY, tag: int = ANY, status: Status | None = None) -> bool:
        """Whether a message waits now; the same answer on both carriers."""
        return self._probe(source, tag, status, wait=False)

    def probe(self, source: int = ANY, tag: int = ANY, status: Status | None = None) -> bool:
        """Until a message waits."""
        return self._probe(source, tag, status, wait=True)

    Iprobe, Probe = iprobe, probe

    def _probe(self, source: int, tag: int, status: Status | None, *, wait: bool) -> bool:
        process = self._process
        process.pass_by("call")
        wanted = Receive(2 * self._context, source if source == ANY else self._members[source], tag)

        def look() -> tuple[int, int]:
            process.progress()
            if wait:
                process.until(lambda: process.waiting(wanted))
            found = process.waiting(wanted)
            return (found.source, found.number) if found else (-1, -1)

        decision = process.choice(look)
        if decision[0] < 0:
            return False
        process.until(lambda: process.chosen(wanted.context, decision))
        found = process.chosen(wanted.context, decision)
        assert found is not None
        _note(found, status, self._members)
        return True

    # ---------------------------------------------------------------------------------------------- collectives

    def _begin(self) -> int:
        self._process.pass_by("call")
        self._collectives += 1
        return self._collectives

    def _put(self, data: Any, dest: int, number: int) -> None:
        self._process.send(self._members[dest], 2 * self._context + 1, number, data, wait=False)

    def _get(self, source: int, number: int) -> Any:
        receive = Receive(2 * self._context + 1, self._members[source], number)
        self._process.post(receive)
        self._process.until(lambda: receive.message)
        assert receive.message is not None
        return receive.message.data

    def _swap(self, data: Any, other: int, number: int) -> Any:
        self._put(data, other, number)
        return self._get(other, number)

    def _tree_down(self, data: Any, root: int, number: int) -> Any:
        """From the root to everybody along a binomial tree."""
        at, step = (self.rank - root) % self.size, 1
        while step < self.size and not at & step:
            step *= 2
        if at:
            data = self._get((at - step + root) % self.size, number)
        else:
            step = 1 << (self.size - 1).bit_length()
        while step := step // 2:
            if at + step < self.size:
                self._put(data, (at + step + root) % self.size, number)
        return data

    def _tree_up(self, data: Any, root: int, number: int, join: Callable[[Any, Any], Any]) -> Any:
        """From everybody to the root along the same tree, joined in the order of the tree."""
        at, step = (self.rank - root) % self.size, 1
        while step < self.size:
            if at & step:
                self._put(data, (at - step + root) % self.size, number)
                return None
            if at + step < self.size:
                data = join(data, self._get((at + step + root) % self.size, number))
            step *= 2
        return data

    def _joined(self, data: Any, join: Callable[[Any, Any], Any]) -> Any:
        """Everybody's, everywhere: by doubling where the ranks are a power of two, up and down the tree where not."""
        number, step = self._begin(), 1
        if self.size & (self.size - 1):
            return self._tree_down(self._tree_up(data, 0, number, join), 0, number)
        while step < self.size:
            other = self.rank ^ step
            got = self._swap(data, other, number)
            data = join(data, got) if self.rank < other else join(got, data)
            step *= 2
        return data

    def _exchanged(self, pieces: Sequence[Any]) -> list[Any]:
        """A piece for each rank, for a piece from each."""
        number = self._begin()
        for shift in range(1, self.size):
            self._put(pieces[(self.rank + shift) % self.size], (self.rank + shift) % self.size, number)
        return [pieces[one] if one == self.rank else self._get(one, number) for one in range(self.size)]

    def _gathered(self, piece: Any, root: int) -> list[Any] | None:
        number = self._begin()
        if self.rank != root:
            self._put(piece, root, number)
            return None
        return [piece if one == root else self._get(one, number) for one in range(self.size)]

    def _scattered(self, pieces: Sequence[Any] | None, root: int) -> Any:
        number = self._begin()
        if self.rank != root:
            return self._get(root, number)
        assert pieces is not None
        for one in range(self.size):
            if one != root:
                self._put(pieces[one], one, number)
        return pieces[root]

    def barrier(self) -> None:
        number, step = self._begin(), 1
        while step < self.size:
            self._put(b"", (self.rank + step) % self.size, number)
            self._get((self.rank - step) % self.size, number)
            step *= 2

    Barrier = barrier

    def bcast(self, obj: Any, root: int = 0) -> Any:
        data = self._tree_down(pickle.dumps(obj, -1) if self.rank == root else None, root, self._begin())
        return obj if self.rank == root else pickle.loads(data)

    def reduce(self, sendobj: Any, op: Any = None, root: int = 0) -> Any:
        data = self._tree_up(pickle.dumps(sendobj, -1), root, self._begin(), _by(op or sum_))
        return pickle.loads(data) if data is not None else None

    def allreduce(self, sendobj: Any, op: Any = None) -> Any:
        return pickle.loads(self._joined(pickle.dumps(sendobj, -1), _by(op or sum_)))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        found = self._gathered(pickle.dumps(sendobj, -1), root)
        return [pickle.loads(one) for one in found] if found is not None else None

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        pieces = [pickle.dumps(one, -1) for one in sendobj] if self.rank == root and sendobj is not None else None
        return pickle.loads(self._scattered(pieces, root))

    def allgather(self, sendobj: Any) -> list[Any]:
        return [pickle.loads(one) for one in self._exchanged([pickle.dumps(sendobj, -1)] * self.size)]

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        return [pickle.loads(one) for one in self._exchanged([pickle.dumps(one, -1) for one in sendobj])]

    def Bcast(self, buf: Any, root: int = 0) -> None:
        array = flat(buf)
        data = self._tree_down(_bytes(array), root, self._begin())
        if self.rank != root:
            array[:] = _as(data, array)

    def Reduce(self, sendbuf: Any, recvbuf: Any, op: Any = None, root: int = 0) -> None:
        own = flat(recvbuf if self._in_place(sendbuf) else sendbuf)
        found = self._tree_up(_bytes(own), root, self._begin(), self._elementwise(op, own))
        if self.rank == root:
            flat(recvbuf)[:] = _as(found, own)

    def Allreduce(self, sendbuf: Any, recvbuf: Any, op: Any = None) -> None:
        own = flat(recvbuf if self._in_place(sendbuf) else sendbuf)
        flat(recvbuf)[:] = _as(self._joined(_bytes(own), self._elementwise(op, own)), own)

    def Gather(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        into = blocks(recvbuf, self.size) if self.rank == root else []
        own = into[self.rank] if self._in_place(sendbuf) else flat(sendbuf)
        for array, one in zip(into, self._gathered(_bytes(own), root) or [], strict=True):
            array[:] = _as(one, array)

    def Scatter(self, sendbuf: Any, recvbuf: Any, root: int = 0) -> None:
        pieces = [_bytes(one) for one in blocks(sendbuf, self.size)] if self.rank == root else None
        found = self._scattered(pieces, root)
        if not self._in_place(recvbuf):
            flat(recvbuf)[:] = _as(found, flat(recvbuf))

    def Allgather(self, sendbuf: Any, recvbuf: Any) -> None:
        into = blocks(recvbuf, self.size)
        own = into[self.rank] if self._in_place(sendbuf) else flat(sendbuf)
        for array, one in zip(into, self._exchanged([_bytes(own)] * self.size), strict=True):
            array[:] = _as(one, array)

    def Alltoall(self, sendbuf: Any, recvbuf: Any) -> None:
        into = blocks(recvbuf, self.size)
        pieces = into if self._in_place(sendbuf) else blocks(sendbuf, self.size)
        found = self._exchanged([_bytes(one) for one in pieces])
        for array, one in zip(into, found, strict=True):
            array[:] = _as(one, array)

    Gatherv, Scatterv, Allgatherv, Alltoallv = Gather, Scatter, Allgather, Alltoall

    # ---------------------------------------------------------------------------------------------- communicators

    def Split(self, color: int = 0, key: int = 0) -> Comm | None:
        """Those of one colour, by key; everybody must call it."""
        told = self.allgather((color, key, self.rank, self._process.contexts))
        self._process.contexts = context = max(one[3] for one in told) + 1
        if color == UNDEFINED:
            return None
        members = sorted((one[1], one[2]) for one in told if one[0] == color)
        return Comm(self._process, [self._members[rank] for _, rank in members], context)

    def Dup(self) -> Comm | None:
        return self.Split(0, self.rank)

    def Free(self) -> None:
        """Nothing is held."""

    def Abort(self, errorcode: int = 1) -> None:
        raise SystemExit(errorcode)

    # ---------------------------------------------------------------------------------------------- buffers

    def _elementwise(self, op: Any, like: NDArray[Any]) -> Callable[[Any, Any], Any]:
        """Join two buffers."""
        mpi = self._process.mpi
        name = "SUM" if op is None else next((one for one in UFUNCS if getattr(mpi, one) == op), "")
        if not name:
            raise Unsupported("an operation of one's own works on objects (reduce, allreduce), not on buffers")
        function = UFUNCS[name]
        return lambda one, other: _bytes(function(_as(one, like), _as(other, like)).astype(like.dtype, copy=False))

    def _in_place(self, spec: Any) -> bool:
        return spec is self._process.mpi.IN_PLACE


CALLS = tuple(name for name in vars(Comm) if not name.startswith("_"))
PROC_NULL, UNDEFINED = -2, -32766  # as Open MPI has them


def sum_(one: Any, other: Any) -> Any:
    """What a reduction does where no operation is named."""
    return one + other


def _by(op: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Join two pickled objects."""
    return lambda one, other: pickle.dumps(op(pickle.loads(one), pickle.loads(other)), -1)


def _bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    return array.view(np.uint8)


def _as(data: Any, like: NDArray[Any]) -> NDArray[Any]:
    return np.frombuffer(data, like.dtype)


class Face:
    """Stands where a script has mpi4py's module `MPI`.

    Under a starter of ours the calls go through the layer; else this is mpi4py's own module.
    """

    Status, Request, Comm, Intracomm = Status, Request, Comm, Comm

    def __init__(self, process: Process) -> None:
        self.process = process
        self.COMM_WORLD = Comm(process, range(process.size), 0)
        self.COMM_SELF = Comm(process, [process.rank], 1)

    def __getattr__(self, name: str) -> Any:
        if name not in PLAIN:
            raise Unsupported(f"MPI.{name}: partial replication has no such name")
        return getattr(self.process.mpi, name)


@cache
def connected() -> Any:
    """The layer, where a starter of ours says so; mpi4py's module where not."""
    from mpi4py import MPI

    told = os.environ.get(VARIABLE)
    return Face(Process(MPI, Seat.read(told))) if told else MPI
