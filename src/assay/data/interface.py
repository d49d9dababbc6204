"""What the data room speaks: stores of objects, and components that keep their truth in one.

A :class:`Store` has six verbs. Everything durable here commits by one of them, `put(if_absent=True)` on a numbered key:
directories, memory and S3 all have it, which cannot be said of compare-and-swap. Five rules follow for all of us:

1. data before the pointer to it, and the pointer by one create-only put;
2. delete only what no committed pointer names;
3. a retry is harmless, because its name was fixed before the first attempt;
4. :class:`Unknown` is settled by reading back, never by assuming;
5. recovery itself may crash anywhere.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from assay.record.errors import AssayError, BadInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from assay.sim.clock import Clock

Buffer = bytes | bytearray | memoryview
Span = tuple[int, int]  # where it begins, how long it is


class StoreError(AssayError):
    """A store could not do what it was asked."""


class NotFound(StoreError):  # noqa: N818 - read as sentences: raise NotFound(key)
    """There is no such object."""


class AlreadyExists(StoreError):  # noqa: N818
    """A create-only put came second."""


class Unknown(StoreError):  # noqa: N818
    """The answer was lost: the effect may or may not have happened, or may yet happen."""


class Fenced(StoreError):  # noqa: N818
    """Another process goes by this one's name now; whatever this one still holds is not committed."""


class OutOfRange(StoreError):  # noqa: N818
    """The object ends before the bytes that were asked for."""


@dataclass(frozen=True, slots=True)
class Meta:
    """An object as a listing shows it; `modified` is in the seconds of the store's clock."""

    key: str
    size: int
    modified: float


class Store(ABC):
    """Objects by key. Async; :func:`assay.data.store.blocking.blocking` gives the same with plain calls.

    A put is atomic: readers see the whole object or none, and an acknowledged one survives a crash. Listing is in key
    order, and sees every put that was acknowledged before it began. No key is a folder of another ("a" and "a/b").
    """

    @abstractmethod
    async def put(self, key: str, data: Buffer | Sequence[Buffer], *, if_absent: bool = False) -> Meta:
        """Write an object, from one buffer or several in a row; `if_absent`: or AlreadyExists where there is one."""

    @abstractmethod
    async def get(self, key: str, start: int = 0, length: int | None = None) -> Buffer:
        """An object's bytes, all or a span of them; NotFound, or OutOfRange where it ends too early."""

    @abstractmethod
    async def head(self, key: str) -> Meta | None:
        """What a listing would show of one object; None where there is none."""

    @abstractmethod
    def list(self, prefix: str = "", start_after: str = "") -> AsyncIterator[Meta]:
        """The objects whose keys begin so and come after, in key order."""

    @abstractmethod
    async def delete(self, *keys: str) -> None:
        """Remove objects; one that is not there is as good as removed."""

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> Sequence[Buffer]:
        """Several spans of one object."""
        return [await self.get(key, start, length) for start, length in spans]

    async def read_into(self, key: str, start: int, into: memoryview) -> None:
        """Fill a buffer from an object: for bytes that have a place already."""
        into[:] = await self.get(key, start, len(into))


def nbytes(data: Buffer | Sequence[Buffer]) -> int:
    """How many bytes would be put.

    >>> nbytes(b"abc"), nbytes([b"ab", memoryview(b"c")])
    (3, 3)
    """
    if isinstance(data, _PLAIN):
        return len(data)
    return data.nbytes if isinstance(data, memoryview) else sum(map(nbytes, data))


_PLAIN = (bytes, bytearray)  # made once: a union is built anew with each question
_PART = re.compile(r"(?!\.{1,2}(/|$))[A-Za-z0-9._=+@,~%-]+")


def checked_key(key: str) -> str:
    """The key, if all stores can hold it; BadInput says what is wrong with it.

    >>> checked_key("log/00000000000000000007")
    'log/00000000000000000007'
    >>> checked_key("../secrets")
    Traceback (most recent call last):
    assay.record.errors.BadInput: '../secrets' is no key: parts of letters, digits and ._=+@,~%- with / between them
    """
    if len(key) <= 900 and all(_PART.fullmatch(part) for part in key.split("/")):
        return key
    raise BadInput(f"'{key[:80]}' is no key: parts of letters, digits and ._=+@,~%- with / between them")


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule of a component that its durable state breaks."""

    rule: str
    detail: str


@runtime_checkable
class Component(Protocol):
    """What keeps its truth in a store, and can be asked whether that truth still holds."""

    key: str

    async def open(self, store: Store, *, clock: Clock, seed: int = 0) -> None:
        """Create or recover; doing it again changes nothing."""

    async def check(self, promised: Sequence[Any] = ()) -> list[Violation]:
        """The rules that durable state breaks, given what callers were promised. Changes nothing."""


@runtime_checkable
class Crashable(Component, Protocol):
    """A component with a scenario that the crash lab can kill at every operation.

    `roles` are the actors that work at once in real life (a trainer and a collector); the first one's scenario touches
    every kind of operation, for it is the one that is killed.
    """

    roles: tuple[str, ...]

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Do what is still to be done of about `ops` changes to the store; append what callers were promised."""


class Deduper(Component, Protocol):
    """Keeps the first of near-duplicates."""

    async def observe(self, ids: Sequence[str], texts: Sequence[str]) -> NDArray[np.bool_]:
        """Which to keep; durable when it returns."""


class BatchPlane(Component, Protocol):
    """Global training batches that all ranks see in one order."""

    def producer(self, pid: str) -> Any:
        """A writer of batches with a name that survives restarts."""

    def consumer(self, rank: int, world: int) -> Any:
        """A reader of one rank's slices."""


class Shuffle(Component, Protocol):
    """Moves records to the partitions of their keys, exactly once and in order."""

    async def send(self, partition: NDArray[np.int64], records: Any) -> None:
        """Hand records over."""

    async def commit(self) -> None:
        """Make visible all that was sent, at once."""

    def receive(self, partition: int) -> AsyncIterator[Any]:
        """The records of a partition, in order."""


class VectorIndex(Component, Protocol):
    """Nearest neighbours of vectors that come and go."""

    def insert(self, ids: NDArray[np.int64], vectors: NDArray[np.float32]) -> None:
        """Add vectors; durable when it returns."""

    def delete(self, ids: NDArray[np.int64]) -> None:
        """Forget vectors."""

    def search(self, queries: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and distances of the nearest, one row a query."""


class KnnGraph(Component, Protocol):
    """Every point's nearest neighbours."""

    def build(self, vectors: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Ids and distances, one row a point."""


class GraphEngine(Component, Protocol):
    """Runs a program over a graph, part by part."""

    def run(self, program: Any, graph: Any) -> NDArray[Any]:
        """A value for every vertex."""


class GnnEngine(Component, Protocol):
    """Trains and infers graph neural networks larger than memory."""

    def fit(self, model: Any, graph: Any, epochs: int) -> Any:
        """Train on the whole graph."""

    def infer(self, model: Any, graph: Any) -> NDArray[np.float32]:
        """An embedding for every vertex, on disk."""


class Checkpoints(Component, Protocol):
    """Saved training states."""

    async def save(self, step: int, tree: Any) -> Any:
        """Save a tree of arrays; the handle tells when it is durable."""

    async def restore(self, step: int | None = None, like: Any = None) -> Any:
        """A saved tree, into the shardings that `like` asks for."""

    async def steps(self) -> list[int]:
        """The complete checkpoints."""


class Vault(Component, Protocol):
    """Private files on other people's disks."""

    async def put(self, path: str, data: Buffer) -> Any:
        """Encrypt and store; what it returns opens it again."""

    async def get(self, root: Any, span: Span | None = None) -> Buffer:
        """Decrypt, all or a span."""

    def grant(self, root: Any, link: Any) -> Any:
        """A capability for a part and nothing else."""
