"""What each engine probably has in its prefix cache, as far as the gateway can know.

A prompt is a chain of block hashes; the hash of a block includes all blocks before it, so one hash stands for a whole
prefix. Per engine there is a table of the hashes it should hold and one list of them by last use. A path is touched
deepest block first, as engines free their blocks: a child always lies colder than its parent, taking from the cold end
never leaves a hole, and the length of a match is found by halving steps instead of a walk. The only other way to lose
a block, `remove`, takes along what lies behind it: no engine can use a block whose predecessor is gone.

A block costs 56 bytes in a full table: an entry of 32, and two slots of 12 (hash and entry number). Tables start small
and double; one of 65,536 blocks, a million tokens, takes 3.7 MB.

Compiled code reaches an engine's table by its address, held in the engine's row: one array stands for all engines, and
a call costs the same for one engine as for a hundred.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined,unused-ignore]
from numpy.typing import NDArray

from assay.sim.addresses import pointer
from assay.sim.block_hash import block_word, chain
from assay.sim.compiled import njit

Hashes = NDArray[np.uint64]

JIT: Any = {"cache": True, "error_model": "numpy"}
NONE = -1
START = 64  # blocks of a new table

ENTRY = np.dtype(
    [
        ("hash", np.uint64),
        ("used", np.float64),
        ("colder", np.int32),
        ("warmer", np.int32),  # of an entry in the pool: the next one there
        ("parent", np.int32),
        ("children", np.int32),  # -1 in the pool
    ]
)
ENGINE = np.dtype(
    [
        ("tags", np.int64),  # address of the slots' hashes; 0 is an empty slot
        ("places", np.int64),  # address of the slots' entry numbers
        ("entries", np.int64),  # address of the entries
        ("mask", np.int64),  # slots - 1
        ("size", np.int64),  # entries there is memory for
        ("capacity", np.int64),  # entries there may be
        ("blocks", np.int64),  # entries there are
        ("coldest", np.int64),
        ("warmest", np.int64),
        ("pool", np.int64),  # the first unused entry
    ]
)


@njit(**JIT)
def _engine(engines, i):
    """A row; compiled code would take the memory beside the array for one more."""
    if not 0 <= i < len(engines):
        raise IndexError("no engine of this number")
    return engines[i]


@njit(**JIT)
def _tags(engine):
    return carray(pointer(engine.tags), (engine.mask + 1,), np.uint64)


@njit(**JIT)
def _places(engine):
    return carray(pointer(engine.places), (engine.mask + 1,), np.int32)


@njit(**JIT)
def _entries(engine):
    return carray(pointer(engine.entries), (engine.size,), ENTRY)


@njit(**JIT)
def _slot(engine, h):
    """Where a hash is, or the empty slot where it would be."""
    tags, mask = _tags(engine), engine.mask
    slot = np.int64(h & np.uint64(mask))
    while tags[slot] != h and tags[slot] != 0:
        slot = (slot + 1) & mask
    return slot


@njit(**JIT)
def _find(engine, h):
    """The entry of a hash, or NONE."""
    slot = _slot(engine, h)
    return np.int64(_places(engine)[slot]) if _tags(engine)[slot] == h and h != 0 else NONE


@njit(**JIT)
def _empty(engine, slot):
    """Empty a slot. Those after it move up where they may, so that every hash is still found from its home."""
    tags, places, mask = _tags(engine), _places(engine), engine.mask
    tags[slot] = 0
    at = (slot + 1) & mask
    while tags[at] != 0:
        home = np.int64(tags[at] & np.uint64(mask))
        if (at - home) & mask >= (at - slot) & mask:
            tags[slot], places[slot] = tags[at], places[at]
            tags[at] = 0
            slot = at
        at = (at + 1) & mask


@njit(**JIT)
def _unlink(engine, e):
    """Take an entry out of the list by last use."""
    entries = _entries(engine)
    colder, warmer = entries[e].colder, entries[e].warmer
    if colder >= 0:
        entries[colder].warmer = warmer
    else:
        engine.coldest = warmer
    if warmer >= 0:
        entries[warmer].colder = colder
    else:
        engine.warmest = colder


@njit(**JIT)
def _append(engine, e):
    """Put an entry at the warm end."""
    entries = _entries(engine)
    entries[e].colder, entries[e].warmer = engine.warmest, NONE
    if engine.warmest >= 0:
        entries[engine.warmest].warmer = e
    else:
        engine.coldest = e
    engine.warmest = e


@njit(**JIT)
def _forget(engine, e):
    """Return an entry to the pool."""
    entry = _entries(engine)[e]
    _unlink(engine, e)
    _empty(engine, _slot(engine, entry.hash))
    entry.warmer, entry.children = engine.pool, NONE
    engine.pool = e
    engine.blocks -= 1


@njit(**JIT)
def _drop(engine, e):
    """Forget a block and all that lie behind it.

    These are all colder, mostly its next neighbours: the walk ends when each forgotten block's children are found.
    """
    entries = _entries(engine)
    if entries[e].parent >= 0:
        entries[entries[e].parent].children -= 1
    waiting, colder = entries[e].children, entries[e].colder
    _forget(engine, e)
    while waiting > 0:
        e, colder = colder, entries[colder].colder
        parent = entries[e].parent
        if parent >= 0 and entries[parent].children < 0:
            waiting += entries[e].children - 1
            _forget(engine, e)


@njit(**JIT)
def _new(engine, h, parent):
    """An entry for a hash that is not there, outside the list; the coldest one makes room."""
    if engine.blocks == engine.capacity:
        _drop(engine, engine.coldest)
    entries, slot, e = _entries(engine), _slot(engine, h), engine.pool
    engine.pool = entries[e].warmer
    engine.blocks += 1
    _tags(engine)[slot], _places(engine)[slot] = h, e
    entries[e].hash, entries[e].parent, entries[e].children = h, parent, 0
    if parent >= 0:
        entries[parent].children += 1
    return e


@njit(**JIT)
def _insert(engines, i, hashes, now, after):
    engine = _engine(engines, i)
    if engine.size < min(engine.capacity, engine.blocks + len(hashes)):
        return NONE
    entries = _entries(engine)
    last, room = NONE, engine.capacity
    if after != 0:
        last = _find(engine, after)
        if last < 0:
            return 0
        e = last
        while e >= 0:
            _unlink(engine, e)
            room -= 1
            e = entries[e].parent
    done = 0
    # The path leaves the list first, so that nothing of it makes room for the rest of it.
    while done < min(len(hashes), room):
        e = _find(engine, hashes[done])
        if e < 0 and hashes[done] != 0:
            e = _new(engine, hashes[done], last)
        elif e >= 0 and entries[e].parent == last:
            _unlink(engine, e)
        else:  # not a path from here
            break
        last = e
        done += 1
    while last >= 0:
        entries[last].used = now
        _append(engine, last)
        last = np.int64(entries[last].parent)
    return done


@njit(**JIT)
def _remove(engines, i, hashes):
    engine = _engine(engines, i)
    for h in hashes:
        e = _find(engine, h)
        if e >= 0:
            _drop(engine, e)


@njit(**JIT)
def _resize(engines, i, capacity):
    engine = _engine(engines, i)
    engine.capacity = capacity
    while engine.blocks > capacity:
        _drop(engine, engine.coldest)


@njit(**JIT)
def _resident(engine, h, oldest):
    slot = _slot(engine, h)
    if _tags(engine)[slot] != h or h == 0:
        return False
    return oldest == -np.inf or _entries(engine)[_places(engine)[slot]].used >= oldest


@njit(**JIT)
def _match(engines, hashes, oldest, block, out):
    """All engines take each step together: their look-ups do not wait for one another's memory."""
    if len(out) != len(engines):
        raise ValueError("out needs a place for each engine")
    n, alive = len(hashes), 0
    for i in range(len(engines)):
        out[i] = n > 0 and _resident(engines[i], hashes[0], oldest)
        alive += out[i]
    step = 1
    while step < n:
        step *= 2
    while alive > 0 and step > 0:
        for i in range(len(engines)):
            if out[i] > 0 and out[i] + step <= n and _resident(engines[i], hashes[out[i] + step - 1], oldest):
                out[i] += step
        step //= 2
    for i in range(len(engines)):
        out[i] *= block


@njit(**JIT)
def _look_up(engines, tokens, key, words, oldest, block, out):
    """`chain`, then `_match`: one call, since caches go cold between two requests, and then a call is what costs."""
    before = np.uint64(0)
    for number in range(len(words)):
        before = words[number] = block_word(tokens, number * block, (number + 1) * block, key, before)
    _match(engines, words, oldest, block, out)


@njit(**JIT)
def _settle(engines, i, old):
    """Fill the slots of a new table, and the pool with the entries that it has more than the `old` number."""
    engine = _engine(engines, i)
    entries, tags, places = _entries(engine), _tags(engine), _places(engine)
    e = engine.coldest
    while e >= 0:
        slot = _slot(engine, entries[e].hash)
        tags[slot], places[slot] = entries[e].hash, e
        e = np.int64(entries[e].warmer)
    for e in range(engine.size - 1, old - 1, -1):
        entries[e].warmer, entries[e].children = engine.pool, NONE
        engine.pool = e


class PrefixIndex:
    """The blocks that each engine should have, least recently used first to go.

    `capacity` is that of an engine in blocks unless `add` says otherwise; a block not used for `ttl` seconds counts
    as gone. `now` never goes back. Hashes are those of `hashes`, along one path from its first block.

    >>> index = PrefixIndex(block=4)
    >>> first, second = index.add(), index.add()
    >>> path = index.hashes(np.arange(14, dtype=np.uint32))
    >>> index.insert(first, path, now=0.0), index.insert(second, path[:1], now=1.0)
    (3, 1)
    >>> out = np.empty(2, np.int64)
    >>> index.match(path, 2.0, out)
    >>> out.tolist()
    [12, 4]
    """

    def __init__(
        self, block: int = 16, capacity: int = 65_536, ttl: float = float("inf"), key: int | None = None
    ) -> None:
        self.block, self.capacity, self.ttl = block, capacity, float(ttl)
        self.key = np.uint64(secrets.randbits(64) if key is None else key)
        self._engines = np.zeros(0, ENGINE)
        self._tables: list[tuple[NDArray[Any], ...]] = []  # keeps alive what the addresses point to

    def __len__(self) -> int:
        return len(self._engines)

    def hashes(self, tokens: NDArray[np.uint32], before: int = 0) -> Hashes:
        """`chain` with the block and the key of this index."""
        return chain(tokens, self.block, self.key, before)

    def add(self, capacity: int | None = None) -> int:
        """One more engine, with nothing in its cache; its number."""
        row = np.zeros(1, ENGINE)
        row["capacity"] = self.capacity if capacity is None else capacity
        self._engines = np.concatenate([self._engines, row])
        self._tables.append(())
        self.clear(len(self) - 1)
        return len(self) - 1

    def drop(self, i: int) -> None:
        """Forget an engine; the numbers above move down by one."""
        self._engines = np.delete(self._engines, i)
        del self._tables[i]

    def insert(self, i: int, hashes: Hashes, now: float, after: int = 0) -> int:
        """Engine i has used the blocks of a path; how many leading ones it has now.

        A path that does not begin with the first block goes on from the block with the hash `after`, and all before
        that one are used with it; where `after` is not there, nothing of it can be.
        """
        done = _insert(self._engines, i, hashes, float(now), np.uint64(after))
        if done == NONE:  # no memory yet
            self._grow(i, self.blocks(i) + len(hashes))
            done = _insert(self._engines, i, hashes, float(now), np.uint64(after))
        return int(done)

    def remove(self, i: int, hashes: Hashes) -> None:
        """Engine i has lost these blocks, and with them the use of all behind them."""
        _remove(self._engines, i, hashes)

    def clear(self, i: int) -> None:
        """Engine i has lost everything."""
        row = self._engines[i]
        row["blocks"], row["size"] = 0, 0
        row["coldest"] = row["warmest"] = row["pool"] = NONE
        self._tables[i] = ()
        self._grow(i, 1)

    def resize(self, i: int, capacity: int) -> None:
        """Change how many blocks engine i can have; the coldest go where it has more."""
        _resize(self._engines, i, capacity)

    def blocks(self, i: int) -> int:
        """Blocks that engine i has, those not used for too long among them."""
        return int(self._engines[i]["blocks"])

    def match(self, hashes: Hashes, now: float, out: NDArray[np.int64]) -> None:
        """Fill `out` with the leading tokens that each engine has."""
        _match(self._engines, hashes, now - self.ttl, self.block, out)

    def look_up(self, tokens: NDArray[np.uint32], now: float, out: NDArray[np.int64]) -> Hashes:
        """`hashes` and `match` in one: the path of a prompt, and in `out` the tokens of it that each engine has.

        >>> index = PrefixIndex(block=4)
        >>> prompt, out = np.arange(14, dtype=np.uint32), np.empty(1, np.int64)
        >>> index.insert(index.add(), index.hashes(prompt)[:2], now=0.0)
        2
        >>> bool((index.look_up(prompt, 1.0, out) == index.hashes(prompt)).all()), out.tolist()
        (True, [8])
        """
        words: Hashes = np.empty(len(tokens) // self.block, np.uint64)
        _look_up(self._engines, tokens, self.key, words, now - self.ttl, self.block, out)
        return words

    def _grow(self, i: int, blocks: int) -> None:
        """Make memory for so many blocks, or for as many as there may be."""
        row = self._engines[i]
        old, capacity = int(row["size"]), int(row["capacity"])
        size = max(START, old)
        while size < min(blocks, capacity):
            size *= 2
        size = max(min(size, capacity), old)
        slots = 2 << max(size - 1, 0).bit_length()  # at most half full
        entries = np.zeros(size, ENTRY)
        if old:
            entries[:old] = self._tables[i][2]
        table = (np.zeros(slots, np.uint64), np.zeros(slots, np.int32), entries)
        row["tags"], row["places"], row["entries"] = (array.ctypes.data for array in table)
        row["mask"], row["size"] = slots - 1, size
        self._tables[i] = table
        _settle(self._engines, i, old)


@dataclass(frozen=True, slots=True)
class Corrections:
    """An engine's capacity, corrected by the cached tokens that it reports with its answers.

    Nobody tells the gateway how much of an engine's memory is left to cached blocks; too much of it shows as matches
    that were not there. So the capacity falls by a share with each of them, and rises by a small step with each match
    that was: like a sender that finds the width of a path from its losses. Nothing is learnt where nothing was
    predicted. The blocks themselves need no correction: with its answer, the engine has them again.

    >>> corrections = Corrections(limit=1024)
    >>> corrections.capacity(1000, predicted=512, cached=256)
    900
    >>> corrections.capacity(900, predicted=512, cached=512)
    904
    """

    limit: int  # blocks
    block: int = 16  # tokens; a miss by less is how the two count, not what is cached
    fall: float = 0.1
    rise: float = 1 / 256  # of the limit
    floor: float = 1 / 16  # of the limit: enough is left to learn from

    def capacity(self, capacity: int, predicted: int, cached: int) -> int:
        """The capacity in blocks after an answer, from the one before it and both counts of tokens."""
        if predicted <= 0:
            return capacity
        if predicted - cached > self.block:
            return max(int(capacity * (1 - self.fall)), int(self.limit * self.floor), 1)
        return min(capacity + max(int(self.limit * self.rise), 1), self.limit)
