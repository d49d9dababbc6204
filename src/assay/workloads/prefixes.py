"""Who shares which stretch of prompt with whom: from block ids to a tree of segments, and what the tree tells.

A trace names each cache block of a prompt by an id. :func:`chains` follows every prompt through the tree of all block
chains and folds runs of blocks that the same requests walk into one segment: a prompt of hundreds of blocks becomes a
handful of numbers, and nothing that a prefix cache could notice is lost.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from assay.sim.compiled import njit
from assay.sim.random import bits
from assay.workloads.requests import Ints, Prefixes, Requests

_FANOUT = 4  # a turn is continued once, or a few times where the answer was asked for again; a system prompt by many


def chains(
    ids: ArrayLike,
    offsets: ArrayLike,
    block_tokens: int,
    prompt: ArrayLike,
    chained: bool = True,
    answers: tuple[ArrayLike, ArrayLike] | None = None,
) -> Prefixes:
    """The tree of segments of prompts given by block ids: request r has `ids[offsets[r]:offsets[r + 1]]`.

    Blocks are shared where their ids are equal and all before them are, too. `chained` promises that an id already
    stands for all that precedes it (Mooncake), which is faster and is not trusted; with `chained=False` an id stands
    for the block alone (Bailian). Ids beyond the end of the prompt are left out. `answers` says which earlier request
    each one continues (-1: none) and how many tokens every answer has; an answer then has a segment of its own in the
    prompts that hold it.

    >>> tree = chains([7, 8, 7, 9, 9], [0, 2, 4, 5], block_tokens=16, prompt=[32, 30, 16])
    >>> tree.segments[tree.offsets[0] : tree.offsets[1]].tolist(), tree.start.tolist(), tree.stop.tolist()
    ([0, 1], [0, 16, 16, 0], [16, 32, 32, 16])
    >>> shared_tokens(tree, 0, 1), shared_tokens(tree, 1, 2)
    (16, 0)
    """
    names = np.ascontiguousarray(ids, dtype=np.int64)
    bounds = np.ascontiguousarray(offsets, dtype=np.int64)
    sizes = np.ascontiguousarray(prompt, dtype=np.int64)
    if block_tokens < 1:
        raise ValueError("block_tokens must be at least 1")
    if len(bounds) != len(sizes) + 1 or bounds[0] != 0 or bounds[-1] != len(names) or (np.diff(bounds) < 0).any():
        raise ValueError("offsets must rise from 0 to the number of ids, one more than there are prompts")
    nodes = np.empty(len(names), np.int32)
    parents = np.empty(len(names), np.int32)
    found = -1
    if chained and len(names) and names.min() >= 0 and names.max() < 4 * len(names) + 1024:
        found = _number_dense(names, bounds, sizes, block_tokens, int(names.max()), nodes, parents)
    if found < 0:  # ids are too far apart for a table, or one id follows two predecessors
        found = _number(names, bounds, sizes, block_tokens, nodes, parents)
    begins, held = np.zeros(found, np.bool_), np.full(len(sizes), -1, np.int32)
    if answers is not None:
        before, wrote = (np.ascontiguousarray(column, dtype=np.int64) for column in answers)
        _answers(bounds, nodes, sizes, before, wrote, block_tokens, begins, held)
    parent, start, stop, segment = _fold(nodes, parents[:found], begins, block_tokens)
    paths, segments = _paths(bounds, nodes, segment)
    output = np.where(held >= 0, segment[held], np.int32(-1)) if found else held
    return Prefixes(parent, start, stop, paths, segments, output.astype(np.int32), block_tokens)


@njit(cache=True, nogil=True)
def _blocks(size: int, block: int, given: int) -> Any:
    """How many of the ids given for a prompt lie, at least in part, inside it."""
    return min(given, (size + block - 1) // block)


@njit(cache=True, nogil=True)
def _number_dense(
    ids: Any, bounds: Any, prompt: Any, block: int, highest: int, nodes: Any, parents: Any
) -> Any:  # fmt: skip
    """Give every block of the tree a number, parents first, looking ids up in a table; -1: an id has two parents."""
    table = np.full(highest + 1, -1, np.int32)
    found = 0
    for r in range(len(prompt)):
        before = -1
        first = bounds[r]
        count = _blocks(prompt[r], block, bounds[r + 1] - first)
        for at in range(first, first + count):
            node = table[ids[at]]
            if node < 0:
                node = found
                table[ids[at]] = node
                parents[node] = before
                found += 1
            elif parents[node] != before:
                return -1
            nodes[at] = node
            before = node
        nodes[first + count : bounds[r + 1]] = -1
    return found


@njit(cache=True, nogil=True)
def _number(ids: Any, bounds: Any, prompt: Any, block: int, nodes: Any, parents: Any) -> Any:
    """The same by hashing (predecessor, id); equal hashes are told apart, so nothing is shared by accident."""
    width = 16
    while width < 2 * len(ids):
        width *= 2
    mask = np.uint64(width - 1)
    table = np.full(width, -1, np.int32)
    names = np.empty(len(ids), np.int64)
    found = 0
    for r in range(len(prompt)):
        before = -1
        first = bounds[r]
        count = _blocks(prompt[r], block, bounds[r + 1] - first)
        for at in range(first, first + count):
            slot = bits(np.uint64(before + 1), np.uint64(ids[at])) & mask
            while True:
                node = table[slot]
                if node < 0:
                    node = found
                    table[slot] = node
                    names[node] = ids[at]
                    parents[node] = before
                    found += 1
                    break
                if parents[node] == before and names[node] == ids[at]:
                    break
                slot = (slot + np.uint64(1)) & mask
            nodes[at] = node
            before = node
        nodes[first + count : bounds[r + 1]] = -1
    return found


@njit(cache=True, nogil=True)
def _answers(
    bounds: Any, nodes: Any, prompt: Any, before: Any, wrote: Any, block: int, begins: Any, held: Any
) -> None:  # fmt: skip
    """Mark where an answer begins and ends in the prompt that continues it; `held`: its first block, by request."""
    for r in range(len(prompt)):
        b = before[r]
        if b < 0:
            continue
        known = _blocks(prompt[b], block, bounds[b + 1] - bounds[b])
        length = _blocks(prompt[r], block, bounds[r + 1] - bounds[r])
        first = min(prompt[b] // block, known)
        last = min((prompt[b] + wrote[b]) // block, length)
        if last <= first or (first > 0 and nodes[bounds[b] + first - 1] != nodes[bounds[r] + first - 1]):
            continue
        begins[nodes[bounds[r] + first]] = True
        held[b] = nodes[bounds[r] + first]
        if last < length:
            begins[nodes[bounds[r] + last]] = True


@njit(cache=True, nogil=True)
def _fold(nodes: Any, parents: Any, begins: Any, block: int) -> Any:
    """Segments of the numbered tree: a block continues its parent's segment if as many requests walk it.

    Whoever walks a block walks its parent, so equal counts are equal sets.
    """
    walked = np.zeros(len(parents), np.int32)
    for node in nodes:
        if node >= 0:
            walked[node] += 1
    segment = np.empty(len(parents), np.int32)
    depth = np.empty(len(parents), np.int32)
    parent = np.empty(len(parents), np.int32)
    start = np.empty(len(parents), np.int32)
    stop = np.empty(len(parents), np.int32)
    found = 0
    for node in range(len(parents)):
        before = parents[node]
        depth[node] = depth[before] + 1 if before >= 0 else 0
        if before >= 0 and walked[before] == walked[node] and not begins[node]:
            segment[node] = segment[before]
        else:
            segment[node] = found
            parent[found] = segment[before] if before >= 0 else -1
            start[found] = depth[node] * block
            found += 1
        stop[segment[node]] = (depth[node] + 1) * block
    return parent[:found].copy(), start[:found].copy(), stop[:found].copy(), segment


@njit(cache=True, nogil=True)
def _paths(bounds: Any, nodes: Any, segment: Any) -> Any:
    offsets = np.zeros(len(bounds), np.int64)
    found = 0
    for fill in (False, True):
        if fill:
            segments = np.empty(found, np.int32)
            found = 0
        else:
            segments = np.empty(0, np.int32)
        for r in range(len(bounds) - 1):
            last = -1
            for at in range(bounds[r], bounds[r + 1]):
                if nodes[at] < 0:
                    break
                here = segment[nodes[at]]
                if here != last:
                    if fill:
                        segments[found] = here
                    found += 1
                    last = here
            offsets[r + 1] = found
    return offsets, segments


def shared_tokens(prefixes: Prefixes, one: int, other: int) -> int:
    """How many leading tokens, in whole blocks, the prompts of two requests share; see :func:`chains`."""
    paths = [prefixes.segments[prefixes.offsets[r] : prefixes.offsets[r + 1]] for r in (one, other)]
    shared = 0
    for mine, theirs in zip(*paths, strict=False):
        if mine != theirs:
            break
        shared = int(prefixes.stop[mine])
    return shared


def infinite_cache_hit(requests: Requests, answers: bool = False) -> float:
    """Share of all prompt blocks that an earlier prompt had: what a cache that forgets nothing would save.

    With `answers`, the cache also keeps what the model wrote, so that a conversation finds its last answer there.

    >>> tree = chains([7, 8, 7, 9], [0, 2, 4], block_tokens=16, prompt=[32, 32])
    >>> infinite_cache_hit(Requests.of([0, 1], [32, 32], [1, 1], prefixes=tree))
    0.25
    """
    if requests.prefixes is None or not len(requests):
        return 0.0
    hit, total = hits(requests.prefixes, requests.prompt, answers)
    return float(hit.sum() / total.sum()) if total.sum() else 0.0


def hits(prefixes: Prefixes, prompt: Ints, answers: bool = False) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each request, the leading tokens that were seen before and its tokens, both in whole blocks."""
    p = prefixes
    hit, total = _hits(p.start, p.stop, p.offsets, p.segments, p.output, prompt, p.block, answers)
    return hit, total


@njit(cache=True, nogil=True)
def _hits(
    start: Any, stop: Any, offsets: Any, segments: Any, output: Any, prompt: Any, block: int, answers: bool
) -> Any:  # fmt: skip
    seen = np.zeros(len(start), np.bool_)
    hit = np.zeros(len(prompt), np.int64)
    total = np.zeros(len(prompt), np.int64)
    for r in range(len(prompt)):
        for at in range(offsets[r], offsets[r + 1]):
            s = segments[at]
            if seen[s]:
                hit[r] = min(stop[s], (prompt[r] + block - 1) // block * block)
            seen[s] = True
        total[r] = (prompt[r] + block - 1) // block * block
        if answers and output[r] >= 0:
            seen[output[r]] = True
    return hit, total


def turns(requests: Requests) -> Ints:
    """For each request, the earlier request that it continues, or -1: whose prompt is the beginning of its own.

    Sessions in the trace decide where there are any. Else a prompt continues the latest one of which it holds every
    full block and whose last full block few others continue: what many continue is a system prompt, not a turn.

    >>> tree = chains([1, 2, 1, 2, 3, 4, 5], [0, 2, 5, 7], block_tokens=16, prompt=[32, 48, 32])
    >>> turns(Requests.of([0, 1, 2], [32, 48, 32], [1, 1, 1], prefixes=tree)).tolist()
    [-1, 0, -1]
    """
    if requests.session is not None:
        return previous(requests.session)
    p = requests.prefixes
    if p is None:
        return np.full(len(requests), -1, np.int32)
    return np.asarray(_continued(p.parent, p.stop, p.offsets, p.segments, requests.prompt, p.block), np.int32)


def previous(session: Ints) -> Ints:
    """The request before each in its session; -1 for the first and for those without a session.

    >>> previous(np.array([5, -1, 5, 5], np.int32)).tolist()
    [-1, -1, 0, 2]
    """
    return np.asarray(_previous(session), np.int32)


@njit(cache=True, nogil=True)
def _previous(session: Any) -> Any:
    """The request before each in its session."""
    before = np.full(len(session), -1, np.int32)
    highest = -1
    for s in session:
        highest = max(highest, s)
    last = np.full(highest + 1, -1, np.int32)
    for r in range(len(session)):
        if session[r] >= 0:
            before[r] = last[session[r]]
            last[session[r]] = r
    return before


@njit(cache=True, nogil=True)
def _continued(parent: Any, stop: Any, offsets: Any, segments: Any, prompt: Any, block: int) -> Any:
    children = np.zeros(len(parent), np.int32)
    for s in range(len(parent)):
        if parent[s] >= 0:
            children[parent[s]] += 1
    latest = np.full(len(parent), -1, np.int32)  # by the segment in which a prompt's full blocks end
    before = np.full(len(prompt), -1, np.int32)
    for r in range(len(prompt)):
        full = prompt[r] // block * block
        for at in range(offsets[r + 1] - 1, offsets[r] - 1, -1):
            s = segments[at]
            if latest[s] >= 0 and children[s] <= _FANOUT and prompt[r] > prompt[latest[s]]:
                before[r] = latest[s]
                break
        for at in range(offsets[r], offsets[r + 1]):
            if stop[segments[at]] == full:
                latest[segments[at]] = r
    return before


def sessions(before: Ints) -> Ints:
    """Number the conversations: a request that continues none begins one. `before` is what :func:`turns` gives.

    >>> sessions(np.array([-1, 0, -1, 1], np.int32)).tolist()
    [0, 0, 1, 0]
    """
    return np.asarray(_sessions(before), np.int32)


@njit(cache=True, nogil=True)
def _sessions(before: Any) -> Any:
    session = np.empty(len(before), np.int32)
    found = 0
    for r in range(len(before)):
        if before[r] >= 0:
            session[r] = session[before[r]]
        else:
            session[r] = found
            found += 1
    return session
