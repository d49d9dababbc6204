"""Cache blocks by content, for requests that come one by one: which segment number a block has, while it needs one.

The compiled core knows blocks by numbers and paths, and where requests are not known beforehand numbers must be given
out and taken back. A block is a segment of its own, found by the chained word of its tokens; it keeps its number as
long as it is in the cache or on the path of a request that is not over. Number 0 is never given out: it ends paths.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from assay.serving.engine import views as v
from assay.serving.engine.prefix_cache import JIT
from assay.serving.engine.state import NONE, TOUCHED, Records
from assay.sim.block_hash import block_word
from assay.sim.compiled import njit

NAME = np.dtype(
    [
        ("word", "u8"), ("before", "u8"),  # of the block, and of the one it continues
        ("users", "i4"),  # requests with it on their path
        ("next", "i4"),  # of the free ones
        ("told", "i4"),  # it is in the cache, as far as the log knows
    ],
    align=True,
)  # fmt: skip
STORED, REMOVED = range(2)
EVENT = np.dtype([("word", "u8"), ("before", "u8"), ("kind", "i4"), ("depth", "i4")], align=True)
# Slots of `Names.counts`.
FREE, LEFT, LOGGED, LOST = range(4)


class Names(NamedTuple):
    """The table, and a log of what came into the cache and what left it."""

    names: Records
    ids: NDArray[np.uint32]  # [segment, token]
    table: NDArray[np.int32]  # open addressing by word; 0: nobody
    log: Records
    log_ids: NDArray[np.uint32]
    counts: NDArray[np.int64]


def new_names(size: int, block: int, events: int) -> Names:
    """Room for `size` numbers, and for a log of `events` events (0: none is kept)."""
    names = np.zeros(size, NAME)
    names["next"] = np.arange(1, size + 1)
    counts = np.array([1, size - 1, 0, 0])
    table = np.zeros(1 << (2 * size - 1).bit_length(), np.int32)
    ids, log_ids = np.zeros((size, block), np.uint32), np.zeros((events, block), np.uint32)
    return Names(names, ids, table, np.zeros(events, EVENT), log_ids, counts)


def grown_names(old: Names) -> Names:
    """The same table with room for twice as many."""
    size = len(old.names)
    new = new_names(2 * size, old.ids.shape[1], 0)
    new.names[:size], new.ids[:size] = old.names, old.ids
    new.names["next"][-1] = old.counts[FREE]
    new.counts[:] = size, old.counts[LEFT] + size, old.counts[LOGGED], old.counts[LOST]
    used = np.flatnonzero(old.names["users"] + old.names["told"]).astype(np.int32)
    _fill(new.names, new.table, used)
    return new._replace(log=old.log, log_ids=old.log_ids)


@njit(**JIT)
def _fill(names, table, used):
    for s in used:
        table[_place(names, table, names[s].word)] = s


@njit(**JIT)
def _place(names, table, word):
    """Where in the table a word is, or would be."""
    mask = len(table) - 1
    at = np.int64(word & np.uint64(mask))
    while table[at] != 0 and names[table[at]].word != word:
        at = (at + 1) & mask
    return at


@njit(**JIT)
def _forget(names, table, counts, s):
    """Take a number back; what lies behind it in the table moves up, so that no search ends too early."""
    mask = len(table) - 1
    hole = _place(names, table, names[s].word)
    at = (hole + 1) & mask
    while table[at] != 0:
        home = np.int64(names[table[at]].word & np.uint64(mask))
        if (at - home) & mask >= (at - hole) & mask:
            table[hole] = table[at]
            hole = at
        at = (at + 1) & mask
    table[hole] = 0
    names[s].next = counts[FREE]
    counts[FREE] = s
    counts[LEFT] += 1


@njit(**JIT)
def lay(w, n, r, tokens, key):
    """Lay the path of request r along the full blocks of `tokens`; blocks nobody has a number for get one."""
    names, counts, block, start = n.names, n.counts, w.block, v.offsets(w)[r]
    before = np.uint64(0)
    blocks = len(tokens) // block
    for number in range(blocks):
        word = block_word(tokens, number * block, (number + 1) * block, key, before)
        at = _place(names, n.table, word)
        s = n.table[at]
        if s == 0:
            s = np.int32(counts[FREE])
            counts[FREE] = names[s].next
            counts[LEFT] -= 1
            n.table[at] = s
            names[s].word, names[s].before, names[s].users, names[s].told = word, before, 0, 0
            n.ids[s] = tokens[number * block : (number + 1) * block]
            v.begin(w)[s], v.end(w)[s], v.index(w)[s, 0] = number, number + 1, NONE
        names[s].users += 1
        v.path(w)[start + number] = s
        before = word
    if start + blocks < v.offsets(w)[r + 1]:
        v.path(w)[start + blocks] = 0


@njit(**JIT)
def leave_path(w, n, r):
    """Request r is over: blocks that nobody has on a path or in the cache lose their numbers.

    Only after `note_changes`: what came or went and was not noted yet must keep its number until it is.
    """
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        if s == 0:
            break
        n.names[s].users -= 1
        if n.names[s].users == 0 and v.index(w)[s, 0] < 0:
            _forget(n.names, n.table, n.counts, s)
    v.path(w)[v.offsets(w)[r]] = 0


@njit(**JIT)
def note_changes(w, n):
    """Log what came into the cache and what left it since the last time, parents first."""
    names, touched, counts = n.names, v.touched(w), n.counts
    s, count = v.counts(w)[TOUCHED], 0
    while s != NONE:
        s, count = touched[s], count + 1
    if count == 0:
        return
    chain, depths = np.empty(count, np.int32), np.empty(count, np.int32)
    s = v.counts(w)[TOUCHED]
    for at in range(count):
        chain[at], depths[at] = s, v.begin(w)[s]
        following = touched[s]
        touched[s] = 0
        s = following
    v.counts(w)[TOUCHED] = NONE
    for at in np.argsort(depths):
        s = chain[at]
        there = v.index(w)[s, 0] >= 0
        if there != (names[s].told != 0):
            names[s].told = there
            _log(n, s, there, depths[at])
        if not there and names[s].users == 0:
            _forget(names, n.table, counts, s)


@njit(**JIT)
def _log(n, s, there, depth):
    """One more event; where nobody came for them in time, it is enough to know that."""
    if n.counts[LOGGED] == len(n.log):
        n.counts[LOST] = 1
        return
    event = n.log[n.counts[LOGGED]]
    event.word, event.before, event.depth = n.names[s].word, n.names[s].before, depth
    event.kind = STORED if there else REMOVED
    if there:
        n.log_ids[n.counts[LOGGED]] = n.ids[s]
    n.counts[LOGGED] += 1


def in_use(n: Names) -> int:
    """Numbers given out."""
    return len(n.names) - 1 - int(n.counts[LEFT])


def resident(n: Names, begin: NDArray[np.int32]) -> Any:
    """The numbers of the blocks in the cache, parents first."""
    there = np.flatnonzero(n.names["told"])
    return there[np.argsort(begin[there], kind="stable")]
