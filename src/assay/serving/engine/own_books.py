"""What whoever routes counts itself, as NVIDIA Dynamo's router does: no engine has to be asked, and nothing is old.

Two books an instance. `unanswered`: of the requests sent to it that have no token yet, the prompt tokens its cache did
not hold when they were sent; all of them until the first token comes. And the blocks of the prompts on board, running
or waiting, each block once, whoever shares it: it is kept from the first time somebody asks for it.

A prompt's blocks are whole segments, but for the last, in which it may end. So a segment knows how many use all of it,
and those that end inside are chained: it is covered as far as the furthest of them.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np

from assay.serving.engine import views as v
from assay.serving.engine.prefix_cache import JIT
from assay.serving.engine.state import (
    ABOARD,
    DECODING,
    PREFILLING,
    UNANSWERED,
    WAITING,
    World,
    handle_of,
)
from assay.sim.compiled import njit

WHOLE, ENDING = range(2)  # of a segment in `board`: who uses all of it; the first of those that end in it, plus one


@njit(**JIT)
def _covered(w, s, i):
    """Blocks of segment s that the prompts on board of instance i have."""
    if v.board(w)[s, i, WHOLE] > 0:
        return v.end(w)[s] - v.begin(w)[s]
    most, other = 0, v.board(w)[s, i, ENDING]
    while other > 0:
        request = v.requests(w)[other - 1]
        most = max(most, request.path_blocks - v.begin(w)[s])
        other = request.beside
    return most


@njit(**JIT)
def _unchain(w, s, i, r):
    """Take request r out of those that end in segment s."""
    beside, other = v.requests(w)[r].beside, v.board(w)[s, i, ENDING] - 1
    if other == r:
        v.board(w)[s, i, ENDING] = beside
        return
    while v.requests(w)[other].beside != r + 1:
        other = v.requests(w)[other].beside - 1
    v.requests(w)[other].beside = beside


@njit(**JIT)
def _count(w, i, r, by):
    """Request r comes on board (by 1) or leaves (by -1)."""
    request = v.requests(w)[r]
    blocks = by * (request.prompt // w.block - request.path_blocks)  # what is on no path is nobody else's
    for p in range(v.offsets(w)[r], v.offsets(w)[r + 1]):
        s = v.path(w)[p]
        blocks -= _covered(w, s, i)
        if v.end(w)[s] <= request.path_blocks:
            v.board(w)[s, i, WHOLE] += by
        elif by > 0:
            request.beside = v.board(w)[s, i, ENDING]
            v.board(w)[s, i, ENDING] = r + 1
        else:
            _unchain(w, s, i, r)
        blocks += _covered(w, s, i)
    v.books(w)[ABOARD, i] += blocks


@njit(**JIT)
def enter(w, i, r, found):
    """Request r is sent to instance i, whose cache holds its first `found` blocks."""
    request = v.requests(w)[r]
    request.promised = request.prompt - found * w.block if request.emitted == 0 else 0
    v.books(w)[UNANSWERED, i] += request.promised
    if w.n_board > 0:
        _count(w, i, r, 1)


@njit(**JIT)
def answered(w, i, r):
    """The first token of request r is there."""
    v.books(w)[UNANSWERED, i] -= v.requests(w)[r].promised
    v.requests(w)[r].promised = 0


@njit(**JIT)
def depart(w, i, r):
    """Request r is off instance i for good: it ended, was handed over, or was taken away."""
    answered(w, i, r)
    if w.n_board > 0:
        _count(w, i, r, -1)


@njit(**JIT)
def prompts_with(w, r, tokens):
    """By instance: tokens of the full blocks of the prompts on board, were request r there, too."""
    board, aboard, path, begin, end = v.board(w), v.books(w)[ABOARD], v.path(w), v.begin(w), v.end(w)
    own, reach = v.requests(w)[r].prompt // w.block, v.requests(w)[r].path_blocks
    first, last = v.offsets(w)[r], v.offsets(w)[r + 1]
    for i in range(len(tokens)):
        known = 0
        for p in range(first, last):
            s = path[p]
            covered = end[s] if board[s, i, WHOLE] > 0 else begin[s] + _covered(w, s, i)
            known = min(covered, reach)
            if covered < end[s]:
                break
        tokens[i] = w.block * (aboard[i] + own - known)


@njit(**JIT)
def _board_all(w):
    for r in range(w.n_requests):
        at = v.requests(w)[r].state
        if at in (WAITING, PREFILLING, DECODING):
            _count(w, v.requests(w)[r].instance, r, 1)


def with_board(w: World) -> World:
    """The same world, in which the blocks of the prompts on board are counted from now on."""
    counted = w._replace(board=np.zeros((max(len(w.begin), 1), len(w.instances), 2), np.int32))
    counted = counted._replace(handle=handle_of(counted))
    _board_all(counted.handle[0])
    return counted
