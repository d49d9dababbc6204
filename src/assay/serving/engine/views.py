"""How compiled code reaches the arrays of a world: one record of addresses goes in, views come out.

A tuple of arrays would be copied, and each array's reference counted, in every call of every function; that was most
of the time of a run. The addresses are valid as long as the `World` they were taken from.
"""

# Compiled functions take whatever types Numba infers; only Python-facing ones are annotated.
# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from numba import carray  # type: ignore[attr-defined,unused-ignore]

from assay.serving.engine.state import CACHE, ENTRY, FINISHING, GROUP, INSTANCE, N_COUNTS, REQUEST, SPAN
from assay.sim.addresses import pointer
from assay.sim.compiled import njit
from assay.sim.llm_cost import COEFFICIENTS

TERMS = len(COEFFICIENTS)


@njit(cache=True)
def groups(w):
    """View of the world's `groups`."""
    return carray(pointer(w.groups), (w.n_groups,), GROUP)


@njit(cache=True)
def instances(w):
    """View of the world's `instances`."""
    return carray(pointer(w.instances), (w.n_instances,), INSTANCE)


@njit(cache=True)
def caches(w):
    """View of the world's `caches`."""
    return carray(pointer(w.caches), (w.n_caches,), CACHE)


@njit(cache=True)
def requests(w):
    """View of the world's `requests`."""
    return carray(pointer(w.requests), (w.n_requests,), REQUEST)


@njit(cache=True)
def entries(w):
    """View of the world's `entries`."""
    return carray(pointer(w.entries), (w.n_entries,), ENTRY)


@njit(cache=True)
def index(w):
    """View of the world's `index`."""
    return carray(pointer(w.index), (w.n_segments, w.n_caches), np.int32)


@njit(cache=True)
def offsets(w):
    """View of the world's `offsets`."""
    return carray(pointer(w.offsets), (w.n_requests + 1,), np.int64)


@njit(cache=True)
def path(w):
    """View of the world's `path`."""
    return carray(pointer(w.path), (w.n_path,), np.int32)


@njit(cache=True)
def begin(w):
    """View of the world's `begin`."""
    return carray(pointer(w.begin), (w.n_segments,), np.int32)


@njit(cache=True)
def end(w):
    """View of the world's `end`."""
    return carray(pointer(w.end), (w.n_segments,), np.int32)


@njit(cache=True)
def answers(w):
    """View of the world's `answers`."""
    return carray(pointer(w.answers), (w.n_requests,), np.int32)


@njit(cache=True)
def phases(w):
    """View of the world's `phases`."""
    return carray(pointer(w.phases), (w.n_instances, w.block), np.int32)


@njit(cache=True)
def finishing(w):
    """View of the world's `finishing`."""
    return carray(pointer(w.finishing), (w.n_instances, w.seats), FINISHING)


@njit(cache=True)
def chunks(w):
    """View of the world's `chunks`."""
    return carray(pointer(w.chunks), (w.n_instances, w.seats), np.int32)


@njit(cache=True)
def tokens(w):
    """View of the world's `tokens`."""
    return carray(pointer(w.tokens), (w.n_kinds, w.width), np.float64)


@njit(cache=True)
def coefficients(w):
    """View of the world's `coefficients`."""
    return carray(pointer(w.coefficients), (w.n_kinds, TERMS), np.float64)


@njit(cache=True)
def joules(w):
    """View of the world's `joules`."""
    return carray(pointer(w.joules), (w.n_kinds, w.width), np.float64)


@njit(cache=True)
def energies(w):
    """View of the world's `energies`."""
    return carray(pointer(w.energies), (w.n_kinds, 3), np.float64)


@njit(cache=True)
def spans(w):
    """View of the world's `spans`."""
    return carray(pointer(w.spans), (w.n_spans,), SPAN)


@njit(cache=True)
def gauges(w):
    """View of the world's `gauges`."""
    return carray(pointer(w.gauges), (4, w.n_instances), np.int64)


@njit(cache=True)
def signals(w):
    """View of the world's `signals`."""
    return carray(pointer(w.signals), (3, w.n_instances), np.float64)


@njit(cache=True)
def books(w):
    """View of the world's `books`."""
    return carray(pointer(w.books), (2, w.n_instances), np.int64)


@njit(cache=True)
def board(w):
    """View of the world's `board`."""
    return carray(pointer(w.board), (w.n_board, w.n_instances, 2), np.int32)


@njit(cache=True)
def finished(w):
    """View of the world's `finished`."""
    return carray(pointer(w.finished), (w.n_requests,), np.int32)


@njit(cache=True)
def handed(w):
    """View of the world's `handed`."""
    return carray(pointer(w.handed), (w.n_requests,), np.int32)


@njit(cache=True)
def touched(w):
    """View of the world's `touched`."""
    return carray(pointer(w.touched), (w.n_touched,), np.int32)


@njit(cache=True)
def counts(w):
    """View of the world's `counts`."""
    return carray(pointer(w.counts), (N_COUNTS,), np.int64)
