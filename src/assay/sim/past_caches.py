"""Copies of what nobody reads soon: past the caches, so that memory is written without being read first.

An ordinary store brings the line that it changes into the cache before it changes it: half as much traffic again as
the copy itself. The C library knows that only for single copies larger than its share of the last cache.
"""

# mypy: disallow-untyped-defs=False, check-untyped-defs=False

from __future__ import annotations

import numpy as np
from llvmlite import ir
from numba import types  # type: ignore[attr-defined,unused-ignore]
from numba.extending import intrinsic

from assay.sim.compiled import njit

WORD = 32  # bytes of one store


@intrinsic
def streamed(typingctx, to, source):
    """Copy 32 bytes between two addresses, of which the first is a multiple of 32."""

    def codegen(context, builder, signature, arguments):
        wide = ir.VectorType(ir.IntType(64), WORD // 8)
        target, origin = (builder.inttoptr(address, wide.as_pointer()) for address in arguments)
        store = builder.store(builder.load(origin, align=1), target, align=WORD)
        store.set_metadata("nontemporal", builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


@intrinsic
def settled(typingctx):
    """Whoever is told of the copy after this finds it: such stores keep no order of their own."""

    def codegen(context, builder, signature, arguments):
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), codegen


@njit(cache=True, nogil=True)
def copy_past_caches(to, source):
    """Copy bytes from one array to another of the same length; other threads may run meanwhile.

    >>> source, to = np.arange(100, dtype=np.uint8), np.zeros(100, np.uint8)
    >>> copy_past_caches(to, source)
    >>> bool((to == source).all())
    True
    """
    size = len(to)
    if len(source) != size:
        raise ValueError("both must have the same length")
    lead = min(-to.ctypes.data % WORD, size)
    middle = lead + (size - lead) // WORD * WORD
    to[:lead] = source[:lead]
    target, origin = np.int64(to.ctypes.data), np.int64(source.ctypes.data)
    for at in range(lead, middle, WORD):
        streamed(target + at, origin + at)
    to[middle:] = source[middle:]
    settled()
