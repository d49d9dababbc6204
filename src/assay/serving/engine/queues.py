"""The three orders an instance keeps: who waits, who runs, who finishes next.

Links live in the request records, so nothing has a size to outgrow.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

from assay.serving.engine import views as v
from assay.serving.engine.prefix_cache import JIT
from assay.serving.engine.state import NONE
from assay.sim.compiled import njit


@njit(**JIT)
def _before(w, a, b):
    one, other = v.requests(w)[a], v.requests(w)[b]
    return one.key < other.key or (one.key == other.key and one.turn < other.turn)


@njit(**JIT)
def _meld(w, a, b):
    """Two pairing heaps become one."""
    if a < 0:
        return b
    if b < 0:
        return a
    if _before(w, b, a):
        a, b = b, a
    v.requests(w)[b].sibling = v.requests(w)[a].child
    v.requests(w)[a].child = b
    return a


@njit(**JIT)
def push(w, i, r):
    """Request r waits at instance i, in the order of keys."""
    v.requests(w)[r].child, v.requests(w)[r].sibling = NONE, NONE
    v.instances(w)[i].queue = _meld(w, v.instances(w)[i].queue, r)
    v.instances(w)[i].waiting += 1


@njit(**JIT)
def pop(w, i):
    """Take the first waiting request of instance i."""
    root = v.instances(w)[i].queue
    pairs, child = NONE, v.requests(w)[root].child
    while child >= 0:  # meld neighbours two by two, and chain the results
        second = v.requests(w)[child].sibling
        after = v.requests(w)[second].sibling if second >= 0 else NONE
        v.requests(w)[child].sibling = NONE
        if second >= 0:
            v.requests(w)[second].sibling = NONE
        melded = _meld(w, child, second)
        v.requests(w)[melded].sibling = pairs
        pairs, child = melded, after
    heap = NONE
    while pairs >= 0:
        after = v.requests(w)[pairs].sibling
        v.requests(w)[pairs].sibling = NONE
        heap = _meld(w, heap, pairs)
        pairs = after
    v.instances(w)[i].queue = heap
    v.instances(w)[i].waiting -= 1
    return root


@njit(**JIT)
def start(w, i, r):
    """Request r is the newest to run on instance i."""
    newest = v.instances(w)[i].newest
    v.requests(w)[r].older, v.requests(w)[r].newer = newest, NONE
    if newest >= 0:
        v.requests(w)[newest].newer = r
    else:
        v.instances(w)[i].oldest = r
    v.instances(w)[i].newest = r


@njit(**JIT)
def leave(w, i, r):
    """Request r no longer runs on instance i."""
    older, newer = v.requests(w)[r].older, v.requests(w)[r].newer
    if older >= 0:
        v.requests(w)[older].newer = newer
    else:
        v.instances(w)[i].oldest = newer
    if newer >= 0:
        v.requests(w)[newer].older = older
    else:
        v.instances(w)[i].newest = older


@njit(**JIT)
def _sift_up(heap, slot):
    end, request = heap[slot].end, heap[slot].request
    while slot > 0:
        parent = (slot - 1) // 2
        if heap[parent].end < end or (heap[parent].end == end and heap[parent].request < request):
            break
        heap[slot].end, heap[slot].request = heap[parent].end, heap[parent].request
        slot = parent
    heap[slot].end, heap[slot].request = end, request


@njit(**JIT)
def _sift_down(heap, slot, size):
    end, request = heap[slot].end, heap[slot].request
    while True:
        child = 2 * slot + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap[other].end < heap[child].end
            or (heap[other].end == heap[child].end and heap[other].request < heap[child].request)
        ):
            child = other
        if end < heap[child].end or (end == heap[child].end and request < heap[child].request):
            break
        heap[slot].end, heap[slot].request = heap[child].end, heap[child].request
        slot = child
    heap[slot].end, heap[slot].request = end, request


@njit(**JIT)
def add_end(heap, size, end, request):
    """A sequence that is complete after decode iteration `end`; ends and requests break ties, so orders agree."""
    heap[size].end, heap[size].request = end, request
    _sift_up(heap, size)


@njit(**JIT)
def drop_end(heap, size, slot):
    """Remove the sequence in `slot`; slot 0 is the next to finish."""
    last = size - 1
    heap[slot].end, heap[slot].request = heap[last].end, heap[last].request
    if slot < last:
        _sift_up(heap, slot)
        _sift_down(heap, slot, last)
