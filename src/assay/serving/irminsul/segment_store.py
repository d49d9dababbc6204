"""Reuse of prompt text that moved: an exact-prefix cache, a store of segments by content, and the plan for a prompt.

:class:`PrefixCache` is what engines have: it finds the longest stretch from the first token on that some earlier prompt
began with. :class:`SegmentStore` finds the rest: segments cut by content, looked up by the hash of their tokens, held
while a request uses them, evicted by last use. :func:`plan` lays a prompt out as stretches that are taken from the
prefix, taken from a segment, or computed; the first tokens of a segment are computed again (the *carve-out*), because
their left neighbours have changed most.

>>> from assay.sim.random import stream
>>> ids = stream(0, "example").integers(0, 1000, 600)
>>> prefixes, segments = PrefixCache(), SegmentStore()
>>> first = plan(ids, prefixes, segments)
>>> first.fresh, remember(first, prefixes, segments)
(600, None)
>>> moved = plan(np.concatenate([[98, 99], ids]), prefixes, segments)
>>> moved.prefix, moved.reused, moved.fresh
(0, 364, 238)
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from itertools import islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.chunking import cuts
from assay.sim.compiled import njit
from assay.sim.random import bits

Ids = NDArray[np.int64]

CHUNK = (32, 128, 512)  # tokens of a segment: least, mean, most
CARVE = 16


def _hasher() -> Callable[[bytes], bytes]:
    if find_spec("xxhash"):
        return import_module("xxhash").xxh3_128_digest  # type: ignore[no-any-return]
    return lambda content: hashlib.blake2b(content, digest_size=16).digest()


_HASH = _hasher()


def digest(ids: Ids, model: str = "") -> bytes:
    """The 128-bit name of a stretch of tokens under a model: xxh3 where `assay[gateway]` is installed, else BLAKE2b.

    >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(3), "other")
    (True, False)
    """
    return _HASH(model.encode() + b"\0" + np.ascontiguousarray(ids, dtype="<i8").tobytes())


@njit(cache=True, nogil=True)
def _chain(ids: Any) -> Any:
    """A 64-bit name for every prefix of the ids."""
    names = np.empty(len(ids), np.uint64)
    name = np.uint64(0x1D8E4E27C47D124F)
    for i in range(len(ids)):
        name = bits(name, np.uint64(ids[i]) + np.uint64(1))
        names[i] = name
    return names


def chain(ids: Ids) -> list[int]:
    """A 64-bit name for every prefix of the ids.

    >>> chain(np.array([1, 2, 3]))[:2] == chain(np.array([1, 2, 9]))[:2]
    True
    """
    names: list[int] = _chain(np.ascontiguousarray(ids, dtype=np.int64)).tolist()
    return names


class PrefixCache:
    """Exact-prefix matching to the token, as a radix tree finds it, with eviction by last use from the tails inwards.

    Every prefix has a name, so the tree is a flat set of names; as a prefix's own prefixes always stay longer than it
    does, the longest match is found by bisection.

    >>> cache = PrefixCache(capacity=4)
    >>> cache.insert(chain(np.array([1, 2, 3])))
    >>> cache.match(chain(np.array([1, 2, 9])))
    2
    >>> cache.insert(chain(np.array([7, 8])))
    >>> cache.match(chain(np.array([1, 2, 3]))), len(cache)
    (2, 4)
    """

    def __init__(self, capacity: float = np.inf) -> None:
        self.capacity = capacity
        self._names: dict[int, None] = {}  # coldest first

    def __len__(self) -> int:
        return len(self._names)

    def match(self, names: list[int]) -> int:
        """How many leading tokens are there, by the names of a prompt's prefixes."""
        return bisect_left(names, True, key=lambda name: name not in self._names)

    def insert(self, names: list[int]) -> None:
        """Keep this prompt's rows; the prefixes used longest ago make room."""
        if self.capacity < np.inf:  # else nothing is ever evicted, and the order is nobody's concern
            for name in names:
                self._names.pop(name, None)
        self._names.update(dict.fromkeys(reversed(names)))  # the first token is the last to go
        excess = len(self._names) - self.capacity
        if excess > 0:
            for name in list(islice(self._names, int(np.ceil(excess)))):
                del self._names[name]


@dataclass(slots=True)
class Segment:
    """Some tokens' rows, where they were computed, and behind what."""

    key: bytes
    tokens: int
    position: int
    behind: int  # the name of all that stood before it when its rows were computed
    rows: Any = None  # a `tiny_lm.Cache`, or nothing where only the bookkeeping is wanted
    users: int = 0


class SegmentStore:
    """Segments by content, at most `capacity` tokens of them; those in use stay, others go by last use.

    >>> store = SegmentStore(capacity=100)
    >>> store.insert(Segment(b"a", 60, 0, 0)), store.insert(Segment(b"b", 40, 60, 0)), store.tokens
    (True, True, 100)
    >>> held = store.hold(b"a")
    >>> store.insert(Segment(b"c", 50, 0, 0)), len(store)  # a is in use, and b alone does not make room enough
    (False, 2)
    >>> store.release(held)
    >>> store.insert(Segment(b"c", 50, 0, 0)), len(store)
    (True, 1)
    """

    def __init__(self, capacity: float = np.inf, model: str = "", chunk: tuple[int, int, int] = CHUNK) -> None:
        self.capacity, self.model, self.chunk = capacity, model, chunk
        self.tokens = 0
        self._segments: OrderedDict[bytes, Segment] = OrderedDict()

    def __len__(self) -> int:
        return len(self._segments)

    def lookup(self, key: bytes) -> Segment | None:
        """The segment of this name; finding it makes it the latest used."""
        found = self._segments.get(key)
        if found is not None:
            self._segments.move_to_end(key)
        return found

    def hold(self, key: bytes) -> Segment | None:
        """Look up, and keep from eviction until `release`."""
        found = self.lookup(key)
        if found is not None:
            found.users += 1
        return found

    def release(self, segment: Segment | None) -> None:
        """The request that held the segment is done with it."""
        if segment is not None:
            if segment.users < 1:
                raise ValueError("a segment was released more often than it was held")
            segment.users -= 1

    def insert(self, segment: Segment) -> bool:
        """Keep a segment unless its text is there already; False where there is no room for it."""
        if segment.key in self._segments:
            self._segments.move_to_end(segment.key)
            return True
        short = self.tokens + segment.tokens - self.capacity
        if short > 0 and not self._make_room(short):
            return False
        self._segments[segment.key] = segment
        self.tokens += segment.tokens
        return True

    def _make_room(self, short: float) -> bool:
        leaving, found = [], 0
        for key, segment in self._segments.items():
            if found >= short:
                break
            if not segment.users:
                leaving.append(key)
                found += segment.tokens
        if found < short:
            return False
        for key in leaving:
            self.tokens -= self._segments.pop(key).tokens
        return True

    def cut(self, ids: Ids) -> list[tuple[int, int, bytes]]:
        """The segments of some tokens: start, stop, name. A last stretch shorter than the least is left out.

        >>> [(start, stop) for start, stop, _ in SegmentStore().cut(np.arange(200) % 97)]
        [(0, 200)]
        """
        offsets = cuts(ids, *self.chunk).tolist()
        return [
            (start, stop, digest(ids[start:stop], self.model))
            for start, stop in pairwise(offsets)
            if stop - start >= self.chunk[0]
        ]


@dataclass(frozen=True, slots=True)
class Reuse:
    """Tokens start..stop of a prompt, taken from a segment from its row `offset` on, `by` positions further on."""

    start: int
    stop: int
    segment: Segment
    offset: int
    by: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the tokens of a prompt come from: the first `prefix` from there, then `reuses`; the rest is computed."""

    ids: Ids
    names: list[int] = field(repr=False)  # of all its prefixes
    prefix: int
    reuses: tuple[Reuse, ...]
    missed: tuple[tuple[int, int, bytes], ...] = field(repr=False)  # segments to remember afterwards
    held: tuple[Segment, ...] = field(repr=False)

    @property
    def reused(self) -> int:
        """Tokens taken from segments."""
        return sum(r.stop - r.start for r in self.reuses)

    @property
    def fresh(self) -> int:
        """Tokens to compute."""
        return len(self.ids) - self.prefix - self.reused

    @property
    def computed(self) -> NDArray[np.bool_]:
        """Which tokens are to be computed."""
        mask = np.ones(len(self.ids), np.bool_)
        mask[: self.prefix] = False
        for r in self.reuses:
            mask[r.start : r.stop] = False
        return mask


def plan(ids: Ids, prefixes: PrefixCache | int | None, segments: SegmentStore | None, *, carve: int = CARVE) -> Plan:
    """How to prefill a prompt: exact prefix first, then segments of what is left. Its segments are held.

    `prefixes` may be the length of a prefix that is known already. Without it the store is asked for the whole prompt
    (segment-first): a segment that stands at its old place behind the very text it was computed behind is then exact,
    and needs no carve-out. The last token is always computed: its logits are what is asked for.
    """
    last = len(ids) - 1
    names = chain(ids)
    known = prefixes.match(names) if isinstance(prefixes, PrefixCache) else prefixes or 0
    prefix = min(known, last)
    if segments is None:
        return Plan(ids, names, prefix, (), (), ())
    reuses, missed, held = [], [], []
    for start, stop, key in segments.cut(ids[prefix:]):
        start, stop = start + prefix, stop + prefix
        found = segments.hold(key)
        if found is None:
            missed.append((start, stop, key))
            continue
        held.append(found)
        exact = found.position == start and found.behind == (names[start - 1] if start else 0)
        skip = 0 if exact else carve
        if start + skip < min(stop, last):
            reuses.append(Reuse(start + skip, min(stop, last), found, skip, start - found.position))
    return Plan(ids, names, prefix, tuple(reuses), tuple(missed), tuple(held))


def remember(
    done: Plan,
    prefixes: PrefixCache | None,
    segments: SegmentStore | None,
    rows: Callable[[int, int], Any] | None = None,
) -> None:
    """After the prefill: release what the plan held, keep the prompt as a prefix and its new segments by content.

    `rows(start, stop)` gives the rows of a stretch; without it only the bookkeeping is kept.
    """
    if prefixes is not None:
        prefixes.insert(done.names)
    if segments is None:
        return
    for segment in done.held:
        segments.release(segment)
    for start, stop, key in done.missed:
        behind = done.names[start - 1] if start else 0
        segments.insert(Segment(key, stop - start, start, behind, rows(start, stop) if rows else None))
