"""Paged KV memory with a prefix cache, block by block exact, at the cost of segments.

The blocks of a segment become resident front to back and are evicted back to front, so one number per segment and
cache (how many leading blocks are there) stands for all of them. Entries that no running sequence holds wait in one
list by last use; a sequence that ends appends what it held deepest first, so a child always lies before its parent and
taking from the cold end never leaves a hole in a prefix. That is the order in which vLLM frees and reuses blocks.

A row of the index is one cache: the memory of instance i, or a host tier.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from typing import Any

import numpy as np

from assay.serving.engine import views as v
from assay.serving.engine.state import ENTRIES_LEFT, FREE_ENTRY, NONE, ON_PATH, OWN, TOUCHED
from assay.sim.compiled import njit

JIT: Any = {"cache": True, "error_model": "numpy"}


@njit(**JIT)
def _unlink(w, e):
    """Take an entry out of the list of those nobody holds."""
    entries = v.entries(w)
    cache, colder, warmer = v.caches(w)[entries[e].cache], entries[e].colder, entries[e].warmer
    if colder >= 0:
        entries[colder].warmer = warmer
    else:
        cache.coldest = warmer
    if warmer >= 0:
        entries[warmer].colder = colder
    else:
        cache.warmest = colder


@njit(**JIT)
def _append(w, e):
    """Put an entry at the warm end of the list of those nobody holds."""
    entries = v.entries(w)
    cache = v.caches(w)[entries[e].cache]
    entries[e].colder, entries[e].warmer = cache.warmest, NONE
    if cache.warmest >= 0:
        entries[cache.warmest].warmer = e
    else:
        cache.coldest = e
    cache.warmest = e


@njit(**JIT)
def _new_entry(w, segment, row, writer):
    counts = v.counts(w)
    e = counts[FREE_ENTRY]
    entry = v.entries(w)[e]
    counts[FREE_ENTRY] = entry.warmer
    counts[ENTRIES_LEFT] -= 1
    entry.segment, entry.cache, entry.blocks, entry.refs, entry.writer = segment, row, 0, 1, writer
    return np.int32(e)


@njit(**JIT)
def _touch(w, segment):
    """Chain up the segments that came or went, where somebody asks for them; each is in the chain once."""
    if w.n_touched > 0 and v.touched(w)[segment] == 0:
        v.touched(w)[segment] = v.counts(w)[TOUCHED]
        v.counts(w)[TOUCHED] = segment


@njit(**JIT)
def _drop(w, e):
    """Return an entry without blocks to the pool."""
    segment = v.entries(w)[e].segment
    if segment >= 0:
        v.index(w)[segment, v.entries(w)[e].cache] = NONE
        _touch(w, segment)
    elif segment <= OWN:
        v.requests(w)[OWN - segment].own = NONE
    v.entries(w)[e].warmer = v.counts(w)[FREE_ENTRY]
    v.counts(w)[FREE_ENTRY] = e
    v.counts(w)[ENTRIES_LEFT] += 1


@njit(**JIT)
def take(w, row, blocks):
    """Give `blocks` blocks to a running sequence; the coldest blocks that nobody holds make room."""
    cache = v.caches(w)[row]
    cache.active += blocks
    cache.resident += blocks
    over = cache.resident - cache.capacity
    while over > 0:
        e = cache.coldest
        entry = v.entries(w)[e]
        gone = min(over, np.int64(entry.blocks))
        entry.blocks -= gone
        cache.resident -= gone
        over -= gone
        if entry.blocks == 0:
            _unlink(w, e)
            _drop(w, e)
    cache.peak = max(cache.peak, cache.active)


@njit(**JIT)
def clear(w, row):
    """Forget everything that nobody holds."""
    cache = v.caches(w)[row]
    while cache.coldest >= 0:
        e = cache.coldest
        cache.resident -= v.entries(w)[e].blocks
        _unlink(w, e)
        _drop(w, e)


@njit(**JIT)
def match(w, r, row, limit):
    """How many leading blocks of request r's path are resident in a cache, at most `limit`."""
    hit = 0
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        e = v.index(w)[s, row]
        if e < 0:
            break
        hit = v.begin(w)[s] + v.entries(w)[e].blocks
        if hit < v.end(w)[s]:
            break
    return min(hit, limit)


@njit(**JIT)
def match_all(w, r, hits):
    """`match` for the caches 0 .. len(hits) - 1 in one walk over the path, in tokens.

    A row of the index lies together in memory, so a segment is looked up in all caches at once; the walk ends with
    the last cache that still matches.
    """
    index, entries, limit = v.index(w), v.entries(w), v.requests(w)[r].path_blocks
    hits[:] = 0
    alive = len(hits)
    still = np.ones(alive, np.bool_)
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        begin, end = v.begin(w)[s], v.end(w)[s]
        for row in range(len(hits)):
            if still[row]:
                e = index[s, row]
                if e >= 0:
                    hits[row] = min(begin + entries[e].blocks, limit) * w.block
                if e < 0 or begin + entries[e].blocks < end:
                    still[row] = False
                    alive -= 1
        if alive == 0:
            break


@njit(**JIT)
def idle_blocks(w, r, row, hit):
    """Blocks of the first `hit` that nobody holds yet: holding them leaves so much less to give away."""
    total = 0
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        if v.begin(w)[s] >= hit:
            break
        e = v.index(w)[s, row]
        if v.entries(w)[e].refs == 0:
            total += v.entries(w)[e].blocks
    return total


@njit(**JIT)
def hold(w, r, row, hit):
    """Request r holds its first `hit` blocks, which are resident, and will write on from there if nobody else does."""
    request, cache = v.requests(w)[r], v.caches(w)[row]
    request.held, request.shared, request.writing = 0, hit, 0
    last = NONE
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        if v.begin(w)[s] >= hit:
            break
        last = v.index(w)[s, row]
        entry = v.entries(w)[last]
        if entry.refs == 0:
            _unlink(w, last)
            cache.active += entry.blocks
        entry.refs += 1
        request.held += 1
    cache.peak = max(cache.peak, cache.active)
    if hit >= request.path_blocks:
        return
    if last >= 0:
        s = v.entries(w)[last].segment
        if hit < v.end(w)[s]:
            if v.entries(w)[last].writer < 0 and hit == v.begin(w)[s] + v.entries(w)[last].blocks:
                v.entries(w)[last].writer = r
                request.writing = 1
            return
    request.writing = 1


@njit(**JIT)
def extend(w, r, row, blocks):
    """Request r has computed its first `blocks` blocks: those on its path can be found by others from now on."""
    request = v.requests(w)[r]
    upto = min(blocks, request.path_blocks)
    while request.writing and request.shared < upto:
        p = v.offsets(w)[r] + request.held
        if request.held == 0 or request.shared == v.end(w)[v.path(w)[p - 1]]:
            s = v.path(w)[p]
            if v.index(w)[s, row] >= 0:  # somebody else is at it: keep a copy of one's own
                request.writing = 0
                return
            v.index(w)[s, row] = _new_entry(w, s, row, r)
            _touch(w, s)
            request.held += 1
        else:
            s = v.path(w)[p - 1]
        entry = v.entries(w)[v.index(w)[s, row]]
        more = min(upto, v.end(w)[s]) - request.shared
        entry.blocks += more
        request.shared += more
        request.private -= more
        if v.begin(w)[s] + entry.blocks == v.end(w)[s]:
            entry.writer = NONE
    if request.writing and request.shared == request.path_blocks:
        # A path may end inside a segment. What follows there is another's to write, while this one decodes.
        e = v.index(w)[v.path(w)[v.offsets(w)[r] + request.held - 1], row]
        if v.entries(w)[e].writer == r:
            v.entries(w)[e].writer = NONE
        request.writing = 0


@njit(**JIT)
def reach(w, r, row, hit):
    """How many leading blocks request r finds, having found `hit` on its path: also those it left when it gave way."""
    request = v.requests(w)[r]
    if request.own < 0 or request.own_begin > hit or v.entries(w)[request.own].cache != row:
        return hit
    return max(hit, request.own_begin + v.entries(w)[request.own].blocks)


@njit(**JIT)
def disown(w, r):
    """What request r left is blocks like any others."""
    request = v.requests(w)[r]
    if request.own >= 0:
        v.entries(w)[request.own].segment = NONE
        request.own = NONE


@njit(**JIT)
def reclaim(w, r, row, blocks):
    """Request r holds again the last `blocks` of those it left when it gave way. Others lie on its path, too."""
    e = v.requests(w)[r].own
    disown(w, r)
    if blocks > 0:
        v.entries(w)[e].blocks -= blocks
        v.caches(w)[row].active += blocks
        if v.entries(w)[e].blocks == 0:
            _unlink(w, e)
            _drop(w, e)


@njit(**JIT)
def _keep(w, row, segment, blocks):
    """An entry that nobody holds, of blocks that are resident already; returns it."""
    e = _new_entry(w, segment, row, NONE)
    v.entries(w)[e].refs, v.entries(w)[e].blocks = 0, blocks
    if segment >= 0:
        v.index(w)[segment, row] = e
        _touch(w, segment)
    _append(w, e)
    return e


@njit(**JIT)
def _kept_of_answer(w, r, row, blocks):
    """How many of the `blocks` blocks of an answer can be found again: none unless they continue its whole path."""
    request, segment = v.requests(w)[r], v.answers(w)[r]
    if blocks <= 0 or segment == NONE:
        return 0
    if segment == ON_PATH:
        follows, first = request.shared == request.path_blocks, v.path(w)[v.offsets(w)[r] + request.held]
    else:
        follows, first = request.shared == v.begin(w)[segment], segment
        blocks = min(blocks, v.end(w)[segment] - v.begin(w)[segment])
    return blocks if follows and v.index(w)[first, row] < 0 else 0


@njit(**JIT)
def release(w, r, row, private, answer_blocks, own_blocks):
    """Request r lets go of all its blocks; they stay until their room is needed.

    The first `answer_blocks` of its `private` blocks continue its path with its answer, to be found by the next turn;
    or the first `own_blocks` are found again by itself, where it gives way.
    """
    request, cache = v.requests(w)[r], v.caches(w)[row]
    cache.active -= private
    kept, held = _kept_of_answer(w, r, row, answer_blocks), v.offsets(w)[r] + request.held
    own = max(own_blocks, 0)
    if private > kept + own:
        _keep(w, row, NONE, private - kept - own)
    if own > 0:
        request.own, request.own_begin = _keep(w, row, OWN - r, own), request.shared
    if v.answers(w)[r] == ON_PATH:
        for p in range(held + kept - 1, held - 1, -1):
            _keep(w, row, v.path(w)[p], 1)
    elif kept > 0:
        _keep(w, row, v.answers(w)[r], kept)
    for p in range(held - 1, v.offsets(w)[r] - 1, -1):
        e = v.index(w)[v.path(w)[p], row]
        entry = v.entries(w)[e]
        if entry.writer == r:
            entry.writer = NONE
        entry.refs -= 1
        if entry.refs == 0:
            cache.active -= entry.blocks
            _append(w, e)
    request.held, request.shared, request.private, request.writing = 0, 0, 0, 0


@njit(**JIT)
def store(w, r, row, blocks):
    """Write the first `blocks` blocks of request r's path through to a tier that nobody holds anything in."""
    blocks = min(blocks, v.requests(w)[r].path_blocks)
    room = v.caches(w)[row].capacity
    request = v.requests(w)[r]
    held, shared, private, writing = request.held, request.shared, request.private, request.writing
    hit = match(w, r, row, blocks)
    hold(w, r, row, hit)
    more = min(blocks, room) - hit
    if more > 0:
        take(w, row, more)
        request.private = more
        extend(w, r, row, hit + more)
        release(w, r, row, request.private, 0, 0)
    else:
        release(w, r, row, 0, 0, 0)
    request.held, request.shared, request.private, request.writing = held, shared, private, writing
